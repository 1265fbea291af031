"""Runs side by side: finds them in folders, groups them over seeds, and limits comparisons."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple, TypeVar

from fedsink.conf.typed import shown
from fedsink.errors import CheckpointError, ConfigError
from fedsink.pages.page import MISSING, number
from fedsink.server.recorded import RecordedRun
from fedsink.values import PLACES, Config, leaves

T = TypeVar("T")

_OF_NO_LOSS = ("generator", "strategy.optimizer", "engine", "observation", "report")
_IN_A_TITLE = 3  # differing keys
_OF_ONE_RUN = ("run", "seed", "resume", "paper")
_REFERRED_TO = ("recipe", "scale", "scales")  # the keys that refer to these hold their values
_ABSENT = object()


class Promise(NamedTuple):
    """The meaning of an ε; two ε can be compared where their promises are equal.

    Attributes:
        model: "central" or "ldp".
        unit: protected by the promise, for instance a record.
        adjacency: the difference between neighbouring data sets, in words.
        delta: δ; None where nothing is promised.
    """

    model: str
    unit: str
    adjacency: str
    delta: float | None

    def __str__(self) -> str:
        model = {"central": "central model", "ldp": "local model"}.get(self.model, self.model)
        delta = "no δ" if self.delta is None else f"δ = {number(self.delta)}"
        return f"{model}, per {self.unit}, {self.adjacency}, {delta}"


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed.

    Attributes:
        title: distinguishes the group from others.
        runs: by label.
        settings: of all the runs, as `run_settings`.
    """

    title: str
    runs: Mapping[str, RecordedRun]
    settings: Mapping[str, Any]

    @property
    def first(self) -> RecordedRun:
        """The first of the runs."""
        return next(iter(self.runs.values()))

    @property
    def privacy(self) -> dict[str, Any]:
        """Content of the first run's privacy.json; {} before it is written."""
        return self.first.privacy or {}

    @property
    def promise(self) -> Promise | None:
        """Meaning of the group's ε; None before privacy.json is written."""
        stated = self.privacy
        if not stated:
            return None
        model, unit, adjacency = (str(stated.get(key)) for key in ("model", "unit", "adjacency"))
        return Promise(model, unit, adjacency, stated.get("delta"))

    def value(self, key: str) -> str:
        """Returns a configuration value as a page shows it; `MISSING` without the key."""
        return shown(key, self.settings[key]) if key in self.settings else MISSING

    @property
    def seeds(self) -> str:
        """Number of runs and their seeds, in words."""
        seeds = [run.config.get("seed") for run in self.runs.values()]
        runs = f"{len(seeds)} run{'s' if len(seeds) > 1 else ''}"
        if all(seed is None for seed in seeds):
            return f"{runs}, secret noise"
        names = ", ".join("secret" if seed is None else str(seed) for seed in seeds)
        return f"{runs}, seed{'s' if len(seeds) > 1 else ''} {names}"

    def mean(self, name: str) -> tuple[list[float], list[float | None]]:
        """Returns a figure of metrics.jsonl over the rounds, as the mean of the runs that have it.

        Args:
            name: of the figure.

        Returns:
            Rounds, and the means; both empty where no run has the figure.
        """
        values: dict[int, list[float]] = {}
        for run in self.runs.values():
            for line in run.rounds:
                if isinstance(line.get(name), int | float):
                    values.setdefault(int(line["round"]), []).append(float(line[name]))
        rounds = sorted(values)
        return [float(t) for t in rounds], [fmean(values[t]) for t in rounds]

    def measured(self, evaluation: str, *path: str) -> list[float]:
        """Returns a figure of an evaluation for each run that has it.

        Args:
            evaluation: the file's name without its ending.
            path: of the figure in it.
        """
        figures = []
        for run in self.runs.values():
            value: Any = run.evaluations.get(evaluation)
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            if isinstance(value, int | float):
                figures.append(float(value))
        return figures


@dataclass(frozen=True)
class Compared:
    """Several runs, in groups that differ only in their seed.

    Attributes:
        runs: by label, at least two.
    """

    runs: Mapping[str, RecordedRun]

    @classmethod
    def of(cls, folders: Sequence[str | Path]) -> Compared:
        """Finds the runs in some folders, each of which belongs to a run or holds several.

        Raises:
            CheckpointError: a folder holds no run.
            ConfigError: a run is named twice, or there are fewer than two.
        """
        found: list[RecordedRun] = []
        for folder in folders:
            found += map(_of_a_run, _runs_in(Path(folder).expanduser().resolve()))
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
    def groups(self) -> tuple[Group, ...]:
        """The groups, in the order of their first runs."""
        members = _by_equal(self.runs.items(), lambda entry: run_settings(entry[1].config))
        untitled = [Group("", dict(runs), settings) for settings, runs in members]
        titles = _titles(untitled)
        return tuple(
            replace(group, title=title) for group, title in zip(untitled, titles, strict=True)
        )

    @cached_property
    def differing(self) -> list[str]:
        """Configuration keys whose values differ between groups."""
        return differing([group.settings for group in self.groups])

    def by_promise(self) -> dict[Promise, list[Group]]:
        """Returns the groups by promise; the ε of one promise can be compared."""
        found: dict[Promise, list[Group]] = {}
        for group in self.groups:
            if group.promise is not None:
                found.setdefault(group.promise, []).append(group)
        return found

    def by_loss(self) -> list[list[Group]]:
        """Returns lists of groups whose losses can be compared.

        A loss is a surrogate of its method, computed from released values. It is the same quantity
        only where method, data, objective and noise are the same, that is where only generator,
        optimiser, engine, observation and report differ.
        """

        def quantity(group: Group) -> dict[str, Any]:
            return {
                key: value
                for key, value in group.settings.items()
                if not any(key == other or key.startswith(f"{other}.") for other in _OF_NO_LOSS)
            }

        return [groups for _, groups in _by_equal(self.groups, quantity)]

    def warnings(self) -> list[str]:
        """Returns the limits of this comparison, in sentences."""
        sentences = []
        described = {
            group.title: {
                key: value
                for key, value in group.settings.items()
                if key.startswith("data.") and key != "data.download"
            }
            for group in self.groups
        }
        if different := differing(list(described.values())):
            names = dict.fromkeys(group.value("data.name") for group in self.groups)
            sentences.append(
                f"These runs are of different data ({', '.join(names)}; {', '.join(different)} "
                "differ): their accuracies and pictures say nothing about each other."
            )
        roots = [(run.config.get("data") or {}).get("root") for run in self.runs.values()]
        if len(set(roots)) > 1:
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
        unfinished = [label for label, run in self.runs.items() if not run.finished]
        if unfinished:
            sentences.append(f"Not finished: {', '.join(unfinished)}. Their figures will change.")
        return sentences


