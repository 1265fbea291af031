"""Figures of `fedsink evaluate` for a run, beside the ceiling, the floor and the papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from fedsink.pages.page import MISSING, PageTable, number
from fedsink.server.recorded import RecordedRun

SUITES = ("evaluation-full", "evaluation-paper", "evaluation")
"""Files of figures, the most telling first."""

CLASSIFIERS = ("logreg", "mlp", "cnn")
"""Classifiers of the papers, in the order of their tables."""

NAMES = {
    "logreg": "logistic regression",
    "mlp": "multilayer perceptron",
    "cnn": "convolutional network",
    "nearest_class_mean": "nearest class mean",
}
_NEAR = 0.01
_DISTANCES = {
    "fid": "Fréchet Inception distance",
    "w2": "Wasserstein-2",
    "sliced_w2": "sliced Wasserstein-2",
}


def accuracy_table(run: RecordedRun) -> PageTable | None:
    """Returns accuracies of classifiers trained on synthetic pictures, beside references.

    Returns:
        A row per classifier of the most telling evaluation; None where none was measured.
    """
    for suite in SUITES:
        if rows := accuracies(run.evaluations.get(suite, {})):
            break
    else:
        return None
    beside = comparable(run)
    columns = ["classifier", "this run", "real pictures (ceiling)", "class means (floor)"]
    columns += [figures.name for figures in beside]
    body = [
        [NAMES.get(name, name), *cells, *(_percent(f.accuracy.get(name)) for f in beside)]
        for name, cells in rows.items()
    ]
    return _without_gaps(columns, body)


def figure_table(run: RecordedRun) -> PageTable | None:
    """Returns all other figures of the most telling evaluation that has any, or None."""
    for suite in SUITES:
        evaluation = run.evaluations.get(suite, {})
        figures: Mapping[str, Any] = evaluation.get("figures", {})
        rows = [
            [name, *(_spread(figure.get(column)) for column in _COLUMNS)]
            for name, figure in figures.items()
            if not name.startswith("accuracy/")
        ]
        rows += [
            [title, number(evaluation[key]), MISSING, MISSING]
            for key, title in _DISTANCES.items()
            if key in evaluation
        ]
        if rows:
            return _without_gaps(["figure", "this run", "real data", "class means"], rows)
    return None


def measured(run: RecordedRun) -> list[str]:
    """Describes each evaluation in a sentence."""
    told = []
    for name, evaluation in run.evaluations.items():
        seeds: Sequence[object] = evaluation.get("seeds") or [evaluation.get("seed")]
        runs = f"{len(seeds)} runs" if len(seeds) > 1 else "one run"
        observed = "with" if evaluation.get("observation") else "without"
        told.append(
            f"{name}.json: suite={evaluation.get('suite', 'fast')}, {number(evaluation.get('n'))} "
            f"synthetic records, {runs}, {observed} the observation model."
        )
    return told


@dataclass(frozen=True)
class Published:
    """Figures that a paper prints, in percent.

    Attributes:
        paper, table, variant: the source, and the paper's name of the method.
        data: fedsink's name of the dataset.
        eps, delta: stated by the paper; None without privacy.
        accuracy: by classifier; None where the paper prints none.
        page: True where pages about runs show the figures.
    """

    paper: str
    table: str
    variant: str
    data: str
    eps: float | None
    delta: float | None
    accuracy: Mapping[str, float | None]
    page: bool

    @property
    def name(self) -> str:
        """Variant and source."""
        return f"{self.variant} ({self.paper}, Table {self.table})"

    @property
    def triple(self) -> str:
        """Figures side by side, with as many decimals as the paper has."""
        return " / ".join(MISSING if v is None else str(v) for v in self.accuracy.values())


@cache
def published() -> dict[str, Published]:
    """Reads all entries of published.yaml, by key."""
    text = files(__package__).joinpath("published.yaml").read_text(encoding="utf-8")
    return {
        key: Published(
            accuracy=dict(zip(CLASSIFIERS, entry.pop("figures"), strict=True)),
            page=entry.pop("page", False),
            **entry,
        )
        for key, entry in yaml.safe_load(text).items()
    }


def comparable(run: RecordedRun) -> list[Published]:
    """Returns the published figures whose promise is the run's: ε of a record's presence."""
    return _at_its_epsilon(run) if _is_per_record(run) else []


def comparison_note(run: RecordedRun) -> str:
    """Says why papers' figures are left out, or how they differ; "" without a reason."""
    if not _at_its_epsilon(run):
        return ""
    if not _is_per_record(run):
        return (
            "Papers' figures at this ε and δ are left out: they are about a single record that is "
            "there or not, this run's ε is about another change of the data "
            f"({(run.privacy or {}).get('adjacency')})."
        )
    evaluation = next((run.evaluations[s] for s in SUITES if s in run.evaluations), {})
    if not evaluation.get("observation"):
        return ""
    return (
        "Papers' figures are of pictures as a generator draws them; those of this run were drawn "
        "with its observation model. fedsink evaluate observation=false measures bare ones."
    )


def _at_its_epsilon(run: RecordedRun) -> list[Published]:
    stated = run.privacy or {}
    epsilon, delta = stated.get("epsilon"), stated.get("delta")
    if stated.get("model") != "central" or epsilon is None:
        return []
    return [
        entry
        for entry in published().values()
        if entry.page
        and entry.eps is not None
        and entry.data == run.config["data"]["name"]
        and entry.delta == delta
        and abs(epsilon - entry.eps) <= _NEAR * entry.eps
    ]


def _is_per_record(run: RecordedRun) -> bool:
    return (run.privacy or {}).get("adjacency_name") == "add-remove"


_COLUMNS = ("synthetic", "real", "class_means")
_FAST_COLUMNS = ("accuracy", "real_accuracy", "class_means_accuracy")


def accuracies(evaluation: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the cells of synthetic, real and class means by classifier."""
    figures = {
        name.removeprefix("accuracy/"): [
            _spread(figure.get(column), percent=True) for column in _COLUMNS
        ]
        for name, figure in evaluation.get("figures", {}).items()
        if name.startswith("accuracy/")
    }
    if figures:
        return figures
    fast = [evaluation.get(key, {}) for key in _FAST_COLUMNS]
    return {
        name: [_percent(100 * column[name] if name in column else None) for column in fast]
        for name in fast[0]
    }


def _spread(values: Mapping[str, Any] | None, *, percent: bool = False) -> str:
    """Writes mean ± standard deviation, as far as they are known."""
    if not values:
        return MISSING
    mean, sd = values["mean"], values.get("sd")
    if percent:
        return f"{100 * mean:.1f}{'' if sd is None else f' ± {100 * sd:.1f}'} %"
    return number(mean) + ("" if sd is None else f" ± {number(sd, 2)}")


def _without_gaps(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> PageTable:
    """Makes a table without the columns in which nothing was measured."""
    kept = [k for k in range(len(columns)) if k == 0 or any(row[k] != MISSING for row in rows)]
    cells = [[row[k] for k in kept] for row in rows]
    return PageTable([columns[k] for k in kept], cells, numeric=frozenset(range(1, len(kept))))


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1f} %"
