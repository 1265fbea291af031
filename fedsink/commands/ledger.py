"""`fedsink ledger`: shows a node's owner its charges, its releases and the states that it keeps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedsink.clients.owner.ledger.account_report import (
    FORMAT,
    AccountReport,
    RunReport,
    export,
    refusals,
    report,
)
from fedsink.clients.owner.ledger.database import Database, problems
from fedsink.commands import ACTIONS
from fedsink.commands.command_keys import Parser, parse, whole
from fedsink.errors import ConfigError, LedgerError
from fedsink.files import write_atomic
from fedsink.reporting.displays import format_table

if TYPE_CHECKING:
    from fedsink.clients.owner.policy import Policy

HELP = """Usage: fedsink ledger show|check|export policy=FILE | file=FILE [out=FILE]
       fedsink ledger statement policy=FILE run=NAME client=N clients=K
       fedsink ledger forget-states POLICY

show    one table of the accounts (lineage, adjacency, ceiling, rest), one of their runs (operator,
        method, cost), and today's refusals; before any run, the rest of the policy's budgets
check   tests that the file is sound and no account overspent; exit code 1 and a sentence if not
export  accounts, plans and events as JSON to out=, or to the terminal, without fingerprints

statement prints the node's signed entry for a run's nodes.json, as a server gets it at the end of
a run: what the run (privacy.json names it) was charged, or that it was charged nothing, which only
an owner states. client= and clients= are those of fedsink node.

forget-states removes the states that answers keep of the node's data between messages. It removes
no charge; a run that continues starts again.

The ledger is named by the node's policy=, or directly by file=, and is never changed. A run that
stopped early is charged whole: the guarantee is the plan's ε.

Example: fedsink ledger show policy=policy.toml"""

_ACTIONS = ACTIONS["ledger"]
_NOTHING = "Nothing has been charged yet."


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Shows, checks or exports a ledger, or removes a node's states."""
    action, *rest = arguments
    if action not in _ACTIONS:
        raise ConfigError(f"fedsink ledger {', '.join(_ACTIONS)}; received {action!r}.")
    if action == "forget-states":
        return _forget_states(rest)
    if action == "statement":
        return _state(rest)
    keys = parse(rest, {"policy": Path, "file": Path, "out": Path})
    if "out" in keys and action != "export":
        raise ConfigError(f"out= belongs to fedsink ledger export, not to {action}.")
    if ("policy" in keys) == ("file" in keys):
        raise ConfigError("Name the ledger by policy= or by file=, one of the two.")
    policy = _policy(keys["policy"]) if "policy" in keys else None
    path = keys["file"].expanduser() if policy is None else policy.ledger
    database = Database(path, writable=False) if path.exists() else None
    if database is None and policy is None:
        raise LedgerError(
            f"No such file: {path}. A node makes its ledger at the first request that it answers: "
            "correct the path, or name the node's policy=."
        )
    try:
        if action == "export":
            accounts = {"format": FORMAT, "accounts": []} if database is None else export(database)
            text = json.dumps(accounts, indent=2, sort_keys=True, ensure_ascii=False)
            if "out" in keys:
                write_atomic(keys["out"].expanduser(), f"{text}\n".encode())
            else:
                print(text)
            return 0
        damages = [] if database is None else problems(database)
        if action == "show":
            if damages:
                raise LedgerError(
                    f"the ledger {path} is damaged ({damages[0]}): restore it from a backup."
                )
            print(_shown(database, policy))
            return 0
        for problem in damages:
            print(f"{path}: {problem}.")
        if not damages:
            print(_NOTHING if database is None else f"{path} is sound.")
        return 1 if damages else 0
    finally:
        if database is not None:
            database.close()


def _state(rest: Sequence[str]) -> int:
    from fedsink.protocol.requests import given_name

    parsers: dict[str, Parser] = {
        "policy": Path,
        "run": given_name,
        "client": whole(0),
        "clients": whole(1),
    }
    keys = parse(rest, parsers, of="ledger", needs=tuple(parsers))
    if keys["client"] >= keys["clients"]:
        raise ConfigError(f"client={keys['client']} is none of clients={keys['clients']}.")
    from fedsink.clients.node import Node
    from fedsink.clients.node_settings import NodeSettings

    policy = _policy(keys["policy"])
    node = Node(NodeSettings.from_policy(policy, clients=keys["clients"]), keys["client"])
    print(json.dumps(node.statement(keys["run"], also_none=True), indent=2))
    return 0


def _forget_states(rest: Sequence[str]) -> int:
    if len(rest) != 1:
        raise ConfigError(
            f"fedsink ledger forget-states POLICY names one policy file, received {list(rest)}."
        )
    from fedsink.clients.owner.states import forget

    policy = _policy(Path(rest[0].removeprefix("policy=")))
    print(f"{forget(policy.states)} states of {policy.lineage} are removed.")
    return 0


def _policy(path: Path) -> Policy:
    from fedsink.clients.owner.policy_file import read_policy

    return read_policy(path.expanduser())


def _shown(database: Database | None, policy: Policy | None) -> str:
    accounts = [] if database is None else report(database)
    runs = [
        {
            "run": run.run,
            "asked by": run.operator or "unsigned",
            "method": _method(run),
            "day": run.day,
            "lineage": account.lineage,
            "adjacency": account.adjacency,
            "charged ε": run.epsilon,
            "charged δ": run.delta,
            "rounds": f"{run.claimed} of {run.rounds}",
        }
        for account in accounts
        for run in account.runs
    ]
    opened = {(account.lineage, account.adjacency) for account in accounts}
    if policy is not None:
        accounts += [
            AccountReport(policy.lineage, adjacency, budget.epsilon, budget.delta, 0.0, 0.0, ())
            for adjacency, budget in policy.budgets.items()
            if (policy.lineage, adjacency) not in opened
        ]
    lines = [
        {
            "lineage": account.lineage,
            "adjacency": account.adjacency,
            "ceiling ε": account.epsilon,
            "ceiling δ": account.delta,
            "charged ε": account.spent_epsilon,
            "charged δ": account.spent_delta,
            "left ε": _left(account.epsilon, account.spent_epsilon),
            "left δ": _left(account.delta, account.spent_delta),
        }
        for account in accounts
    ]
    parts = [] if runs else [_NOTHING]
    parts += [format_table(table) for table in (lines, runs) if table]
    if database is not None:
        today = [f"{name.removesuffix('Error')} {n}" for name, n in refusals(database).items()]
        parts.append(f"Refused today (UTC): {', '.join(today) or 'nothing'}.")
    return "\n\n".join(parts)


def _method(run: RunReport) -> str | None:
    if (by := run.plan.get("enforced_by")) is not None:
        word = ", trained as the app says" if "training" in run.plan else ""
        share = f", a part of the noise of {n}" if (n := run.plan.get("share", 1)) > 1 else ""
        return f"{run.method}{share}, enforced by the {by}{word}"
    parts = run.plan.get("share", 1)
    if parts == 1:
        return run.method
    of_sum = run.plan.get("aggregation_trusted")
    return f"{run.method}, {'charged as a sum' if of_sum else 'a part of the noise'} of {parts}"


def _left(ceiling: float | None, spent: float | None) -> float | None:
    return None if ceiling is None or spent is None else max(0.0, ceiling - spent)
