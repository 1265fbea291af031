"""`fedsink account`: the privacy arithmetic of both modes, by every accountant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedsink.commands.command_keys import Parser, choice, parse, real, whole
from fedsink.errors import ConfigError
from fedsink.privacy import (
    ACCOUNTANTS,
    ADJACENCIES,
    LOCAL_MECHANISMS,
    BatchClip,
    CriticClip,
    LocalMechanism,
    RandomizedResponse,
    RecordClip,
    local_mechanism,
    solve_account,
)
from fedsink.privacy.accounting.amplification import shuffled_epsilon
from fedsink.privacy.adjacency import USER, describe
from fedsink.reporting.displays import format_table
from fedsink.values import checks

HELP = f"""Usage: fedsink account rate=… sigma=… rounds=… [delta=1e-5] [eps=…] [key=value …]
       fedsink account clip=critic sigma=… rounds=… [delta=1e-5] [eps=…] [key=value …]
       fedsink account mechanism=laplace|gaussian sensitivity=… eps=…|sigma=… [key=value …]

Central mode: ε of `rounds` rounds that sample every record with probability `rate` and add
Gaussian noise of `sigma` times the clip's sensitivity. Give eps= and leave out one of rate,
sigma, rounds and delta to solve for it. The accountants stand side by side; PLD is the one that
fedsink uses for its claims. rdp-classic, the DP-Sinkhorn paper's, is in fedsink-papers.

  classes=C       a class schedule: a record is used in ⌈rounds/C⌉ rounds
  adjacency=A     add-remove (default), replace-one, client, or with clip=critic {USER}
  clip=K          record (default) or batch, which differ under replace-one and client; or critic
  capacity=B      at most B sampled records take part
  records=N       no client holds more records (with capacity= and clip=record)
  persons=J       one person with a record at each of J clients
  accountant=…    {", ".join(ACCOUNTANTS)}; all that apply unless given

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

Local mode: the scale of a mechanism for a total ε, or the ε of a scale. The sensitivity
is the diameter of the set of values: L1 for laplace, L2 for gaussian; 2r for a ball.

  delta=…         δ of the Gaussian (default 1e-4)
  calibration=…   analytic (default) or equation5, the paper's closed form
  label_eps=…     ε of randomized response on the label, part of eps
  classes=C       number of labels
  shuffle=N       also ε after a trusted shuffler of N reports, at shuffle_delta=… (default 1e-6)

  fedsink account mechanism=gaussian sensitivity=40 eps=25 delta=1e-4
  fedsink account mechanism=laplace sensitivity=2 eps=35 label_eps=5 classes=10
  fedsink account mechanism=laplace sensitivity=2 eps=5 shuffle=400000"""

_SOLVABLE = "rate", "sigma", "rounds", "eps"


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Prints the table."""
    if not any(argument.startswith("mechanism=") for argument in arguments):
        _central(arguments)
        return 0
    parsers: dict[str, Parser] = {
        **dict.fromkeys(("mechanism", "calibration"), str),
        **dict.fromkeys(("sensitivity", "eps", "sigma", "delta", "label_eps"), real),
        "classes": whole(2), "shuffle": whole(1), "shuffle_delta": real,
    }  # fmt: skip
    rows = _local(**parse(arguments, parsers))
    print(format_table([{"quantity": name, "value": value} for name, value in rows.items()]))
    return 0


def _central(arguments: Sequence[str]) -> None:
    parsers: dict[str, Parser] = {
        "rate": real, "sigma": real, "rounds": whole(1), "delta": real, "eps": real,
        "classes": whole(1), "adjacency": choice(*ADJACENCIES),
        "clip": choice(RecordClip.name, BatchClip.name, CriticClip.name), "capacity": whole(1),
        "records": whole(1), "persons": whole(1), "accountant": str,
        "turns": whole(1), "critics": whole(1), "rows": whole(1),
    }  # fmt: skip
    keys = parse(arguments, parsers)
    critic = keys.get("clip") == CriticClip.name  # whose rate has a value where it is left out
    solvable = [name for name in _SOLVABLE if not (critic and name == "rate")]
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
        {"accountant": name, missing[0]: f"{value:,.6g}", "library": ACCOUNTANTS[name].library}
        for name, value in solved.items()
    ]
    print(format_table(rows))
    for name, reason in solved.left_out.items():
        print(f"{name} is {reason}.")
    persons = keys.get("clients", 1)
    of_person = f" A person has one at each of {persons} clients." if persons > 1 else ""
    print(f"\nAdjacency: {describe(adjacency)}.{of_person}")


