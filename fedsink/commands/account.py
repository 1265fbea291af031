"""`fedsink account`: the privacy arithmetic of a Poisson-subsampled Gaussian, three ways."""

from __future__ import annotations

from collections.abc import Sequence

from fedsink.commands.keys import parse, real, whole
from fedsink.errors import ConfigError
from fedsink.evaluation import format_table
from fedsink.privacy import ACCOUNTANTS, solve_account

HELP = """Usage: fedsink account rate=… sigma=… rounds=… [delta=1e-5] [classes=1] [eps=…]

ε of `rounds` rounds that sample every record with probability `rate` and add Gaussian noise of
`sigma` times the sensitivity. Give eps= and leave out one of rate, sigma, rounds and delta to
solve for it. classes=C: a class schedule, in which a record is used in ⌈rounds/C⌉ rounds.
Adjacency: zero-out/add-remove of one record. RDP, PRV and PLD side by side; PLD is the tightest
that fedsink uses for its own claims.

Example: fedsink account rate=0.000833333 sigma=1.1 eps=10        (how many rounds?)"""


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Print the table."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP)
        return 0
    keys = parse(
        arguments,
        {
            "rate": real, "sigma": real, "rounds": whole(1), "delta": real,
            "eps": real, "classes": whole(1),
        },
    )  # fmt: skip
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
    found = solve_account(**keys)
    rows = [{"accountant": name, missing[0]: f"{found[name]:,.6g}"} for name in ACCOUNTANTS]
    print(format_table(rows))
    return 0
