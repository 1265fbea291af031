"""compare.html: runs side by side, in one file, and the same in a table for the terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from statistics import fmean, stdev
from textwrap import fill
from typing import Any, TypeVar

from fedsink.errors import CheckpointError, ConfigError
from fedsink.files import write_atomic
from fedsink.reporting.displays import duration, format_table
from fedsink.reporting.typed import shown
from fedsink.results.pages.charts import Chart, Line, line_chart
from fedsink.results.pages.page import MISSING, PageTable, Picture, number, pictures, render
from fedsink.server.folder import RecordedRun
from fedsink.values import PLACES, Config, leaves

T = TypeVar("T")

NAME = "compare.html"
_MARK = b'<h1 id="fedsink-comparison">'
_PICTURE_BYTES = 1_200_000  # of all grids, so that the page stays below 3 MB
_MOST = 10  # lines in a chart, charts of a kind, and grids
_PARTS = 60  # of a noisy line
_IN_A_TITLE = 3  # differing keys

_OF_ONE_RUN = ("run", "seed", "resume", "paper", "recipe", "scale", "scales")
_OF_NO_LOSS = ("generator", "strategy.optimizer", "engine", "observation", "report")
_PROMISE = ("model", "unit", "adjacency", "delta")
_FIGURES = {
    "LogReg %": (("accuracy", "logreg"), 100.0, 1),
    "MLP %": (("accuracy", "mlp"), 100.0, 1),
    "CNN %": (("accuracy", "cnn"), 100.0, 1),
    "FID": (("fid",), 1.0, 1),
    "sliced W2": (("sliced_w2",), 1.0, 4),
    "W2": (("w2",), 1.0, 4),
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


def run_settings(config: Config) -> dict[str, Any]:
    """Returns the settings of a run by dotted key, without its name, its seed and its places.

    Values that were left to the recipe are the recipe's. The reason for which `engine=auto` took
    its engine is left out.

    Args:
        config: the configuration of a run, all interpolations resolved.
    """
    recipe = config.get("recipe") or {}
    eps, sigma, rounds = (config.get(key) for key in ("eps", "sigma", "rounds"))
    if eps is None and sigma is None:
        eps = recipe.get("eps")
    if rounds is None and (eps is None or sigma is None or config.get("mode") == "ldp"):
        rounds = recipe.get("rounds")
    settings = {key: value for key, value in config.items() if key not in _OF_ONE_RUN}
    settings |= {"eps": eps, "rounds": rounds}
    left_out = (*PLACES, "engine.chosen")
    return {key: value for key, value in leaves(settings) if key not in left_out}


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lists the keys whose values differ between some settings, keys of no group first.

    >>> differing([{"eps": 1.0, "rate": 0.2}, {"eps": 3.0, "rate": 0.2}])
    ['eps']
    """
    none, keys = object(), dict.fromkeys(key for values in settings for key in values)
    found = [[values.get(key, none) for values in settings] for key in keys]
    different = [
        key for key, values in zip(keys, found, strict=True) if values != values[:1] * len(values)
    ]
    return sorted(different, key=lambda key: "." in key)


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed.

    Attributes:
        title: distinguishes the group from others.
        runs: by label.
        settings: the settings of all the runs, as `run_settings`.
    """

    title: str
    runs: Mapping[str, RecordedRun]
    settings: Mapping[str, Any]

    @property
    def privacy(self) -> dict[str, Any]:
        """Content of the first run's privacy.json; {} before it is written."""
        return next(iter(self.runs.values())).privacy or {}

    @property
    def promise(self) -> str:
        """The meaning of the group's ε; two ε can be compared where it is the same."""
        model, unit, adjacency, delta = map(self.privacy.get, _PROMISE)
        of = {"central": "central model", "ldp": "local model"}.get(str(model), str(model))
        end = "no δ" if delta is None else f"δ = {number(delta)}"
        return f"{of}, per {unit}, {adjacency}, {end}" if self.privacy else ""

    @property
    def epsilon(self) -> str:
        """ε in words."""
        otherwise = MISSING if not self.privacy else "no promise"
        epsilon = self.privacy.get("epsilon")
        return otherwise if epsilon is None else number(epsilon)

    @property
    def seeds(self) -> str:
        """Number of runs and their seeds, in words."""
        seeds = [run.config.get("seed") for run in self.runs.values()]
        many = "s" if len(seeds) > 1 else ""
        if all(seed is None for seed in seeds):
            return f"{len(seeds)} run{many}, secret noise"
        names = ", ".join("secret" if seed is None else str(seed) for seed in seeds)
        return f"{len(seeds)} run{many}, seed{many} {names}"

    def value(self, key: str) -> str:
        """Returns a configuration value as a page shows it; `MISSING` without the key."""
        return shown(key, self.settings[key]) if key in self.settings else MISSING

    def mean(self, name: str) -> tuple[list[float], list[float]]:
        """Returns the rounds, and a figure's means over the runs that have it in each of them."""
        values: dict[int, list[float]] = {}
        for run in self.runs.values():
            for line in run.rounds:
                if isinstance(line.get(name), int | float):
                    values.setdefault(int(line["round"]), []).append(float(line[name]))
        rounds = sorted(values)
        return [float(t) for t in rounds], [fmean(values[t]) for t in rounds]

    def measured(self, evaluation: str, *path: str) -> list[float]:
        """Returns a figure of an evaluation, by its path in the file, of each run that has it."""
        figures = []
        for run in self.runs.values():
            value: Any = run.evaluations.get(evaluation)
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            if isinstance(value, int | float):
                figures.append(float(value))
        return figures


