"""Randomized response: local privacy for labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fedsink.errors import PrivacyError
from fedsink.privacy.mechanisms.local import LocalMechanism
from fedsink.privacy.randomness.noise import Stream
from fedsink.values import privacy_checks as checks

_LEAST_EPSILON, _LARGEST_EPSILON = 1e-6, 20.0  # below, floats tell p and q hardly apart


@dataclass(frozen=True)
class RandomizedResponse:
    """Keeps the label with probability p = e^ε/(e^ε + C − 1), else answers another at random.

    Each of the C − 1 other classes has probability q = 1/(e^ε + C − 1), so that p/q = e^ε: pure ε
    local differential privacy of the label (Warner 1965; Kairouz, Oh, Viswanath 2016).

    Guarantees:
        - Labels are kept with probability p and each other class is answered with probability q.
        - The likelihood ratio of any answer for two labels is at most e^ε.
        - Under replace-one the event costs ε, and no other adjacency bounds it.

    Args:
        classes: C ≥ 2, public.
        epsilon: ε from 1e-6 to 20. Answers are chosen by uniform numbers in steps of 2⁻⁵², which
            moves ε by at most 2⁻⁵¹(e^ε + C): 2e-7 at 20, but 0.7 at 35, and no label changes at 40.

    Raises:
        PrivacyError: If a value is out of range.
    """

    classes: int
    epsilon: float

    name: ClassVar[str] = "randomized_response"
    adjacency: ClassVar[str] = "replace-one"
    unit: ClassVar[str] = "record"
    delta: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", checks.count("classes", self.classes, minimum=2))
        if checks.positive("epsilon", self.epsilon) < _LEAST_EPSILON:
            raise PrivacyError(
                f"randomized response at epsilon={self.epsilon:g} tells nothing of a label: give "
                f"it at least {_LEAST_EPSILON:g}, or draw without labels (conditional=false)."
            )
        if self.epsilon > _LARGEST_EPSILON:
            raise PrivacyError(
                f"randomized response at epsilon={self.epsilon:g} changes labels too rarely for "
                f"its random numbers: give the label at most {_LARGEST_EPSILON:g}."
            )

    @property
    def event(self) -> Any:
        """The mechanism as a `dp_accounting.DpEvent`, to be read under replace-one.

        dp_accounting draws any label, the true one included, with its noise parameter: C·q. Its
        "replace special" adjacency compares with an answer that needs no label and prints less
        (2.76 for ε = 5 and ten classes); `fedsink.privacy.epsilon` never uses it.
        """
        return checks.require("dp_accounting").RandomizedResponseDpEvent(
            min(1.0, self.classes * self.other_probability), self.classes
        )

    @property
    def keep_probability(self) -> float:
        """p, the probability that a label is answered truthfully."""
        return 1.0 / (1.0 + (self.classes - 1) * math.exp(-self.epsilon))

    @property
    def other_probability(self) -> float:
        """q, the probability of each particular other class."""
        return math.exp(-self.epsilon) * self.keep_probability

    def privatize(self, labels: torch.Tensor, stream: Stream) -> torch.Tensor:
        """Randomized labels, int64 (N,).

        Raises:
            PrivacyError: If a label is not in 0, ..., C − 1 (the label itself is not shown).
        """
        self._check(labels)
        labels = labels.to(torch.int64)
        change = stream.uniform(*labels.shape).to(labels.device) >= self.keep_probability
        steps = (stream.uniform(*labels.shape) * (self.classes - 1)).to(torch.int64)
        # The product may round up to C − 1, which would be the label itself.
        steps = torch.clamp(steps, max=self.classes - 2).to(labels.device) + 1
        other = (labels + steps) % self.classes
        return torch.where(change, other, labels)

    def log_likelihood(self) -> torch.Tensor:
        """The matrix log Q(ỹ|y), float64 (C, C): row ỹ is the answer, column y the label.

        Its negative is the label's part of a product channel's matched cost.
        """
        matrix = torch.full(
            (self.classes, self.classes), self._log_keep - self.epsilon, dtype=torch.float64
        )
        return matrix.fill_diagonal_(self._log_keep)

    def estimate_prior(self, privatized_labels: torch.Tensor) -> torch.Tensor:
        """Class frequencies before randomization, float64 (C,), from the answers only.

        Inverts f = q + (p − q)·π and projects onto the simplex (Euclidean). Post-processing.

        Raises:
            PrivacyError: If there are no answers or one is out of range.
        """
        self._check(privatized_labels)
        if privatized_labels.numel() == 0:
            raise PrivacyError("a prior needs at least one privatized label, received none.")
        counts = torch.bincount(privatized_labels.flatten().to(torch.int64), minlength=self.classes)
        frequencies = counts.to(torch.float64) / privatized_labels.numel()
        other = self.other_probability
        return _onto_simplex((frequencies - other) / (self.keep_probability - other))

    @property
    def _log_keep(self) -> float:
        return -math.log1p((self.classes - 1) * math.exp(-self.epsilon))

    def _check(self, labels: torch.Tensor) -> None:
        if labels.is_floating_point() or bool(((labels < 0) | (labels >= self.classes)).any()):
            raise PrivacyError(
                f"labels must be integers in 0, ..., {self.classes - 1}: "
                "check the public number of classes."
            )


@dataclass(frozen=True)
class ProductMechanism:
    """An image mechanism and randomized response on the label of the same record.

    Replacing a record replaces both, so the costs add: (ε_x + ε_l, δ_x). An accountant's
    "replace special" adjacency prints less (2.76 for ε_l = 5 and ten classes) and does not apply.
    The matched negative log-likelihood is the sum ``c(x, y)/λ − log Q(ỹ|label)``.

    Guarantees:
        - ε is the sum of the image's and the label's ε, and δ is the image's.
        - The event composes the image's and the label's, and costs no more than the sum.
        - Image noise and label noise are independent.

    Args:
        image: a `LocalMechanism`.
        label: `RandomizedResponse`.
    """

    image: LocalMechanism
    label: RandomizedResponse

    name: ClassVar[str] = "product"
    adjacency: ClassVar[str] = "replace-one"
    unit: ClassVar[str] = "record"

    @property
    def epsilon(self) -> float:
        """ε_x + ε_l."""
        return self.image.epsilon + self.label.epsilon

    @property
    def delta(self) -> float:
        """δ of the image mechanism; randomized response has none."""
        return self.image.delta

    @property
    def event(self) -> Any:
        """Both channels as one `dp_accounting.ComposedDpEvent`, to be read under replace-one."""
        events = checks.require("dp_accounting")
        return events.ComposedDpEvent([self.image.event, self.label.event])

    def privatize(
        self, values: torch.Tensor, labels: torch.Tensor, stream: Stream
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Privatized values (float32) and labels (int64) from two child streams.

        Raises:
            PrivacyError: If the numbers of records and labels differ, or a part refuses its input.
        """
        if len(values) != len(labels):
            raise PrivacyError(
                f"one label per record is needed, received {len(values)} records "
                f"and {len(labels)} labels."
            )
        return (
            self.image.privatize(values, stream.child("image")),
            self.label.privatize(labels, stream.child("label")),
        )


def _onto_simplex(point: torch.Tensor) -> torch.Tensor:
    """Euclidean projection onto the probability simplex (Duchi et al. 2008, Figure 1)."""
    ordered = torch.sort(point, descending=True).values
    excess = torch.cumsum(ordered, 0) - 1.0
    ranks = torch.arange(1, point.numel() + 1, dtype=point.dtype)
    support = int((ordered > excess / ranks).sum())
    return torch.clamp(point - excess[support - 1] / support, min=0.0)
