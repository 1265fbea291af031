"""`fedsink account`: the privacy arithmetic of both modes, by every accountant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedsink.commands.account_local import HELP as LOCAL_HELP
from fedsink.commands.account_local import KEYS as LOCAL_KEYS
from fedsink.commands.account_local import local_rows
from fedsink.commands.keys import parse, real, whole
from fedsink.errors import ConfigError
from fedsink.evaluation import format_table
from fedsink.privacy import ACCOUNTANTS, ADJACENCIES, LIBRARIES, solve_account
from fedsink.privacy.adjacency import describe

HELP = (
    """Usage: fedsink account rate=… sigma=… rounds=… [delta=1e-5] [eps=…] [key=value …]
       fedsink account mechanism=laplace|gaussian sensitivity=… eps=…|sigma=… [key=value …]

Central mode: ε of `rounds` rounds that sample every record with probability `rate` and add
Gaussian noise of `sigma` times the clip's sensitivity. Give eps= and leave out one of rate,
sigma, rounds and delta to solve for it. The accountants stand side by side; PLD is the one that
fedsink uses for its own claims, rdp-classic the one of the DP-Sinkhorn paper.

  classes=C       a class schedule: a record is used in ⌈rounds/C⌉ rounds
  adjacency=A     add-remove (default), replace-one or client
  clip=K          record (default) or batch; matters under replace-one and client
  capacity=B      at most B sampled records take part
  records=N       no client holds more records (with capacity= and clip=record)
  persons=J       one person with a record at each of J clients
  accountant=…    """
    + ", ".join(ACCOUNTANTS)
    + """; all that apply unless given

  fedsink account rate=0.000833333 sigma=1.1 eps=10               how many rounds?
  fedsink account rate=0.2 sigma=2.291 rounds=4000 classes=10 adjacency=replace-one
  fedsink account rate=1 sigma=2.291 rounds=4000 classes=10       the same without amplification

"""
    + LOCAL_HELP
)

_KEYS: dict[str, Callable[[str], Any]] = {
    "rate": real, "sigma": real, "rounds": whole(1), "delta": real, "eps": real,
    "classes": whole(1), "adjacency": str, "clip": str, "capacity": whole(1), "records": whole(1),
    "persons": whole(1), "accountant": str,
}  # fmt: skip


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Print the table."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP)
        return 0
    if any(argument.startswith("mechanism=") for argument in arguments):
        print(format_table(local_rows(parse(arguments, LOCAL_KEYS))))
        return 0
    keys = parse(arguments, _KEYS)
    missing = [k for k in ("rate", "sigma", "rounds", "eps") if k not in keys]
    if missing:
        keys.setdefault("delta", 1e-5)
    elif "delta" not in keys:
        missing = ["delta"]
    if len(missing) != 1:
        raise ConfigError(
            "Leave out one of rate, sigma, rounds and eps, or delta with all four given; missing: "
            f"{', '.join(missing) or 'none of them'}."
        )
    _check_choice(keys, "adjacency", ADJACENCIES)
    _check_choice(keys, "clip", ("record", "batch"))
    _check_choice(keys, "accountant", ACCOUNTANTS)
    adjacency = keys.setdefault("adjacency", ADJACENCIES[0])
    for word, field in (("records", "nominal_records"), ("persons", "clients")):
        if word in keys:
            keys[field] = keys.pop(word)
    if "accountant" in keys:
        keys["accountants"] = [keys.pop("accountant")]
    table = solve_account(**keys)
    solved = missing[0]
    rows = [
        {"accountant": name, solved: f"{value:,.6g}", "library": LIBRARIES[name]}
        for name, value in table.items()
    ]
    print(format_table(rows))
    print(f"\nAdjacency: {describe(adjacency)}.")
    return 0


def _check_choice(keys: dict[str, Any], key: str, choices: Sequence[str]) -> None:
    if key in keys and keys[key] not in choices:
        raise ConfigError(f"{key}={keys[key]}: choose one of {', '.join(choices)}.")