@dataclass(frozen=True)
class Comparison:
    """Several runs in groups that differ only in their seed; a page, and a table, about them.

    Attributes:
        runs: by label, at least two.
    """

    runs: Mapping[str, RecordedRun]

    @classmethod
    def of(cls, folders: Sequence[str | Path]) -> Comparison:
        """Finds the runs in some folders, each of which belongs to a run or holds several.

        Raises:
            CheckpointError: a folder holds no run.
            ConfigError: a run is named twice, or there are fewer than two.
        """
        found = [run for each in folders for run in _runs_in(Path(each).expanduser().resolve())]
        paths = [run.folder.path for run in found]
        if doubled := [path for path in paths if paths.count(path) > 1]:
            raise ConfigError(f"{doubled[0]} is named twice: name each run once.")
        if len(found) < 2:
            have = f"only {paths[0]}" if paths else "no run that has begun"
            raise ConfigError(
                f"A comparison needs two runs or more, not {have}: name others as run=[A,B], or a "
                "folder of a sweep."
            )
        common = Path(os.path.commonpath(paths))
        labels = [path.relative_to(common).as_posix() for path in paths]
        return cls(dict(zip(labels, found, strict=True)))

    @cached_property
    def groups(self) -> list[Group]:
        """The groups in the order of their first runs, titled by method and differing keys."""
        members = _by_equal(self.runs.items(), lambda entry: run_settings(entry[1].config))
        groups = [Group("", dict(runs), run_settings(runs[0][1].config)) for runs in members]
        methods = [_method(group) for group in groups]
        titles = []
        for method, group in zip(methods, groups, strict=True):
            same = [g.settings for m, g in zip(methods, groups, strict=True) if m == method]
            keys = differing(same)[:_IN_A_TITLE]
            titles.append(", ".join([method, *(f"{key}={group.value(key)}" for key in keys)]))
        return [
            Group(f"{t} ({next(iter(g.runs))})" if titles.count(t) > 1 else t, g.runs, g.settings)
            for t, g in zip(titles, groups, strict=True)
        ]

    def by_promise(self) -> list[list[Group]]:
        """Returns lists of groups whose ε can be compared."""
        return _by_equal([g for g in self.groups if g.promise], lambda group: group.promise)

    def by_loss(self) -> list[list[Group]]:
        """Returns lists of groups whose losses are the same quantity."""
        return _by_equal(
            self.groups,
            lambda group: {
                key: value
                for key, value in group.settings.items()
                if not any(key == part or key.startswith(f"{part}.") for part in _OF_NO_LOSS)
            },
        )

    def warnings(self) -> list[str]:
        """Returns the limits of this comparison, in sentences."""
        sentences = []
        if different := [
            key
            for key in differing([group.settings for group in self.groups])
            if key.startswith("data.") and key != "data.download"
        ]:
            names = dict.fromkeys(group.value("data.name") for group in self.groups)
            sentences.append(
                f"These runs are of different data ({', '.join(names)}; {', '.join(different)} "
                "differ): their accuracies and pictures say nothing about each other."
            )
        if len({(run.config.get("data") or {}).get("root") for run in self.runs.values()}) > 1:
            sentences.append(
                "The runs read their data from different folders: whether these hold the same "
                "records is not recorded."
            )
        for group in self.groups:
            seeds = [run.config.get("seed") for run in group.runs.values()]
            if again := [s for s in seeds if s is not None and seeds.count(s) > 1]:
                sentences.append(
                    f"{group.title} has several runs of seed {again[0]}: they are repetitions, and "
                    "no independent evidence."
                )
        if unfinished := [label for label, run in self.runs.items() if not run.finished]:
            sentences.append(f"Not finished: {', '.join(unfinished)}. Their figures will change.")
        if len(promises := self.by_promise()) > 1:
            kinds = "; ".join(
                f"({place}) {groups[0].promise}: {', '.join(group.title for group in groups)}"
                for place, groups in enumerate(promises, 1)
            )
            sentences.append(
                f"These ε are {len(promises)} different promises: {kinds}. An ε bounds what one "
                "change of the data can tell, and these are about different changes, or hold up to "
                "different δ: a smaller number of one is not a stronger promise than a larger one "
                "of another, and no axis has both."
            )
        return sentences

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
        groups, losses = self.groups, self.by_loss()
        titles = [group.title for group in groups]
        differs = differing([group.settings for group in groups])
        facts = {
            "ε": [group.epsilon for group in groups],
            **{name: [_fact(g.privacy.get(key)) for g in groups] for name, key in _FACTS.items()},
        }
        return render(
            "compare.html.j2",
            groups=groups,
            data=dict.fromkeys(group.value("data.name") for group in groups),
            warnings=self.warnings(),
            overview=self.overview(),
            guarantees=PageTable(["promise", *titles], [[k, *v] for k, v in facts.items()]),
            add_up=ADD_UP,
            evaluations=[(name, self._accuracy(name)) for name in self._evaluations()],
            not_private=NOT_PRIVATE,
            not_evaluated=[
                quote(label)
                for label, run in self.runs.items()
                if run.finished and not run.evaluations
            ],
            grids=_grids(groups[:_MOST]),
            grids_left_out=max(0, len(groups) - _MOST),
            epsilons=[
                chart
                for members in self.by_promise()[:_MOST]
                for chart in _chart(members, "epsilon", "ε so far", f"{members[0].promise}.")
            ],
            losses=[
                chart
                for members in losses[:_MOST]
                for chart in _chart(members, "loss", "loss", f"{_names(members)}.")
            ],
            losses_left_out=max(0, len(losses) - _MOST),
            no_losses=NO_LOSSES,
            differences=PageTable(
                ["key", *titles],
                [[key, *(group.value(key) for group in groups)] for key in differs],
            ),
            states=self._states(),
        )

    def text(self) -> str:
        """Returns the overview and the warnings, for a terminal."""
        overview = self.overview()
        rows = [dict(zip(overview.columns, row, strict=True)) for row in overview.rows]
        return "\n\n".join([format_table(rows), *(fill(text, 96) for text in self.warnings())])

    def overview(self) -> PageTable:
        """Returns a row for each group: ε, its promise in short, and accuracies."""
        columns = ["method", "runs", "ε", "δ", "promise"]
        rows = []
        for group in self.groups:
            privacy = group.privacy
            promise = f"{privacy.get('model', MISSING)}, per {privacy.get('unit', MISSING)}"
            delta = number(privacy.get("delta"))
            rows.append([group.title, group.seeds, group.epsilon, delta, promise])
        for name in self._evaluations()[:1]:
            columns += self._filled(name)
            rows = [
                [*row, *(_cell(group, name, figure) for figure in self._filled(name))]
                for row, group in zip(rows, self.groups, strict=True)
            ]
        return PageTable(columns, rows, "", frozenset({2, 3, *range(5, len(columns))}))

    def _evaluations(self) -> list[str]:
        """Lists the names of all evaluations, that of suite=fast first."""
        names = {name for run in self.runs.values() for name in run.evaluations}
        return sorted(names, key=lambda name: (len(name), name))

    def _filled(self, evaluation: str) -> list[str]:
        """Lists the figures of an evaluation that any group has."""
        have = [(f, path) for f, (path, *_) in _FIGURES.items()]
        return [f for f, path in have if any(g.measured(evaluation, *path) for g in self.groups)]

    def _accuracy(self, evaluation: str) -> PageTable:
        figures = self._filled(evaluation)
        rows = []
        for group in self.groups:
            counts = group.measured(evaluation, "n")
            images = " or ".join(number(count) for count in dict.fromkeys(counts)) or MISSING
            cells = (_cell(group, evaluation, figure) for figure in figures)
            rows.append([group.title, f"{len(counts)} of {len(group.runs)}", *cells, images])
        columns = ["method", "runs evaluated", *figures, "images"]
        return PageTable(columns, rows, "", frozenset(range(1, len(columns))))

    def _states(self) -> PageTable:
        """Returns a row for each run: its state and its last figures."""
        rows = []
        for group in self.groups:
            for label, run in group.runs.items():
                last = run.rounds[-1] if run.rounds else {}
                seconds = (run.result or {}).get("seconds")
                figures = [number(last.get(key)) for key in ("round", "epsilon", "loss")]
                figures.insert(2, number(group.privacy.get("delta")))
                took = MISSING if seconds is None else duration(seconds)
                seed = shown("seed", run.config.get("seed"))
                rows.append([label, group.title, seed, status(run), *figures, took])
        columns = ["folder", "method", "seed", "state"]
        columns += ["rounds", "ε so far", "δ", "last loss", "time"]
        return PageTable(columns, rows, "", frozenset(range(4, len(columns))))


