"""The local mode's account, and its audit by repetition: two records as far apart as can be.

The audit covers the additive noise in one and two dimensions, the projection onto a ball of points,
and randomized response on the label. The maps of images have proofs and tests, and no audit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsink.audit.finding import Features, Finding, compare
from fedsink.audit.method import (
    FEWEST_TRIALS,
    AuditResult,
    MethodAudit,
    at_least,
    check_trials,
)
from fedsink.clients.privatize_once import privatize
from fedsink.clients.shard import Shard
from fedsink.data.maps import PointBall
from fedsink.errors import ConfigError
from fedsink.privacy import (
    LOCAL_MECHANISMS,
    Key,
    LaplaceMechanism,
    LocalMechanism,
    RandomizedResponse,
    Stream,
    local_mechanism,
)
from fedsink.privacy.accounting.amplification import shuffled_epsilon
from fedsink.privacy.adjacency import describe
from fedsink.protocol.privatize_once import LocalPlan

Privatizer = Callable[[Shard, LocalPlan, Callable[[str], Stream]], tuple[Tensor, Tensor]]
"""The client's mechanism, which an audit replaces to plant a fault."""

_BEYOND = 8.0  # coordinate of the records beyond the disc of radius 1
_CLASSES = 3
_LARGEST_LABEL_EPSILON = 20.0  # of randomized response


@dataclass(frozen=True, kw_only=True)
class PrivatizeOnceAccount:
    """`fedsink account mechanism=…`: the scale of a mechanism for a total ε, or the ε of a scale.

    Its fields are the keys; None: not given.
    """

    usage: ClassVar[str] = "mechanism=laplace|gaussian sensitivity=… eps=…|sigma=… [key=value …]"
    explanation: ClassVar[str] = """\
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

    mechanism: str
    sensitivity: float | None = None
    eps: float | None = None
    sigma: float | None = None
    delta: float | None = None
    calibration: str | None = None
    label_eps: float | None = None
    classes: int | None = at_least(2, None)
    shuffle: int | None = at_least(1, None)
    shuffle_delta: float | None = None

    def rows(self) -> list[dict[str, str]]:
        """The costs, a quantity a row.

        Raises:
            ConfigError: Keys are missing, contradict each other, or belong to another mechanism.
            PrivacyError: A value is out of range, or shuffling amplifies nothing there.
        """
        label = self._label()
        label_eps = 0.0 if label is None else label.epsilon
        image = self._image(label_eps)
        total = image.epsilon + label_eps
        values = {"eps": f"{total:,.6g}", "delta": f"{image.delta:g}"}
        if label is not None:
            kept = f"kept with probability {label.keep_probability:.4f}"
            values["eps of the image"] = f"{image.epsilon:,.6g}"
            values["eps of the label"] = f"{label.epsilon:,.6g} ({kept})"
        values |= {
            "sigma": f"{image.scale:,.6g}",
            "sensitivity": f"{image.sensitivity:,.6g} ({image.norm.upper()})",
            "adjacency": describe(image.adjacency),
        }
        if self.shuffle is not None:
            delta = 1e-6 if self.shuffle_delta is None else self.shuffle_delta
            name = f"eps after a trusted shuffler of {self.shuffle:,} reports, delta={delta:g}"
            shuffled = shuffled_epsilon(total, self.shuffle, delta, delta0=image.delta)
            values[name] = f"{shuffled:,.4g}"
        return [{"quantity": name, "value": value} for name, value in values.items()]

    def _label(self) -> RandomizedResponse | None:
        if self.label_eps is None and self.classes is None:
            return None
        if self.label_eps is None or self.classes is None:
            raise ConfigError("label_eps and classes go together: give both or neither.")
        return RandomizedResponse(self.classes, self.label_eps)

    def _image(self, label_eps: float) -> LocalMechanism:
        name = self.mechanism
        if name not in LOCAL_MECHANISMS:
            raise ConfigError(f"mechanism={name}: choose {' or '.join(LOCAL_MECHANISMS)}.")
        mechanism = local_mechanism(name)
        if self.sensitivity is None:
            raise ConfigError(
                "sensitivity is missing: the diameter of the set of values, 2r for a ball."
            )
        if (self.eps is None) == (self.sigma is None):
            raise ConfigError("Give eps (and get sigma) or sigma (and get eps), one of the two.")
        if self.shuffle_delta is not None and self.shuffle is None:
            raise ConfigError("shuffle_delta needs shuffle=N, the number of shuffled reports.")
        for key in ("calibration", "delta"):
            if getattr(self, key) is not None and not _depends(mechanism, key):
                pure = "" if mechanism.needs_delta else "gives pure ε and "
                others = [o for o in LOCAL_MECHANISMS if _depends(local_mechanism(o), key)]
                raise ConfigError(
                    f"mechanism={name} {pure}has no {key}: leave it out, or choose "
                    f"mechanism={' or '.join(others)}."
                )
        delta = 1e-4 if self.delta is None else self.delta
        if self.eps is None:
            if self.calibration is not None:
                raise ConfigError(
                    "calibration finds sigma from eps: leave it out where sigma is given."
                )
            assert self.sigma is not None  # one of the two is given
            return mechanism.from_scale(self.sensitivity, self.sigma, delta)
        eps = self.eps - label_eps
        if label_eps and eps <= 0:
            raise ConfigError(
                f"label_eps={label_eps:g} leaves nothing of eps={self.eps:g} for the image: lower "
                "it or raise eps."
            )
        return mechanism.from_epsilon(self.sensitivity, eps, delta, self.calibration)


def _depends(mechanism: type[LocalMechanism], key: str) -> bool:
    """The mechanism's guarantee or scale depends on this key."""
    return mechanism.needs_delta if key == "delta" else bool(mechanism.calibrations)