def status(run: RecordedRun) -> str:
    """Says how far a run is, in words."""
    done = int(run.rounds[-1]["round"]) if run.rounds else 0
    if run.finished:
        return "finished"
    if run.failure is not None:
        return f"failed after round {done}"
    return f"unfinished, round {done}"


def mean_and_sd(values: Sequence[float], scale: float = 1.0, digits: int = 1) -> str:
    """Writes mean ± sample standard deviation, or only the mean, or `MISSING` without values."""
    if not values:
        return MISSING
    mean = f"{scale * fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {scale * stdev(values):.{digits}f}"


def run_settings(config: Config) -> dict[str, Any]:
    """Returns the settings of a run by dotted key, without its name, its seed and its places.

    Values that were left to the recipe are the recipe's. The reason for which `engine=auto` took
    its engine is left out.

    Args:
        config: of a run, all interpolations resolved.
    """
    recipe = config.get("recipe") or {}
    eps, sigma, rounds = (config.get(key) for key in ("eps", "sigma", "rounds"))
    if eps is None and sigma is None:
        eps = recipe.get("eps")
    if rounds is None and (eps is None or sigma is None or config.get("mode") == "ldp"):
        rounds = recipe.get("rounds")
    stated = {
        key: value for key, value in config.items() if key not in (*_OF_ONE_RUN, *_REFERRED_TO)
    }
    stated |= {"eps": eps, "rounds": rounds}
    left_out = (*PLACES, "engine.chosen")
    return {key: value for key, value in leaves(stated) if key not in left_out}


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lists the keys whose values differ between some settings, keys of no group first.

    >>> differing([{"eps": 1.0, "rate": 0.2}, {"eps": 3.0, "rate": 0.2}])
    ['eps']
    """
    keys = dict.fromkeys(key for values in settings for key in values)
    different = [key for key in keys if _several([values.get(key, _ABSENT) for values in settings])]
    return sorted(different, key=lambda key: "." in key)


def _several(values: Sequence[object]) -> bool:
    return any(value != values[0] for value in values[1:])


def _by_equal(items: Iterable[T], key: Callable[[T], Any]) -> list[tuple[Any, list[T]]]:
    """Groups items by equal keys, which need not be hashable, in the order of the first ones."""
    found: list[tuple[Any, list[T]]] = []
    for item in items:
        wanted = key(item)
        members = next((members for known, members in found if known == wanted), None)
        if members is None:
            found.append((wanted, [item]))
        else:
            members.append(item)
    return found


def _runs_in(folder: Path) -> list[RecordedRun]:
    """Finds the run in a folder, or the runs in its sub-folders."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder: name one that holds a run.")
    if (folder / "config.yaml").is_file():
        return [RecordedRun.of(folder)]
    inner = [path for path in folder.iterdir() if (path / "config.yaml").is_file()]
    if not inner:
        raise CheckpointError(
            f"{folder} holds no fedsink run (no config.yaml, nor one in a folder within): name a "
            "folder that `fedsink simulate` printed, or that of a sweep."
        )
    return [RecordedRun.of(path) for path in sorted(inner, key=lambda path: _natural(path.name))]


def _of_a_run(run: RecordedRun) -> RecordedRun:
    if not isinstance(run.config.get("strategy"), dict) or "mode" not in run.config:
        raise CheckpointError(
            f"{run.folder.config} is not a run's configuration: name a folder that "
            "`fedsink simulate` printed."
        )
    return run


def _natural(name: str) -> list[tuple[int, str]]:
    """Makes a sort key that puts 2 before 10."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _typed(group: Group) -> str:
    """Returns the key and value by which a person chooses the group's method."""
    method = group.value("strategy.name")
    if "mode" not in group.settings:
        return method
    mode, usual = group.value("mode"), {"central": "dp_sinkhorn", "ldp": "privatize_once"}
    return f"mode={mode}" if usual.get(mode) == method else f"strategy={method}"


def _titles(groups: Sequence[Group]) -> list[str]:
    """Makes a title for each group: its method, then its differences from groups of this method."""
    methods = [_typed(group) for group in groups]
    titles = []
    for method, group in zip(methods, groups, strict=True):
        same = [other for name, other in zip(methods, groups, strict=True) if name == method]
        keys = differing([other.settings for other in same])[:_IN_A_TITLE]
        titles.append(", ".join([method, *(f"{key}={group.value(key)}" for key in keys)]))
    return [
        f"{title} ({next(iter(group.runs))})" if titles.count(title) > 1 else title
        for title, group in zip(titles, groups, strict=True)
    ]
