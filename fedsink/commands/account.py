"""`fedsink account`: the privacy arithmetic of both modes, by every accountant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedsink.commands.account_local import HELP as LOCAL_HELP
from fedsink.commands.account_local import KEYS as LOCAL_KEYS
from fedsink.commands.account_local import local_rows
from fedsink.commands.keys import choice, parse, real, whole
from fedsink.errors import ConfigError
from fedsink.evaluation import format_table
from fedsink.privacy import ACCOUNTANTS, ADJACENCIES, LIBRARIES, CriticClip, solve_account
from fedsink.privacy.accounting.comparison import CLIP_NAMES
from fedsink.privacy.adjacency import describe

HELP = (
    """Usage: fedsink account rate=… sigma=… rounds=… [delta=1e-5] [eps=…] [key=value …]
       fedsink account clip=critic sigma=… rounds=… [delta=1e-5] [eps=…] [key=value …]
       fedsink account mechanism=laplace|gaussian sensitivity=… eps=…|sigma=… [key=value …]

Central mode: ε of `rounds` rounds that sample every record with probability `rate` and add
Gaussian noise of `sigma` times the clip's sensitivity. Give eps= and leave out one of rate,
sigma, rounds and delta to solve for it. The accountants stand side by side; PLD is the one that
fedsink uses for its own claims, rdp-classic the one of the DP-Sinkhorn paper.

  classes=C       a class schedule: a record is used in ⌈rounds/C⌉ rounds
  adjacency=A     add-remove (default), replace-one, client, or with clip=critic user
  clip=K          record (default) or batch, which differ under replace-one and client; or critic
  capacity=B      at most B sampled records take part
  records=N       no client holds more records (with capacity= and clip=record)
  persons=J       one person with a record at each of J clients
  accountant=…    """
    + ", ".join(ACCOUNTANTS)
    + """; all that apply unless given

clip=critic is the account of strategy=gs_wgan. rate is the probability with which a critic is
asked in a round, in secret; left out it is 1, and nothing is assumed to be secret.

  turns=P         clients answer in turn, each in ⌈rounds/P⌉ rounds
  critics=M       of a client (default 1); matters under client
  rows=N          each of N rows is clipped by itself, as published; sigma is the noise of a row

  fedsink account rate=0.000833333 sigma=1.1 eps=10               how many rounds?
  fedsink account rate=0.2 sigma=2.291 rounds=4000 classes=10 adjacency=replace-one
  fedsink account rate=1 sigma=2.291 rounds=4000 classes=10       the same without amplification
  fedsink account clip=critic eps=10 rounds=1000 turns=50         how much noise?
  fedsink account clip=critic sigma=1.07 rounds=20 rows=32        as published, 20 uses in turn

"""
    + LOCAL_HELP
)

_KEYS: dict[str, Callable[[str], Any]] = {
    "rate": real, "sigma": real, "rounds": whole(1), "delta": real, "eps": real,
    "classes": whole(1), "adjacency": choice(*ADJACENCIES), "clip": choice(*CLIP_NAMES),
    "capacity": whole(1), "records": whole(1), "turns": whole(1), "critics": whole(1),
    "rows": whole(1), "persons": whole(1), "accountant": choice(*ACCOUNTANTS),
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
    solvable: tuple[str, ...] = ("rate", "sigma", "rounds", "eps")
    if keys.get("clip") == CriticClip.name:
        solvable = solvable[1:]
    missing = [k for k in solvable if k not in keys]
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
