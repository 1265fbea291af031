"""`fedsink ledger`: shows a node's owner its charges, its releases and the states that it keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsink.clients.ledger.account_report import (
    FORMAT,
    AccountReport,
    RunReport,
    export,
    refusals,
    report,
)
from fedsink.clients.ledger.check import problems
from fedsink.clients.ledger.database import Database
from fedsink.commands import ACTIONS
from fedsink.commands.command_keys import parse, whole
from fedsink.errors import ConfigError, LedgerError
from fedsink.reporting.displays import format_table
from fedsink.reporting.output_files import write_atomic

if TYPE_CHECKING:
    from fedsink.clients.policy import Policy

HELP = """Usage: fedsink ledger show|check|export policy=FILE | file=FILE [out=FILE]
       fedsink ledger statement policy=FILE run=NAME client=N clients=K
       fedsink ledger forget-states POLICY

show    one table of the accounts (lineage, adjacency, ceiling, rest), one of their runs (operator,
        method, cost), and today's refusals; before any run, the rest of the policy's budgets
check   tests every invariant; exit code 1 and a sentence for each that does not hold
export  accounts, plans and events as JSON to out=, or to the terminal, without fingerprints

statement prints the node's signed entry for a run's nodes.json, as a server gets it at the end of
a run: what the run (privacy.json names it) was charged, or that it was charged nothing, which only
an owner states. client= and clients= are those of fedsink node.

forget-states removes the states that answers keep of the node's data between messages. It removes
no charge; a run that continues starts again.

The ledger is named by the node's policy=, or directly by file=, and is never changed. "ε so far" is
information: the guarantee is the plan's ε, also for a run that stopped early.

Example: fedsink ledger show policy=policy.toml"""

_ACTIONS = ACTIONS["ledger"]


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Shows, checks or exports a ledger, or removes a node's states."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP)
        return 0
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
    path, policy = _named(keys)
    if policy is not None and not path.exists():
        return _unused(action, path, policy, keys.get("out"))
    if not path.exists():
        raise LedgerError(
            f"No such file: {path}. A node makes its ledger at the first request that it answers: "
            "correct the path, or name the node's policy=."
        )
    database = Database(path, writable=False)
    try:
        if action == "show":
            return _show(database, policy)
        if action == "check":
            return _check(database)
        return _export(export(database), keys.get("out"))
    finally:
        database.close()


def _state(rest: Sequence[str]) -> int:
    from fedsink.protocol.requests import run_name

    keys = parse(rest, {"policy": Path, "run": run_name, "client": whole(0), "clients": whole(1)})
    for key in ("policy", "run", "client", "clients"):
        if key not in keys:
            raise ConfigError(f"{key} must be given: see fedsink ledger --help.")
    if keys["client"] >= keys["clients"]:
        raise ConfigError(f"client={keys['client']} is none of clients={keys['clients']}.")
    from fedsink.clients.node import Node
    from fedsink.clients.node_settings import NodeSettings
    from fedsink.clients.policy_file import read_policy

    policy = read_policy(keys["policy"].expanduser())
    node = Node(NodeSettings.from_policy(policy, clients=keys["clients"]), keys["client"])
    print(json.dumps(node.statement(keys["run"], also_none=True), indent=2))
    return 0


def _forget_states(rest: Sequence[str]) -> int:
    if len(rest) != 1:
        raise ConfigError(
            f"fedsink ledger forget-states POLICY names one policy file, received {list(rest)}."
        )
    from fedsink.clients.policy_file import read_policy
    from fedsink.clients.states import forget

    policy = read_policy(Path(rest[0].removeprefix("policy=")).expanduser())
    forgotten = forget(policy.states)
    print(f"{forgotten} states of {policy.lineage} are removed.")
    return 0


def _named(keys: Mapping[str, Path]) -> tuple[Path, Policy | None]:
    """Returns the ledger's file, and the policy that names it."""
    if ("policy" in keys) == ("file" in keys):
        raise ConfigError("Name the ledger by policy= or by file=, one of the two.")
    if "file" in keys:
        return keys["file"].expanduser(), None
    from fedsink.clients.policy_file import read_policy

    policy = read_policy(keys["policy"].expanduser())
    return policy.ledger, policy


