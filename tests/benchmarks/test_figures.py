"""The papers' figures, small."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Script = Callable[[str], Any]


def test_moments_are_those_of_the_draws(script: Script) -> None:
    draws = torch.randn(400, 5, generator=torch.Generator().manual_seed(0)) * 2.0 + 1.0
    found = script("gradient_bias").Moments.of(draws)
    torch.testing.assert_close(found.mean, draws.mean(0))
    assert found.variance == pytest.approx(float(draws.var(0).sum()), rel=1e-5)
    assert found.of_mean == found.variance / 400


@pytest.mark.medium
def test_larger_batches_have_less_bias_and_less_variance(script: Script) -> None:
    bias = script("gradient_bias")
    gradient = bias.GradientOf(
        ["clip=batch", "rounds=1", "sigma=1", "strategy.lam=0.5", "strategy.solver=annealed"]
    )
    reference = bias.reference_gradient(gradient, 150, 4)
    small, large = (
        bias.bias_and_deviation(gradient, 0.0, n=n, repeats=15, reference=reference)
        for n in (8, 80)
    )
    assert small["bias"] > 1.5 * large["bias"]
    assert small["deviation"] > 1.5 * large["deviation"]
    assert small["error"] == pytest.approx((small["bias"] ** 2 + small["deviation"] ** 2) ** 0.5)


@pytest.mark.medium
def test_the_bias_figure_is_drawn_with_its_numbers(
    script: Script, tmp_path: Path, tiny_data: Path
) -> None:
    options = ["--folder", str(tmp_path), "--data", str(tiny_data), "--also", "scale=smoke"]
    small = ["--repeats", "3", "--batch", "10", "--reference", "20", "--p", "0", "1"]
    assert script("figures").main(["bias", *options, *small]) == 0
    lines = [json.loads(line) for line in (tmp_path / "bias.jsonl").read_text().splitlines()]
    assert [line["p"] for line in lines] == [0.0, 1.0]
    assert (tmp_path / "bias.png").read_bytes().startswith(b"\x89PNG")
    assert script("figures").main(["bias", *options, "--repeats", "1"]) == 2


OF_RUNS = [
    ("epsilon", ["--eps", "1", "10"], 2),
    ("epsilon", ["--eps", "10", "--beside", "dp_sinkhorn_mnist_m3"], 2),
    ("robustness", ["--lr", "1e-3", "--optimizers", "adam", "sgd"], 2),
    ("losses", ["--p", "0", "1", "--m", "1"], 2),
]


@pytest.mark.medium
@pytest.mark.parametrize(("figure", "grid", "runs"), OF_RUNS)
def test_recorded_runs_are_drawn(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkout: Path,
    figure: str, grid: list[str], runs: int,
) -> None:  # fmt: skip
    figures, asked = script("figures"), []

    def known(self: Any, arguments: list[str], evaluate: Any = ()) -> dict[str, Any]:
        asked.append(arguments)
        return {"accuracy": {"logreg": 0.8, "mlp": 0.82, "cnn": 0.85}}

    monkeypatch.setattr(figures.Runs, "known", known)
    monkeypatch.setattr(figures, "ROOT", checkout)
    assert figures.main([figure, "--folder", str(tmp_path), "--seeds", "0", "1", *grid]) == 0
    assert len(asked) == 2 * runs
    assert (tmp_path / f"{figure}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize(("figure", "grid", "runs"), OF_RUNS)
def test_the_figures_of_runs_are_drawn(
    script: Script, tmp_path: Path, tiny_data: Path, checkout: Path,
    monkeypatch: pytest.MonkeyPatch, figure: str, grid: list[str], runs: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(script("figures"), "ROOT", checkout)
    options = ["--folder", str(tmp_path), "--data", str(tiny_data), "--also", "scale=smoke"]
    assert script("figures").main([figure, *options, "--n", "100", "--seeds", "0", *grid]) == 0
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == runs
    assert (tmp_path / f"{figure}.png").read_bytes().startswith(b"\x89PNG")