_FACTS = {
    "δ": "delta",
    "per": "unit",
    "neighbouring data sets differ in": "adjacency",
    "ε without amplification": "epsilon_unamplified",
    "mechanism": "mechanism",
    "accountant": "accountant",
    "noise": "noise",
}


def _fact(value: Any) -> str:
    return value if isinstance(value, str) else number(value)


def status(run: RecordedRun) -> str:
    """Says how far a run is, in words."""
    done = int(run.rounds[-1]["round"]) if run.rounds else 0
    if run.finished:
        return "finished"
    return f"unfinished, round {done}" if run.failure is None else f"failed after round {done}"


def mean_and_sd(values: Sequence[float], scale: float = 1.0, digits: int = 1) -> str:
    """Writes mean ± sample standard deviation, or only the mean, or `MISSING` without values."""
    if not values:
        return MISSING
    mean = f"{scale * fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {scale * stdev(values):.{digits}f}"


def _cell(group: Group, evaluation: str, figure: str) -> str:
    path, scale, digits = _FIGURES[figure]
    return mean_and_sd(group.measured(evaluation, *path), scale, digits)


def _names(groups: Sequence[Group]) -> str:
    return ", ".join(group.title for group in groups[:_MOST])


def _chart(groups: Sequence[Group], figure: str, up: str, caption: str) -> list[Chart]:
    """Draws a figure of the first groups over the rounds, the mean of a group's runs.

    Where noisy lines share axes, each shows the means of a few parts of its rounds. There is no
    chart where no run has the figure.
    """
    lines = [Line(group.title, *group.mean(figure)) for group in groups[:_MOST]]
    lines = [line for line in lines if line.x]
    if not lines:
        return []
    if len(lines) > 1 and figure != "epsilon":
        lines = [line.thinned(_PARTS) for line in lines]
    ends = (f"{line.name}: {number(line.y[-1])} in round {line.x[-1]:.0f}" for line in lines)
    alt = f"{up} over the rounds. It ends at {'; '.join(ends)}."
    if len(groups) > _MOST:
        caption += f" The first {_MOST} of {len(groups)} are shown."
    return [line_chart(lines, "round", up, alt=alt, caption=caption)]