def _unused(action: str, path: Path, policy: Policy, out: Path | None) -> int:
    """A node that has answered nothing has no ledger yet."""
    if action == "export":
        return _export({"format": FORMAT, "accounts": []}, out)
    print(f"Nothing has been charged yet: the node has not made its ledger, {path}.")
    if action == "show":
        print(f"\n{format_table(_untouched(policy, []))}")
    return 0


def _untouched(policy: Policy, accounts: Sequence[AccountReport]) -> list[dict[str, Any]]:
    """The budgets of a policy that nothing has been charged to."""
    opened = {account.adjacency for account in accounts if account.lineage == policy.lineage}
    return [
        _account(
            AccountReport(
                lineage=policy.lineage,
                adjacency=adjacency,
                admission=budget.admission,
                order=budget.order,
                epsilon=budget.epsilon,
                delta=budget.delta,
                spent_epsilon=0.0,
                spent_delta=0.0,
                runs=(),
            )
        )
        for adjacency, budget in policy.budgets.items()
        if adjacency not in opened
    ]


def _show(database: Database, policy: Policy | None) -> int:
    if damages := problems(database):
        raise LedgerError(
            f"the ledger {database.path} is damaged ({damages[0]}): restore it from a backup."
        )
    accounts = report(database)
    untouched = [] if policy is None else _untouched(policy, accounts)
    if not accounts:
        print("Nothing has been charged yet.")
        if untouched:
            print(f"\n{format_table(untouched)}")
        _show_refusals(database)
        return 0
    print(format_table([*map(_account, accounts), *untouched]))
    runs = [_run(account, number) for account in accounts for number in range(len(account.runs))]
    print(f"\n{format_table(runs)}")
    _show_refusals(database)
    print("\nε so far is information: the guarantee is the plan's ε, also after an early stop.")
    return 0


def _show_refusals(database: Database) -> None:
    today = refusals(database)
    counted = ", ".join(
        f"{reason.removesuffix('Error')} {times}" for reason, times in today.items()
    )
    print(f"\nRefused today (UTC): {counted or 'nothing'}.")


def _account(account: AccountReport) -> dict[str, Any]:
    rule = account.admission
    return {
        "lineage": account.lineage,
        "adjacency": account.adjacency,
        "admission": rule if account.order is None else f"{rule} α={account.order:g}",
        "ceiling ε": account.epsilon,
        "ceiling δ": account.delta,
        "charged ε": account.spent_epsilon,
        "charged δ": account.spent_delta,
        "left ε": _left(account.epsilon, account.spent_epsilon),
        "left δ": _left(account.delta, account.spent_delta),
    }


def _run(account: AccountReport, number: int) -> dict[str, Any]:
    run = account.runs[number]
    return {
        "run": run.run,
        "asked by": run.operator or "unsigned",
        "method": run.method if run.share == 1 else f"{run.method}, {_shared(run)}",
        "day": run.day,
        "lineage": account.lineage,
        "adjacency": account.adjacency,
        "charged ε": run.epsilon,
        "charged δ": run.delta,
        "rounds": f"{run.claimed} of {run.rounds}",
        "ε so far": run.epsilon_so_far,
    }


def _shared(run: RunReport) -> str:
    return f"charged as a sum of {run.share}" if run.of_sum else f"a share of noise of {run.share}"


def _left(ceiling: float | None, spent: float | None) -> float | None:
    return None if ceiling is None or spent is None else max(0.0, ceiling - spent)


def _check(database: Database) -> int:
    damages = problems(database)
    for problem in damages:
        print(f"{database.path}: {problem}.")
    if not damages:
        print(f"{database.path} is sound.")
    return 1 if damages else 0


def _export(accounts: Mapping[str, Any], out: Path | None) -> int:
    text = json.dumps(accounts, indent=2, sort_keys=True, ensure_ascii=False)
    if out is None:
        print(text)
    else:
        write_atomic(out.expanduser(), f"{text}\n".encode())
    return 0
