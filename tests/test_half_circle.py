from __future__ import annotations

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from fedsink.conf.loading import composed
from fedsink.data.sources import load
from fedsink.results.evaluation import exact_w2
from fedsink.server.finished import open_run
from fedsink.simulation.simulated_run import start

# A public disc of radius 2 around the arc of radius 1: f leaves the generator free to be wrong. On
# the unit disc it would help both, by projecting an over-dispersed generator back onto the arc.
LAPLACE = ["mode=ldp", "data=half_circle", "engine=local", "sigma=0.483", "map.radius=2", "seed=0"]


def distance(folder: Path, *overrides: str) -> float:
    config = composed([*LAPLACE, "report.pictures=0", "report.html=false", *overrides])
    start(OmegaConf.to_container(config, resolve=True), folder)
    run = open_run(str(folder))
    real, _ = load(run.data, "test").take(torch.arange(1000))
    return exact_w2(run.draw(1000, seed=1)[0], real)


@pytest.mark.slow
def test_the_matched_cost_recovers_the_half_circle(tmp_path):
    """Theorem 1, at Laplace noise of scale 0.483 on 5000 points."""
    assert distance(tmp_path / "matched") < 0.30


@pytest.mark.slow
def test_a_tenth_of_the_matched_regularisation_does_not(tmp_path: Path) -> None:
    """The noise stays in the generator: the test above measures the matching, not the GAN."""
    unmatched = ["strategy.unmatched=true", "strategy.lam=0.0483"]
    assert distance(tmp_path / "unmatched", *unmatched) > 0.42


@pytest.mark.slow
def test_the_debiased_loss_learns_the_noise(tmp_path):
    """The Sinkhorn divergence is least at the distribution of the records."""
    assert distance(tmp_path / "run", "strategy.loss=debiased", "strategy.batch=150") > 0.42