@dataclass(frozen=True, kw_only=True)
class PrivatizeOnceAudit(MethodAudit):
    """`fedsink audit mode=ldp`."""

    name: ClassVar[str] = "privatize_once"
    mode: ClassVar[str] = "ldp"
    usage: ClassVar[str] = """mode=ldp [mechanism=laplace] [eps=1] [trials=10000]
                                  (mechanism=gaussian: also [delta=1e-5])"""
    explanation: ClassVar[str] = (
        "mode=ldp      uploads of two records a diameter apart, on a line and, from beyond the\n"
        "              ball, in the plane with other labels; mechanism=laplace or\n"
        "              mechanism=gaussian. Maps of images are not audited."
    )

    mechanism: str = LaplaceMechanism.name
    eps: float = 1.0
    delta: float | None = None
    trials: int = at_least(FEWEST_TRIALS, 10_000)

    def run(self, key: Key) -> AuditResult:
        """Audits by repeated uploads."""
        known = self.mechanism in LOCAL_MECHANISMS
        pure = known and not local_mechanism(self.mechanism).needs_delta
        if pure and self.delta is not None:
            raise ConfigError(
                f"delta has no meaning with mechanism={self.mechanism}: it is pure ε."
            )
        delta = 0.0 if pure else 1e-5 if self.delta is None else self.delta
        plan = line_plan(self.mechanism, self.eps, delta)
        findings = audit_uploads(plan, key, trials=self.trials, confidence=self.confidence)
        return AuditResult(plan.to_dict(), findings)


def line_plan(mechanism: str, epsilon: float, delta: float) -> LocalPlan:
    """The mechanism on the interval [−1, 1]: Δ₁ = Δ₂ = 2, attained by its two ends.

    Raises:
        ConfigError: If the mechanism is not one of local mode's.
        PrivacyError: If ε or δ is out of range.
    """
    if mechanism not in LOCAL_MECHANISMS:
        known = " or ".join(LOCAL_MECHANISMS)
        raise ConfigError(f"mechanism must be {known}, received {mechanism!r}.")
    interval = PointBall(local_mechanism(mechanism).norm, radius=1.0, size=1)
    return LocalPlan(mechanism, interval, epsilon, delta)


