"""Charts of pages: lines over rounds, in colours that follow the page's scheme, light or dark."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fedsink.results.pages.page import data_uri

WIDTH, HEIGHT = 736, 300  # of a chart, in CSS pixels
AT_MOST = 400  # points of a line; a longer line shows the means of as many parts
_DECADES = 30.0  # smallest ratio of numbers for a logarithmic axis
_DOTS = 96
# On a light page, and on a dark one.
_INK, _SOFT, _RULE = ("#1b1f24", "#e6e9ed"), ("#555d68", "#a3acb8"), ("#d5d9df", "#383e47")
# Distinct to people who see colours differently, and by the dashes in print.
_COLOURS = (
    ("#1a56a8", "#86b7ff"),
    ("#b3470f", "#ffa76b"),
    ("#1d7a4c", "#6fd3a0"),
    ("#8a3c94", "#dd9be6"),
    ("#6b6b6b", "#c2c2c2"),
    ("#8c6d00", "#e3c55b"),
)
_DASHES: tuple[object, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


@dataclass(frozen=True)
class Line:
    """A line of a chart: its name in a legend of several, and points in the order of x."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]  # None breaks the line

    def thinned(self, at_most: int = AT_MOST) -> Line:
        """Averages at most `at_most` consecutive parts; each mean stands at its part's last x."""
        if len(self.x) <= at_most:
            return self
        cuts = [len(self.x) * part // at_most for part in range(at_most + 1)]
        parts = list(pairwise(cuts))
        means = [_mean(self.y[first:last]) for first, last in parts]
        return Line(self.name, [self.x[last - 1] for _, last in parts], means)


@dataclass(frozen=True)
class Chart:
    """A chart as an SVG picture in a data URI, with its content in words and the text below it."""

    source: str
    alt: str
    caption: str
    width: int = WIDTH  # in CSS pixels
    height: int = HEIGHT


def line_chart(
    lines: Sequence[Line], across: str, up: str, *, alt: str, caption: str = "", log: bool = False
) -> Chart:
    """Draws lines over a common axis; `log` acts where all numbers are positive and far apart."""
    if not lines:
        raise ValueError("A chart needs at least one line; received none.")
    shown = [line.thinned() for line in lines]
    values = [y for line in shown for y in line.y if y is not None]
    log = log and bool(values) and 0 < _DECADES * min(values) < max(values)
    return Chart(data_uri(_svg(shown, across, up, log), "image/svg+xml"), alt, caption)


def _svg(lines: Sequence[Line], across: str, up: str, log: bool) -> bytes:
    # matplotlib's import takes most of a second, and pyplot's longer: nothing here needs that.
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "svg.fonttype": "none",  # text stays text, in the reader's font
        "svg.hashsalt": "fedsink",  # the same chart is the same bytes
        "font.family": "sans-serif",
        "font.size": 10,
    }
    with matplotlib.rc_context(style):
        figure = Figure(
            figsize=(WIDTH / _DOTS, HEIGHT / _DOTS), facecolor="none", layout="constrained"
        )
        FigureCanvasSVG(figure)
        axes = figure.add_subplot(facecolor="none")
        for index, line in enumerate(lines):
            axes.plot(
                line.x,
                [math.nan if y is None else y for y in line.y],
                color=_COLOURS[index % len(_COLOURS)][0],
                linestyle=_DASHES[index // 2 % len(_DASHES)] if len(lines) > 1 else "-",
                linewidth=1.8,
                label=line.name,
                marker="o" if len(line.x) == 1 else "",
            )
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(_RULE[0])
        axes.grid(axis="y", color=_RULE[0], linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(colors=_SOFT[0], length=0)
        axes.set_xlabel(across, color=_SOFT[0])
        axes.set_ylabel(up, color=_SOFT[0])
        if log:
            axes.set_yscale("log")
        if len(lines) > 1:
            legend = axes.legend(frameon=False, labelcolor=_INK[0])
            for label in legend.get_texts():
                label.set_parse_math(False)  # a name may hold dollars
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue().decode()
    pairs = (_INK, _SOFT, _RULE, *_COLOURS)
    for light, _ in pairs:
        text = text.replace(f": {light}", f": var(--{light[1:]})")
    schemes = [";".join(f"--{pair[0][1:]}:{pair[dark]}" for pair in pairs) for dark in (0, 1)]
    media = "@media screen and (prefers-color-scheme: dark)"
    both = f":root{{{schemes[0]}}}{media}{{:root{{{schemes[1]}}}}}</style>"
    return text.replace("</style>", both, 1).encode()


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None