def _grids(groups: Sequence[Group]) -> list[Picture]:
    """Returns the last picture of the first run with pictures, for each group."""
    described = []
    for group in groups:
        for run in group.runs.values():
            if run.pictures:
                round, path = list(run.pictures.items())[-1]
                seed = shown("seed", run.config.get("seed"))
                promise = f"ε = {group.epsilon}, δ = {number(group.privacy.get('delta'))}"
                caption = f"{group.title}: round {round}, seed {seed}, {promise}"
                described.append((path, f"Samples of {caption}", caption))
                break
    return pictures(described, _PICTURE_BYTES)


def _by_equal(items: Iterable[T], key: Callable[[T], Any]) -> list[list[T]]:
    """Groups items by equal keys, which need not be hashable, in the order of the first ones."""
    found: list[tuple[Any, list[T]]] = []
    for item in items:
        members = next((members for group_key, members in found if group_key == key(item)), None)
        if members is None:
            found.append((key(item), [item]))
        else:
            members.append(item)
    return [members for _, members in found]


def _runs_in(folder: Path) -> list[RecordedRun]:
    """Finds the run in a folder, or the runs in its sub-folders, 2 before 10."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder: name one that holds a run.")
    inner = [path for path in folder.iterdir() if (path / "config.yaml").is_file()]
    if (folder / "config.yaml").is_file():
        inner = [folder]
    if not inner:
        raise CheckpointError(
            f"{folder} holds no fedsink run (no config.yaml, nor one in a folder within): name a "
            "folder that `fedsink simulate` printed, or that of a sweep."
        )
    runs = [RecordedRun.of(path) for path in sorted(inner, key=lambda path: _natural(path.name))]
    for run in runs:
        if not isinstance(run.config.get("strategy"), dict) or "mode" not in run.config:
            raise CheckpointError(
                f"{run.folder.config} is not a run's configuration: name a folder that "
                "`fedsink simulate` printed."
            )
    return runs


def _natural(name: str) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _method(group: Group) -> str:
    """Returns the key and value by which a person chooses the group's method."""
    method = group.value("strategy.name")
    mode, usual = group.value("mode"), {"central": "dp_sinkhorn", "ldp": "privatize_once"}
    return f"mode={mode}" if usual.get(mode) == method else f"strategy={method}"
