"""One figure of an evaluation: its values over the runs, beside the ceiling and the floor."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """The values of one figure, one per run, and the number of images behind each value.

    Attributes:
        values: at least one finite number; value r belongs to the evaluation's seed r.
        size: images that each value was measured or trained on.

    Raises:
        ValueError: no value, or one that is not finite.
    """

    values: tuple[float, ...]
    size: int

    def __post_init__(self) -> None:
        """Check the values."""
        if not self.values or not all(math.isfinite(value) for value in self.values):
            raise ValueError(f"A figure needs finite values; received {self.values}.")

    @property
    def mean(self) -> float:
        """Mean over the runs."""
        return statistics.fmean(self.values)

    @property
    def sd(self) -> float | None:
        """Sample standard deviation over the runs, `√(Σ(v − v̄)²/(R − 1))`; None for one run."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def to_dict(self) -> dict[str, object]:
        """Return mean, sd, values and size for JSON."""
        return {"mean": self.mean, "sd": self.sd, "values": list(self.values), "size": self.size}

    def text(self, scale: float = 1, digits: int = 3) -> str:
        """Return "mean ± sd", both times `scale`."""
        sd = "" if self.sd is None else f" ± {scale * self.sd:.{digits}f}"
        return f"{scale * self.mean:.{digits}f}{sd}"


@dataclass(frozen=True)
class Figure:
    """A figure of the synthetic images and the same figure of two references.

    Attributes:
        synthetic: of the generator's images.
        real: the ceiling, of real images; None where it was not asked for.
        class_means: the floor, of a generator that emits the class means of the real images.
        share: whether it is a fraction to be shown in percent.
    """

    synthetic: Spread
    real: Spread | None = None
    class_means: Spread | None = None
    share: bool = False

    def to_dict(self) -> dict[str, object]:
        """Return the columns that exist, for JSON."""
        columns = {"synthetic": self.synthetic, "real": self.real, "class_means": self.class_means}
        return {name: spread.to_dict() for name, spread in columns.items() if spread is not None}

    def row(self, name: str) -> dict[str, object]:
        """Return a row of the readable table."""

        def cell(spread: Spread | None) -> str | None:
            if spread is None:
                return None
            return f"{spread.text(100, 1)} %" if self.share else spread.text()

        return {
            "figure": name,
            "synthetic": cell(self.synthetic),
            "real data": cell(self.real),
            "class means": cell(self.class_means),
            "images": "/".join(
                str(spread.size)
                for spread in (self.synthetic, self.real, self.class_means)
                if spread is not None
            ),
        }
