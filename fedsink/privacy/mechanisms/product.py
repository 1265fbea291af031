"""Image and label privatized together: two channels of one record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fedsink.errors import PrivacyError
from fedsink.privacy.mechanisms.local import LocalMechanism, MatchedCost
from fedsink.privacy.mechanisms.randomized_response import RandomizedResponse
from fedsink.privacy.randomness.noise import Stream
from fedsink.values import privacy_checks as checks


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
    def sensitivity(self) -> float:
        """The image's sensitivity, in the image mechanism's norm."""
        return self.image.sensitivity

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

    @property
    def matched_cost(self) -> MatchedCost:
        """The image's cost and λ; add −λ·log Q(ỹ|label) in the same cost units."""
        return self.image.matched_cost

    def describe(self) -> dict[str, Any]:
        """What to print and to write into privacy.json."""
        return {
            "mechanism": self.name,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": self.adjacency,
            "unit": self.unit,
            "image": self.image.describe(),
            "label": self.label.describe(),
        }
