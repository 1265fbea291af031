"""What `fedsink evaluate` found out about a run, beside the ceiling, the floor and the papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from fedsink.pages.tables import MISSING, Table, number
from fedsink.server.recorded import RecordedRun

SUITES = ("evaluation-full", "evaluation-paper", "evaluation")
"""Files of figures, the one that says most first."""

NAMES = {
    "logreg": "logistic regression",
    "mlp": "multilayer perceptron",
    "cnn": "convolutional network",
    "nearest_class_mean": "nearest class mean",
}
_NEAR = 0.01


def accuracy_table(run: RecordedRun) -> Table | None:
    """Accuracies of classifiers trained on synthetic pictures, beside what they compare with.

    Returns:
        A row per classifier of the most telling evaluation; None where none was measured.
    """
    for suite in SUITES:
        if rows := _accuracies(run.evaluations.get(suite, {})):
            break
    else:
        return None
    published = published_rows(run)
    columns = ["classifier", "this run", "real pictures (ceiling)", "class means (floor)"]
    columns += [row["method"] for row in published]
    body = [
        [NAMES.get(name, name), *cells, *(_percent(row.get(name)) for row in published)]
        for name, cells in rows.items()
    ]
    return _without_gaps(columns, body)


def figure_table(run: RecordedRun) -> Table | None:
    """Every other figure of the most telling evaluation that has any; None without."""
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
            for key, title in (("w2", "Wasserstein-2"), ("sliced_w2", "sliced Wasserstein-2"))
            if key in evaluation
        ]
        if rows:
            return _without_gaps(["figure", "this run", "real data", "class means"], rows)
    return None


def measured(run: RecordedRun) -> list[str]:
    """How each evaluation was made, in a sentence."""
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


def published_rows(run: RecordedRun) -> list[dict[str, Any]]:
    """What papers report for the run's dataset, in the central mode, at its ε and δ."""
    stated = run.privacy or {}
    epsilon, delta = stated.get("epsilon"), stated.get("delta")
    if stated.get("model") != "central" or epsilon is None:
        return []
    return [
        row
        for row in _published()
        if row["data"] == run.config["data"]["name"]
        and row["delta"] == delta
        and abs(epsilon - row["eps"]) <= _NEAR * row["eps"]
    ]


_COLUMNS = ("synthetic", "real", "class_means")


def _accuracies(evaluation: Mapping[str, Any]) -> dict[str, list[str]]:
    """Cells of synthetic, real and class means by classifier."""
    figures = {
        name.removeprefix("accuracy/"): [
            _spread(figure.get(column), percent=True) for column in _COLUMNS
        ]
        for name, figure in evaluation.get("figures", {}).items()
        if name.startswith("accuracy/")
    }
    if figures:
        return figures
    real = evaluation.get("real_accuracy", {})
    return {
        name: [_percent(100 * value), _percent(100 * real[name] if name in real else None), MISSING]
        for name, value in evaluation.get("accuracy", {}).items()
    }


def _spread(values: Mapping[str, Any] | None, *, percent: bool = False) -> str:
    """Mean ± standard deviation, as far as they are known."""
    if not values:
        return MISSING
    mean, sd = values["mean"], values.get("sd")
    if percent:
        return f"{100 * mean:.1f}{'' if sd is None else f' ± {100 * sd:.1f}'} %"
    return number(mean) + ("" if sd is None else f" ± {number(sd, 2)}")


def _without_gaps(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table of numbers without the columns in which nothing was measured."""
    kept = [k for k in range(len(columns)) if k == 0 or any(row[k] != MISSING for row in rows)]
    cells = [[row[k] for k in kept] for row in rows]
    return Table([columns[k] for k in kept], cells, numeric=frozenset(range(1, len(kept))))


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1f} %"


@cache
def _published() -> list[dict[str, Any]]:
    text = files(__package__).joinpath("published.yaml").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = yaml.safe_load(text)
    return rows
