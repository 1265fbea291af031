"""Figures of `fedsink evaluate` for a run, beside the ceiling and the floor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedsink.results.pages.page import MISSING, PageTable, number
from fedsink.server.folder import RecordedRun

SUITES = ("evaluation-full", "evaluation-paper", "evaluation")
"""Files of figures, the most telling first."""

NAMES = {
    "logreg": "logistic regression",
    "mlp": "multilayer perceptron",
    "cnn": "convolutional network",
    "nearest_class_mean": "nearest class mean",
}
_DISTANCES = {
    "fid": "Fréchet Inception distance",
    "w2": "Wasserstein-2",
    "sliced_w2": "sliced Wasserstein-2",
}


def accuracy_table(run: RecordedRun) -> PageTable | None:
    """Returns accuracies of the most telling evaluation, beside references; None without any."""
    for suite in SUITES:
        if rows := accuracies(run.evaluations.get(suite, {})):
            break
    else:
        return None
    columns = ["classifier", "this run", "real pictures (ceiling)", "class means (floor)"]
    return _without_gaps(columns, [[NAMES.get(name, name), *cells] for name, cells in rows.items()])


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


_COLUMNS = ("synthetic", "real", "class_means")


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
    columns = ("accuracy", "real_accuracy", "class_means_accuracy")
    fast = [evaluation.get(key, {}) for key in columns]
    return {
        name: [f"{100 * column[name]:.1f} %" if name in column else MISSING for column in fast]
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
    full = [k for k in range(len(columns)) if k == 0 or any(row[k] != MISSING for row in rows)]
    cells = [[row[k] for k in full] for row in rows]
    return PageTable([columns[k] for k in full], cells, numeric=frozenset(range(1, len(full))))
