"""compare.html: runs side by side, in one file, and the same in a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from textwrap import fill

from fedsink.conf.typed import shown
from fedsink.errors import ConfigError
from fedsink.pages.charts import Chart, Line, line_chart
from fedsink.pages.page import MISSING, PageTable, Picture, number, pictures, render
from fedsink.pages.run_groups import Compared, Group, Promise, mean_and_sd, status
from fedsink.reporting.displays import duration, format_table
from fedsink.reporting.output_files import write_atomic

NAME = "compare.html"
_MARK = b'<h1 id="fedsink-comparison">'

_PICTURE_BYTES = 1_200_000  # of all grids, so that the page stays below 3 MB
_MOST_GRIDS = 24
_MOST_LINES = 10  # in a chart, of which there are at most so many of a kind:
_MOST_CHARTS = 6
_PARTS = 60  # of a noisy line

_FIGURES = {
    "LogReg": (("accuracy", "logreg"), 100.0, 1),
    "MLP": (("accuracy", "mlp"), 100.0, 1),
    "CNN": (("accuracy", "cnn"), 100.0, 1),
    "FID": (("fid",), 1.0, 1),
    "sliced W2": (("sliced_w2",), 1.0, 4),
    "W2": (("w2",), 1.0, 4),
    "images": (("n",), 1.0, 0),
}
"""Figures of an evaluation: their path in its file, their unit and their decimals."""

ADD_UP = (
    "Each ε concerns one run only. Whoever learns the results of several runs on the same records "
    "learns all of them: under one adjacency and unit their ε and δ add up at worst, and under "
    "different ones no single ε stands for all."
)
NO_LOSSES = (
    "A loss is a surrogate of its method, computed from what was released. It is the same quantity "
    "only where method, data, objective, clip and noise are the same, so that only such runs share "
    "axes: the height of one chart says nothing about that of another."
)
NOT_PRIVATE = (
    "These figures were computed on real data without privacy: the ε above does not cover them, "
    "and to choose a run by them is selection on the test set."
)
_SIGNAL = (
    "‖signal‖/‖noise‖ of what was released in a round, estimated only from the release. Methods "
    "release vectors of different size, so that it tells rounds of a run apart better than methods."
)


@dataclass(frozen=True)
class Comparison:
    """A page, and a table, about several runs.

    Attributes:
        compared: the runs.
    """

    compared: Compared

    def write(self, path: Path) -> None:
        """Writes the page, which replaces an earlier one.

        Raises:
            ConfigError: a file of another kind is there.
        """
        if path.is_dir() or (path.exists() and _MARK not in path.read_bytes()):
            raise ConfigError(
                f"{path} exists and is no page of fedsink compare: remove it, or give another "
                "out=FILE.html."
            )
        write_atomic(path, self.html())

    def html(self) -> bytes:
        """Renders the page."""
        compared = self.compared
        groups = compared.groups
        promises, losses = compared.by_promise(), compared.by_loss()
        return render(
            "compare.html.j2",
            groups=groups,
            data=dict.fromkeys(group.value("data.name") for group in groups),
            warnings=compared.warnings(),
            overview=self.overview(),
            guarantees=_guarantees(groups),
            protected=_in_words(groups, "protected"),
            not_protected=_in_words(groups, "not_protected"),
            promises=_promises(promises),
            add_up=ADD_UP,
            evaluations=self.accuracies(),
            not_private=NOT_PRIVATE,
            not_evaluated=self.not_evaluated(),
            grids=_grids(groups),
            grids_left_out=max(0, len(groups) - _MOST_GRIDS),
            epsilons=[
                chart
                for promise, members in list(promises.items())[:_MOST_CHARTS]
                for chart in _chart(
                    members,
                    "epsilon",
                    "ε so far",
                    f"ε so far over the rounds ({promise})",
                    f"{promise}.",
                )
            ],
            losses=[
                chart
                for members in losses[:_MOST_CHARTS]
                for chart in _chart(
                    members,
                    "loss",
                    "loss",
                    f"Loss over the rounds of {_titles(members)}",
                    f"{_titles(members)}.",
                )
            ],
            losses_left_out=max(0, len(losses) - _MOST_CHARTS),
            no_losses=NO_LOSSES,
            signals=_chart(
                groups,
                "signal_to_noise",
                "signal to noise",
                "Signal to noise over the rounds",
                _SIGNAL,
            ),
            differences=self.differences(),
            runs=self.table_of_runs(),
        )

    def text(self) -> str:
        """Returns the overview and the warnings, for a terminal."""
        overview = self.overview()
        rows = [dict(zip(overview.columns, row, strict=True)) for row in overview.rows]
        promises = _promises(self.compared.by_promise())
        sentences = [*promises, *self.compared.warnings()]
        return "\n\n".join([format_table(rows), *(fill(text, 96) for text in sentences)])

    def overview(self) -> PageTable:
        """Returns a row for each group: ε, its promise in short, and accuracies."""
        rows = []
        name = next(iter(self._evaluations()), None)
        shown = [] if name is None else self._filled(name)
        for group in self.compared.groups:
            stated = group.privacy
            rows.append(
                [
                    group.title,
                    group.seeds,
                    _epsilon_of(group),
                    number(stated.get("delta")),
                    f"{stated.get('model', MISSING)}, per {stated.get('unit', MISSING)}",
                    *(_cell(group, str(name), figure) for figure in shown),
                ]
            )
        columns = ["method", "runs", "ε", "δ", "promise", *(_heading(figure) for figure in shown)]
        return PageTable(columns, rows, "", frozenset({2, 3, *range(5, len(columns))}))

    def accuracies(self) -> list[tuple[str, PageTable]]:
        """Returns a table for each kind of evaluation that any run has."""
        return [(name, self._accuracy(name)) for name in self._evaluations()]

    def not_evaluated(self) -> list[str]:
        """Lists the labels of the finished runs without any evaluation."""
        runs = self.compared.runs.items()
        return [quote(label) for label, run in runs if run.finished and not run.evaluations]

    def differences(self) -> PageTable:
        """Returns the differing keys, with a column for each group."""
        groups = self.compared.groups
        rows = [[key, *(group.value(key) for group in groups)] for key in self.compared.differing]
        return PageTable(["key", *(group.title for group in groups)], rows)

    def table_of_runs(self) -> PageTable:
        """Returns a row for each run: its state and its last figures."""
        rows = []
        for group in self.compared.groups:
            for label, run in group.runs.items():
                last = run.rounds[-1] if run.rounds else {}
                seconds = (run.result or {}).get("seconds")
                rows.append(
                    [
                        label,
                        group.title,
                        shown("seed", run.config.get("seed")),
                        status(run),
                        number(last.get("round")),
                        number(last.get("epsilon")),
                        number(group.privacy.get("delta")),
                        number(last.get("loss")),
                        MISSING if seconds is None else duration(seconds),
                    ]
                )
        numbers = ["rounds", "ε so far", "δ", "last loss", "time"]
        columns = ["folder", "method", "seed", "state", *numbers]
        return PageTable(columns, rows, "", frozenset(range(4, len(columns))))

    def _evaluations(self) -> list[str]:
        """Lists the names of all evaluations, that of suite=fast first."""
        names = {name for run in self.compared.runs.values() for name in run.evaluations}
        return sorted(names, key=lambda name: (len(name), name))

    def _filled(self, evaluation: str) -> list[str]:
        """Lists the figures of an evaluation that any group has."""
        return [
            figure
            for figure, (path, *_) in _FIGURES.items()
            if figure != "images"
            and any(g.measured(evaluation, *path) for g in self.compared.groups)
        ]

    def _accuracy(self, evaluation: str) -> PageTable:
        shown = [*self._filled(evaluation), "images"]
        rows = []
        for group in self.compared.groups:
            measured = len(group.measured(evaluation, "n"))
            runs = f"{measured} of {len(group.runs)}"
            rows.append([group.title, runs, *(_cell(group, evaluation, f) for f in shown)])
        columns = ["method", "runs evaluated", *(_heading(figure) for figure in shown)]
        return PageTable(columns, rows, "", frozenset(range(1, len(columns))))


def _heading(figure: str) -> str:
    return f"{figure} %" if _FIGURES[figure][1] == 100.0 else figure


def _cell(group: Group, evaluation: str, figure: str) -> str:
    path, scale, digits = _FIGURES[figure]
    values = group.measured(evaluation, *path)
    if figure == "images":  # a size, that has no deviation
        return " or ".join(number(value) for value in dict.fromkeys(values)) or MISSING
    return mean_and_sd(values, scale, digits)


def _epsilon_of(group: Group) -> str:
    if not group.privacy:
        return MISSING
    epsilon = group.privacy.get("epsilon")
    return "no promise" if epsilon is None else number(epsilon)


def _guarantees(groups: Sequence[Group]) -> PageTable:
    """Returns the statements of privacy.json, with a column for each group."""
    facts = {
        "δ": "delta",
        "per": "unit",
        "neighbouring data sets differ in": "adjacency",
        "ε without amplification": "epsilon_unamplified",
        "mechanism": "mechanism",
        "accountant": "accountant",
        "noise": "noise",
    }
    rows = [["ε", *map(_epsilon_of, groups)]]
    for name, key in facts.items():
        values = [group.privacy.get(key) for group in groups]
        rows.append([name, *(v if isinstance(v, str) else number(v) for v in values)])
    return PageTable(["promise", *(group.title for group in groups)], rows)


def _in_words(groups: Sequence[Group], key: str) -> list[tuple[str, str]]:
    """Returns the sentences of privacy.json under a key, each with the titles of its groups."""
    titles: dict[str, list[str]] = {}
    for group in groups:
        if sentence := group.privacy.get(key):
            titles.setdefault(str(sentence), []).append(group.title)
    return [("; ".join(of), sentence) for sentence, of in titles.items()]


def _promises(promises: dict[Promise, list[Group]]) -> list[str]:
    """Says why the ε cannot be compared; no sentence where they can."""
    if len(promises) < 2:
        return []
    kinds = "; ".join(
        f"({place}) {promise}: {', '.join(group.title for group in groups)}"
        for place, (promise, groups) in enumerate(promises.items(), start=1)
    )
    return [
        f"These ε are {len(promises)} different promises: {kinds}. An ε bounds what one change of "
        "the data can tell, and these are about different changes, or hold up to different δ: a "
        "smaller number of one is not a stronger promise than a larger one of another, and no axis "
        "has both."
    ]


def _chart(groups: Sequence[Group], figure: str, up: str, title: str, caption: str) -> list[Chart]:
    """Draws a figure of some groups over the rounds; no chart where no run has the figure."""
    lines = list(_lines(groups, figure))
    if not lines:
        return []
    ends = "; ".join(
        f"{line.name}: {number(line.y[-1])} in round {line.x[-1]:.0f}" for line in lines
    )
    if len(groups) > _MOST_LINES:
        caption += f" The first {_MOST_LINES} of {len(groups)} are shown."
    return [line_chart(lines, "round", up, alt=f"{title}. It ends at {ends}.", caption=caption)]


def _titles(groups: Sequence[Group]) -> str:
    return ", ".join(group.title for group in groups[:_MOST_LINES])


def _lines(groups: Sequence[Group], figure: str) -> Iterator[Line]:
    """Yields a line for each of the first groups that have the figure, the mean of its runs.

    Where noisy lines share axes, each line shows the means of a few parts of its rounds.
    """
    shown = groups[:_MOST_LINES]
    smoothed = len(shown) > 1 and figure != "epsilon"
    for group in shown:
        rounds, values = group.mean(figure)
        if rounds:
            line = Line(group.title, rounds, values)
            yield line.thinned(_PARTS) if smoothed else line


def _grids(groups: Sequence[Group]) -> list[Picture]:
    """Returns the last picture of the first run with pictures, for each group."""
    described = []
    for group in groups[:_MOST_GRIDS]:
        for run in group.runs.values():
            if run.pictures:
                round, path = list(run.pictures.items())[-1]
                seed = shown("seed", run.config.get("seed"))
                promise = f"ε = {_epsilon_of(group)}, δ = {number(group.privacy.get('delta'))}"
                caption = f"{group.title}: round {round}, seed {seed}, {promise}"
                described.append((path, f"Samples of {caption}", caption))
                break
    return pictures(described, _PICTURE_BYTES)
