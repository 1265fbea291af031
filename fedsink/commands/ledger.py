"""`fedsink ledger`: what a node has charged and released, for its owner."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsink.commands.keys import parse
from fedsink.commands.names import ACTIONS
from fedsink.errors import ConfigError
from fedsink.evaluation import format_table
from fedsink.privacy.ledger import AccountReport, Database, export, problems, report
from fedsink.reporting.atomic import write_atomic

HELP = """Usage: fedsink ledger show|check|export policy=FILE | file=FILE [out=FILE]

show    one table of the accounts (lineage, adjacency, ceiling, what is left) and one of their runs
check   whether every invariant holds; exit code 1 and a sentence for each that does not
export  accounts, plans and events as JSON to out=, or to the terminal; no fingerprint is in it

The ledger is named by the node's policy=, or directly by file=. Nothing is changed. "ε so far" is
information: the guarantee is the plan's ε, also for a run that stopped early.

Example: fedsink ledger show policy=policy.toml"""

_ACTIONS = ACTIONS["ledger"]


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Show, check or export a ledger."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP)
        return 0
    action, *rest = arguments
    if action not in _ACTIONS:
        raise ConfigError(f"fedsink ledger {', '.join(_ACTIONS)}; received {action!r}.")
    keys = parse(rest, {"policy": Path, "file": Path, "out": Path})
    if "out" in keys and action != "export":
        raise ConfigError(f"out= belongs to fedsink ledger export, not to {action}.")
    database = Database(_path(keys), writable=False)
    try:
        if action == "show":
            return _show(database)
        if action == "check":
            return _check(database)
        return _export(database, keys.get("out"))
    finally:
        database.close()


def _path(keys: Mapping[str, Path]) -> Path:
    if ("policy" in keys) == ("file" in keys):
        raise ConfigError("Name the ledger by policy= or by file=, one of the two.")
    if "file" in keys:
        return keys["file"].expanduser()
    from fedsink.clients.policy_file import read_policy

    return read_policy(keys["policy"].expanduser()).ledger


def _show(database: Database) -> int:
    accounts = report(database)
    if not accounts:
        print("Nothing has been charged yet.")
        return 0
    print(format_table([_account(account) for account in accounts]))
    runs = [_run(account, number) for account in accounts for number in range(len(account.runs))]
    print(f"\n{format_table(runs)}")
    print("\nε so far is information: the guarantee is the plan's ε, also after an early stop.")
    return 0


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
        "lineage": account.lineage,
        "adjacency": account.adjacency,
        "plan ε": run.epsilon,
        "plan δ": run.delta,
        "rounds": f"{run.claimed} of {run.rounds}",
        "ε so far": run.epsilon_so_far,
    }


def _left(ceiling: float | None, spent: float | None) -> float | None:
    return None if ceiling is None or spent is None else max(0.0, ceiling - spent)


def _check(database: Database) -> int:
    damages = problems(database)
    for problem in damages:
        print(f"{database.path}: {problem}.")
    if not damages:
        print(f"{database.path} is sound.")
    return 1 if damages else 0


def _export(database: Database, out: Path | None) -> int:
    text = json.dumps(export(database), indent=2, sort_keys=True, ensure_ascii=False)
    if out is None:
        print(text)
    else:
        write_atomic(out.expanduser(), f"{text}\n".encode())
    return 0