def plane_plan(line: LocalPlan) -> LocalPlan:
    """A line's mechanism on the disc of radius 1, with labels: Δ₁ = 2√2, Δ₂ = 2 on a diagonal.

    The label is one of three, at the ε of the image or the most that randomized response grants.
    """
    disc = PointBall(line.image_mechanism.norm, radius=1.0, size=2)
    label_epsilon = min(line.epsilon, _LARGEST_LABEL_EPSILON)
    return replace(line, map=disc, label_epsilon=label_epsilon, classes=_CLASSES)


def audit_uploads(
    plan: LocalPlan,
    key: Key,
    *,
    trials: int,
    confidence: float,
    release: Privatizer = privatize,
) -> list[Finding]:
    """Tells uploads of neighbouring shards apart, by the values or by the label.

    - +1 or −1 on the line, by itself: the largest values decide, the tightest audit of one release.
    - The same beside a known record: noise that was used twice cancels in a difference of values.
    - (8, 8) or (−8, −8) of the plane, with another label: their projections onto the disc are a
      diameter apart, in L1 as in L2, and a projection that is missing shows. Values and labels are
      each held against the ε of their own mechanism.

    A Gaussian mechanism is also held against its exact trade-off.

    Guarantees:
        - The claim is the ε of exactly the plan that was run, replace-one.
        - Threshold and direction are chosen on uploads that the bound does not count.

    Args:
        plan: From `line_plan`.
        key: Source of every random number; client numbers below 6·trials are used.
        trials: Uploads of each of the two records; half of them fit the distinguisher.
        confidence: Of each bound, in (0, 1).
        release: The client's mechanism.

    Raises:
        ConfigError: If there are fewer than eight trials.
    """
    check_trials(trials)

    def uploads(
        plan: LocalPlan, records: list[list[float]], number: int, label: int = 0
    ) -> tuple[Features, Features]:
        shard = Shard(torch.tensor(records), torch.full((len(records),), label))
        first = number * trials
        return _uploads(shard, plan, release, key, range(first, first + trials))

    single = uploads(plan, [[1.0]], 0)[0], uploads(plan, [[-1.0]], 1)[0]
    beside = (
        _sum_and_distance(uploads(plan, [[1.0], [1.0]], 2)[0]),
        _sum_and_distance(uploads(plan, [[-1.0], [1.0]], 3)[0]),
    )
    plane = plane_plan(plan)
    values, labels = zip(
        uploads(plane, [[_BEYOND, _BEYOND]], 4, label=0),
        uploads(plane, [[-_BEYOND, -_BEYOND]], 5, label=1),
        strict=True,
    )
    image, label = plane.image_mechanism, plane.label_mechanism
    assert label is not None  # `plane_plan` has one
    trade_off = image.gaussian_trade_off
    return [
        finding
        for records, pair, claim, delta, gaussian in (
            ("one record", single, plan.total_epsilon, plan.delta, trade_off),
            ("two records", beside, plan.total_epsilon, plan.delta, False),
            ("one record beyond the ball", values, image.epsilon, image.delta, trade_off),
            ("one label", labels, label.epsilon, label.delta, False),
        )
        for finding in compare(
            *pair,
            audited=f"{2 * trials} uploads of {records}",
            claim=claim,
            delta=delta,
            confidence=confidence,
            gaussian=gaussian,
        )
    ]


def _uploads(
    shard: Shard, plan: LocalPlan, release: Privatizer, key: Key, clients: range
) -> tuple[Features, Features]:
    """Independent uploads: their values, (clients, records·D), and counts of each label."""
    replies = [
        release(shard, plan, partial(key.stream, client=client, round=0)) for client in clients
    ]
    values = torch.stack([values.flatten() for values, _ in replies])
    labels = torch.stack([labels.bincount(minlength=plan.classes) for _, labels in replies])
    return np.asarray(values.to(torch.float64)), np.asarray(labels.to(torch.float64))


def _sum_and_distance(values: Features) -> Features:
    """All that two values say: an upload has no order."""
    return np.stack([values.sum(1), np.abs(values[:, 0] - values[:, 1])], axis=1)