def _local(
    *,
    mechanism: str,
    label_eps: float | None = None,
    classes: int | None = None,
    shuffle: int | None = None,
    shuffle_delta: float | None = None,
    **scale: Any,
) -> dict[str, str]:
    """Returns the costs of a mechanism of the local mode, by quantity, for these keys."""
    if (label_eps is None) != (classes is None):
        raise ConfigError("label_eps and classes go together: give both or neither.")
    if shuffle_delta is not None and shuffle is None:
        raise ConfigError("shuffle_delta needs shuffle=N, the number of shuffled reports.")
    label = None if label_eps is None or classes is None else RandomizedResponse(classes, label_eps)
    image = _image(mechanism, label_eps or 0.0, **scale)
    total = image.epsilon + (label_eps or 0.0)
    values = {"eps": f"{total:,.6g}", "delta": f"{image.delta:g}"}
    if label is not None:
        probability = f"kept with probability {label.keep_probability:.4f}"
        values["eps of the image"] = f"{image.epsilon:,.6g}"
        values["eps of the label"] = f"{label.epsilon:,.6g} ({probability})"
    values |= {
        "sigma": f"{image.scale:,.6g}",
        "sensitivity": f"{image.diameter:,.6g} ({image.norm.upper()})",
        "adjacency": describe(image.adjacency),
    }
    if shuffle is not None:
        delta = 1e-6 if shuffle_delta is None else shuffle_delta
        name = f"eps after a trusted shuffler of {shuffle:,} reports, delta={delta:g}"
        shuffled = shuffled_epsilon(total, shuffle, delta, delta0=image.delta)
        values[name] = f"{shuffled:,.4g}"
    return values


def _image(
    name: str,
    label_eps: float,
    *,
    sensitivity: float | None = None,
    eps: float | None = None,
    sigma: float | None = None,
    delta: float | None = None,
    calibration: str | None = None,
) -> LocalMechanism:
    """Returns the mechanism of the image, of whose total ε the label has `label_eps`."""
    if name not in LOCAL_MECHANISMS:
        raise ConfigError(f"mechanism={name}: choose {' or '.join(LOCAL_MECHANISMS)}.")
    mechanism = local_mechanism(name)
    if sensitivity is None:
        raise ConfigError(
            "sensitivity is missing: the diameter of the set of values, 2r for a ball."
        )
    checks.positive("sensitivity", sensitivity)
    for key, value in (("calibration", calibration), ("delta", delta)):
        if value is not None and not _depends(mechanism, key):
            pure = "" if mechanism.needs_delta else "gives pure ε and "
            others = [o for o in LOCAL_MECHANISMS if _depends(local_mechanism(o), key)]
            raise ConfigError(
                f"mechanism={name} {pure}has no {key}: leave it out, or choose "
                f"mechanism={' or '.join(others)}."
            )
    delta = 1e-4 if delta is None else delta
    if eps is None and sigma is not None:
        if calibration is not None:
            raise ConfigError(
                "calibration finds sigma from eps: leave it out where sigma is given."
            )
        return mechanism.from_scale(sensitivity, sigma, delta)
    if eps is None or sigma is not None:
        raise ConfigError("Give eps (and get sigma) or sigma (and get eps), one of the two.")
    if label_eps and eps <= label_eps:
        raise ConfigError(
            f"label_eps={label_eps:g} leaves nothing of eps={eps:g} for the image: lower it or "
            "raise eps."
        )
    return mechanism.from_epsilon(sensitivity, eps - label_eps, delta, calibration)


def _depends(mechanism: type[LocalMechanism], key: str) -> bool:
    """Tells whether the mechanism's guarantee or scale depends on this key."""
    return mechanism.needs_delta if key == "delta" else bool(mechanism.calibrations)
