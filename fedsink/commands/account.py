"""`fedsink account`: the privacy arithmetic of a Poisson-subsampled Gaussian, three ways."""

from __future__ import annotations

from collections.abc import Sequence

from fedsink.commands.keys import parse, real, whole
from fedsink.errors import ConfigError
from fedsink.evaluation import format_table
from fedsink.privacy import ACCOUNTANTS, solve_account

HELP = """Usage: fedsink account rate=… sigma=… rounds=… [delta=1e-5] [classes=1] [eps=…]

ε of `rounds` rounds that sample every record with probability `rate` and add Gaussian noise of
`sigma` times the sensitivity. Give eps= and leave out one of rate, sigma and rounds to solve for
it. classes=C: a class schedule, in which a record is used in ⌈rounds/C⌉ rounds.
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
    given = [k for k in ("rate", "sigma", "rounds", "eps") if k in keys]
    if len(given) != 3:
        raise ConfigError(
            f"Three of rate, sigma, rounds and eps give the fourth; received "
            f"{', '.join(given) or 'none of them'}."
        )
    missing = next(k for k in ("rate", "sigma", "rounds", "eps") if k not in keys)
    found = solve_account(
        rate=keys.get("rate"),
        sigma=keys.get("sigma"),
        rounds=keys.get("rounds"),
        eps=keys.get("eps"),
        delta=keys.get("delta", 1e-5),
        classes=keys.get("classes", 1),
    )
    rows = [{"accountant": name, missing: f"{found[name]:,.6g}"} for name in ACCOUNTANTS]
    print(format_table(rows))
    return 0
