"""Figures of an evaluation in three columns: the generator, the ceiling and the floor."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from fedsink.results.evaluation.sets import Report, TrainingSet

Draw = Callable[[int, int], TrainingSet]
"""A size and a seed to that many images, or to as many as there are."""

Measure = Callable[[TrainingSet, int], dict[str, float]]
"""Images and a seed to figures by name."""


@dataclass(frozen=True)
class Spread:
    """Values of one figure, one per run, and the number of images behind each value.

    Attributes:
        values: at least one finite number; value r belongs to the evaluation's seed r.
        size: images that each value was measured or trained on.

    Raises:
        ValueError: no value, or one that is not finite.
    """

    values: tuple[float, ...]
    size: int

    def __post_init__(self) -> None:
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
        """Returns mean, sd, values and size for JSON."""
        return {"mean": self.mean, "sd": self.sd, "values": list(self.values), "size": self.size}

    def text(self, scale: float = 1, digits: int = 3) -> str:
        """Returns "mean ± sd", both times `scale`."""
        sd = "" if self.sd is None else f" ± {scale * self.sd:.{digits}f}"
        return f"{scale * self.mean:.{digits}f}{sd}"


@dataclass(frozen=True)
class Figure:
    """A figure of the synthetic images and the same figure of two references.

    Attributes:
        synthetic: of the generator's images.
        real: the ceiling, of real images; None where it was not wanted.
        class_means: the floor, of a generator that emits the class means of the real images.
        fraction: True for a fraction, which is shown in percent.
    """

    synthetic: Spread
    real: Spread | None = None
    class_means: Spread | None = None
    fraction: bool = False

    @property
    def columns(self) -> dict[str, Spread]:
        """The columns that exist, by the names of their fields."""
        columns = {"synthetic": self.synthetic, "real": self.real, "class_means": self.class_means}
        return {name: spread for name, spread in columns.items() if spread is not None}

    def to_dict(self) -> dict[str, object]:
        """Returns the columns that exist, for JSON."""
        return {name: spread.to_dict() for name, spread in self.columns.items()}

    def row(self, name: str) -> dict[str, object]:
        """Returns a row of the readable table."""

        def cell(spread: Spread | None) -> str | None:
            if spread is None:
                return None
            return f"{spread.text(100, 1)} %" if self.fraction else spread.text()

        return {
            "figure": name,
            "synthetic": cell(self.synthetic),
            "real data": cell(self.real),
            "class means": cell(self.class_means),
            "images": "/".join(str(spread.size) for spread in self.columns.values()),
        }


@dataclass(frozen=True)
class Columns:
    """Sources of the images of the columns; None leaves a column out.

    Attributes:
        synthetic: the generator.
        real: real images, the ceiling.
        class_means: class means of real training images, the floor.
    """

    synthetic: Draw
    real: Draw | None = None
    class_means: Draw | None = None

    def measure(
        self,
        measure: Measure,
        *,
        seeds: Sequence[int],
        size: int,
        fractions: Collection[str] = (),
        report: Report | None = None,
    ) -> dict[str, Figure]:
        """Applies `measure` to freshly drawn images of every column, once per seed.

        Args:
            measure: returns the same names every time.
            seeds: one per run.
            size: images per run.
            fractions: names of the figures that are fractions.
            report: receives a line after each run.
        """
        draws = {"synthetic": self.synthetic, "real": self.real, "class_means": self.class_means}
        figures: dict[str, dict[str, Spread]] = {}
        for column, draw in draws.items():
            if draw is None:
                continue
            runs, count = [], 0
            for seed in seeds:
                images = draw(size, seed)
                count = len(images)
                runs.append(measure(images, seed))
                if report is not None:
                    report(f"{column}: seed {seed} measured")
            for name in runs[0]:
                spread = Spread(tuple(run[name] for run in runs), count)
                figures.setdefault(name, {})[column] = spread
        return {
            name: Figure(**spreads, fraction=name in fractions) for name, spreads in figures.items()
        }
