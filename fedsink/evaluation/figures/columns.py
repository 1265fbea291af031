"""The three columns of every figure, and measuring one after the other over the runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from fedsink.evaluation.figures.spread import Figure, Spread
from fedsink.evaluation.labelled import Report
from fedsink.evaluation.sets import TrainingSet

Draw = Callable[[int, int], TrainingSet]
"""A size and a seed to that many images, or to as many as there are."""

Measure = Callable[[TrainingSet, int], dict[str, float]]
"""Images and a seed to figures by name."""


@dataclass(frozen=True)
class Columns:
    """Where the images of the columns come from; None leaves a column out.

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
        shares: Collection[str] = (),
        report: Report | None = None,
    ) -> dict[str, Figure]:
        """Apply `measure` to freshly drawn images of every column, once per seed.

        Args:
            measure: returns the same names every time.
            seeds: one per run.
            size: images per run.
            shares: names of the figures that are fractions.
            report: receives a line after each run.

        Returns:
            The figures by name.
        """
        draws = {"synthetic": self.synthetic, "real": self.real, "class_means": self.class_means}
        found: dict[str, dict[str, Spread]] = {}
        for column, draw in draws.items():
            if draw is None:
                continue
            runs, used = [], 0
            for seed in seeds:
                images = draw(size, seed)
                used = len(images)
                runs.append(measure(images, seed))
                if report is not None:
                    report(f"{column}: seed {seed} measured")
            for name in runs[0]:
                spread = Spread(tuple(run[name] for run in runs), used)
                found.setdefault(name, {})[column] = spread
        return {
            # The columns' names are the fields of Figure.
            name: Figure(**spreads, share=name in shares)
            for name, spreads in found.items()
        }
