"""`strategy=parameter_gradient` through configuration and engines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from fedsink_papers.parameter_gradient.strategy import ParameterGradientSettings
from safetensors.torch import load_file

from fedsink.errors import ConfigError
from fedsink.simulation.simulated_run import resume, start
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhornSettings
from tests.simulation.conftest import Compose, Configure

SMALL = ("strategy=parameter_gradient", "generator.hidden=[8]", "seed=0", "rounds=3")


@pytest.mark.medium
def test_it_is_dp_sinkhorn_with_another_bound(configured: Configure) -> None:
    """Both share the plan: ε counts uses, whatever they release."""
    ours = configured(*SMALL, "clip=batch").server.strategy
    theirs = configured(*SMALL[1:], "clip=batch").server.strategy
    assert isinstance(ours, ParameterGradientSettings)
    assert isinstance(theirs, DPSinkhornSettings)
    assert ours.plan.clip.bound == 1.0
    assert ours.plan.epsilon() == theirs.plan.epsilon()
    assert (ours.objective, ours.rows, ours.self_term) == (
        theirs.objective, theirs.rows, theirs.self_term,
    )  # fmt: skip


@pytest.mark.medium
@pytest.mark.parametrize("clip", ["record", "batch"])
def test_a_run_says_what_was_noised(composed: Compose, tmp_path: Path, clip: str) -> None:
    folder = start(composed(*SMALL, f"clip={clip}"), tmp_path / "run")
    stated = json.loads((folder / "privacy.json").read_text())
    assert stated["mechanism"].endswith("clipped gradients of the generator's weights")
    assert stated["noise_std"] == pytest.approx(stated["sigma"] * stated["sensitivity"])
    assert json.loads((folder / "metrics.json").read_text())["rounds"] == 3
    assert resume(folder) == folder


@pytest.mark.medium
def test_more_uses_in_a_message_are_refused(configured: Configure) -> None:
    with pytest.raises(ConfigError, match=r"strategy\.uses_per_message is 1, not 2"):
        configured(*SMALL, "strategy.uses_per_message=2")


@pytest.mark.medium
def test_the_experiment_is_the_published_row_with_this_strategy(configured: Configure) -> None:
    """Table 2 has this row with only the squared distance, without debiasing, and with Δ = 1."""
    ours = configured("experiment=parameter_gradient_mnist", "scale=paper", small=False).server
    theirs = configured(
        "experiment=dp_sinkhorn_mnist_l2", "scale=paper", "strategy.bound=1.0", small=False
    ).server
    assert isinstance(ours.strategy, ParameterGradientSettings)
    first, second = ours.identity(), theirs.identity()
    assert first["strategy"].pop("weights") == 0  # counted only where noise is shared
    assert first["strategy"].pop("run") != second["strategy"].pop("run")
    assert first == second


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ray", "flower"])
def test_other_engines_train_the_same_generator(
    composed: Compose, tmp_path: Path, engine: str
) -> None:
    folders = [
        start(
            composed(
                *SMALL,
                "clients=2",
                "report.pictures=0",
                "report.html=false",
                f"engine={name}",
                small=False,
            ),
            tmp_path / name,
        )
        for name in ("local", engine)
    ]
    first, second = (load_file(folder / "generator.safetensors") for folder in folders)
    for name, weights in first.items():
        torch.testing.assert_close(second[name], weights, rtol=0, atol=1e-6)
