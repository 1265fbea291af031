"""`fedsink account`: the privacy arithmetic of both modes, by every accountant."""

from __future__ import annotations

from collections.abc import Sequence

from fedsink.audit.gs_wgan import GS_WGAN_ACCOUNT
from fedsink.audit.method import CentralAccount
from fedsink.audit.privatize_once import PrivatizeOnceAccount
from fedsink.commands.command_keys import Parser, choice, parse, parsers_of, real, whole
from fedsink.errors import ConfigError
from fedsink.privacy import (
    ACCOUNTANTS,
    ADJACENCIES,
    LIBRARIES,
    BatchClip,
    RecordClip,
    solve_account,
)
from fedsink.privacy.adjacency import describe
from fedsink.reporting.displays import format_table

METHODS: dict[str, CentralAccount] = {account.clip: account for account in (GS_WGAN_ACCOUNT,)}
"""The methods with an account of their own in the central mode, by their clip."""

_HELP = """Usage: {usage}

Central mode: ε of `rounds` rounds that sample every record with probability `rate` and add
Gaussian noise of `sigma` times the clip's sensitivity. Give eps= and leave out one of rate,
sigma, rounds and delta to solve for it. The accountants stand side by side; PLD is the one that
fedsink uses for its claims, rdp-classic the one of the DP-Sinkhorn paper.

  classes=C       a class schedule: a record is used in ⌈rounds/C⌉ rounds
  adjacency=A     add-remove (default), replace-one, client{adjacencies}
  clip=K          record (default) or batch, which differ under replace-one and client{clips}
  capacity=B      at most B sampled records take part
  records=N       no client holds more records (with capacity= and clip=record)
  persons=J       one person with a record at each of J clients
  accountant=…    {accountants}; all that apply unless given

{explanations}

  fedsink account rate=0.000833333 sigma=1.1 eps=10               how many rounds?
  fedsink account rate=0.2 sigma=2.291 rounds=4000 classes=10 adjacency=replace-one
  fedsink account rate=1 sigma=2.291 rounds=4000 classes=10       the same without amplification
{examples}

{local}"""

_SOLVABLE = "rate", "sigma", "rounds", "eps"


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Prints the table."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(_help())
    elif any(argument.startswith("mechanism=") for argument in arguments):
        account = PrivatizeOnceAccount(**parse(arguments, parsers_of(PrivatizeOnceAccount)))
        print(format_table(account.rows()))
    else:
        _central(arguments)
    return 0


def _help() -> str:
    methods = METHODS.values()
    usages = [
        "rate=… sigma=… rounds=… [delta=1e-5] [eps=…] [key=value …]",
        *(method.usage for method in methods),
        PrivatizeOnceAccount.usage,
    ]
    return _HELP.format(
        usage="\n       ".join(f"fedsink account {usage}" for usage in usages),
        adjacencies="".join(
            f", or with clip={method.clip} {' or '.join(method.adjacencies)}"
            for method in methods
            if method.adjacencies
        ),
        clips="".join(f"; or {clip}" for clip in METHODS),
        accountants=", ".join(ACCOUNTANTS),
        explanations="\n\n".join(method.explanation for method in methods),
        examples="\n".join(method.examples for method in methods),
        local=PrivatizeOnceAccount.explanation,
    )


def _parsers() -> dict[str, Parser]:
    clips = RecordClip.name, BatchClip.name, *METHODS
    parsers: dict[str, Parser] = {
        "rate": real, "sigma": real, "rounds": whole(1), "delta": real, "eps": real,
        "classes": whole(1), "adjacency": choice(*ADJACENCIES), "clip": choice(*clips),
        "capacity": whole(1), "records": whole(1), "persons": whole(1),
        "accountant": choice(*ACCOUNTANTS),
    }  # fmt: skip
    return parsers | {name: whole(1) for method in METHODS.values() for name in method.counts}


def _central(arguments: Sequence[str]) -> None:
    keys = parse(arguments, _parsers())
    method = METHODS.get(keys.get("clip", RecordClip.name))
    solvable = [name for name in _SOLVABLE if method is None or name not in method.given]
    missing = [name for name in solvable if name not in keys]
    if missing:
        keys.setdefault("delta", 1e-5)
    elif "delta" not in keys:
        missing = ["delta"]
    if len(missing) != 1:
        raise ConfigError(
            f"Leave out one of {', '.join(solvable)}, or delta with all of them given; missing: "
            f"{', '.join(missing) or 'none of them'}."
        )
    adjacency = keys.setdefault("adjacency", ADJACENCIES[0])
    for key, argument in (("records", "nominal_records"), ("persons", "clients")):
        if key in keys:
            keys[argument] = keys.pop(key)
    if "accountant" in keys:
        keys["accountants"] = [keys.pop("accountant")]
    solved = solve_account(**keys)
    rows = [
        {"accountant": name, missing[0]: f"{value:,.6g}", "library": LIBRARIES[name]}
        for name, value in solved.items()
    ]
    print(format_table(rows))
    for name, reason in solved.left_out.items():
        print(f"{name} is {reason}.")
    persons = keys.get("clients", 1)
    of_person = f" A person has one at each of {persons} clients." if persons > 1 else ""
    print(f"\nAdjacency: {describe(adjacency)}.{of_person}")
