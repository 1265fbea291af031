"""`objective=KEY`: the number that a run of a sweep returns, and the price of choosing by it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsink.errors import ConfigError
from fedsink.values import leaves, read_json


class NoFigureError(ConfigError):
    """A finished run has no number of the objective's name: the sweep ends there."""


@dataclass(frozen=True)
class SweepObjective:
    """A figure of a finished run, by which a sweeper chooses among runs."""

    key: str  # `metrics.KEY`, of metrics.json or metrics.jsonl's last line, or `evaluation.KEY`

    def __post_init__(self) -> None:
        source, _, name = self.key.partition(".")
        if source not in ("metrics", "evaluation") or not name:
            raise ConfigError(
                f"objective={self.key} must be metrics.KEY or evaluation.KEY, such as "
                "metrics.loss or evaluation.accuracy.cnn."
            )

    def value(self, folder: Path) -> float:
        """Returns the figure of the run in a folder, which is evaluated where the key asks."""
        source, _, name = self.key.partition(".")
        if source == "evaluation":
            from fedsink.simulation.run_figures import evaluate_run

            found = evaluate_run(str(folder)).figures
        else:
            lines = folder / "metrics.jsonl"
            last = (lines.read_text("utf-8").splitlines() if lines.is_file() else [])[-1:]
            found = read_json(last[0]) if last else {}
            found |= read_json((folder / "metrics.json").read_bytes())
        figures = dict(leaves(found))
        value = figures.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            numbers = ", ".join(
                f"{source}.{k}" for k, v in figures.items() if type(v) in (int, float)
            )
            raise NoFigureError(f"{folder} has no number {self.key}: choose one of {numbers}.")
        if not math.isfinite(value):
            raise ConfigError(f"{self.key} of {folder} is {value}: the run is no choice.")
        return float(value)


def price_of_choice(folders: Sequence[Path]) -> str:
    """Says the cost of publishing the best of several runs; "" where fewer than two have one.

    The choice among N runs of the guarantees (ε_i, δ_i) is (Σ ε_i, Σ δ_i)-private, however the
    next run depends on those before it. Where every run is the same random draw of settings and
    their number was drawn from the Poisson law of mean N, publishing the best one costs less:
    dp_accounting's `RepeatAndSelectDpEvent` (Papernot and Steinke 2022, Theorem 6) of the
    costliest plan, by Rényi DP. It is stated where every run is a Poisson-subsampled Gaussian
    under add-remove.

    Guarantees:
        - Both hold only if the objective is private itself: a figure of metrics.*. Figures that
          `fedsink evaluate` computes on real data are covered by no ε.
    """
    promises = [read_json((folder / "privacy.json").read_bytes()) for folder in folders]
    promises = [entries for entries in promises if entries.get("epsilon") is not None]
    if len(promises) < 2:
        return ""
    epsilon, delta = (
        sum(float(entries[key]) for entries in promises) for key in ("epsilon", "delta")
    )
    text = (
        f"The best of {len(promises)} runs, chosen by private data, costs ε = {epsilon:.4g}, "
        f"δ = {delta:.3g} (sum of the runs), not the ε of one run."
    )
    if any(_event(entries) is None for entries in promises):
        return text
    delta = max(float(entries["delta"]) for entries in promises)
    selected = max(_of_poisson_many(_event(entries), len(promises), delta) for entries in promises)
    return (
        f"{text} Had their number been drawn from a Poisson law of mean {len(promises)}, and "
        f"settings at random for each: ε = {selected:.4g} at δ = {delta:.3g}."
    )


def _event(promise: Mapping[str, Any]) -> Any:
    """Returns the event of a run by its privacy.json, or None where it is another mechanism."""
    from fedsink.privacy import RecordClip, poisson_gaussian
    from fedsink.privacy.adjacency import ADD_REMOVE

    plain = promise.get("adjacency_name") == ADD_REMOVE and promise.get("clip") == RecordClip.name
    if not plain or promise.get("capacity") or promise.get("noise_share"):
        return None
    return poisson_gaussian(promise["rate"], promise["sigma"], promise["rounds_per_record"])


def _of_poisson_many(event: Any, runs: int, delta: float) -> float:
    from dp_accounting.dp_event import RepeatAndSelectDpEvent

    from fedsink.privacy import epsilon

    return epsilon(RepeatAndSelectDpEvent(event, runs, math.inf), delta, "rdp")
