"""The residual generator under every method, whole and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedsink.models import load
from fedsink.server.finished import open_run
from fedsink.simulation.simulated_run import resume, start

from .conftest import Compose, killed_at, weights

SMALL = (
    "generator=biggan", "generator.width=4", "generator.blocks=2", "generator.latent_dim=3",
    "generator.label_embedding=2", "seed=4", "rounds=6", "clients=3", "report.checkpoint_seconds=0",
)  # fmt: skip
METHODS = {
    "record": (),
    "batch": (
        "clip=batch", "strategy.self_term=semi_debiased", "strategy.solver=annealed",
        "strategy.m=1",
    ),
    "gs_wgan": ("strategy=gs_wgan", "strategy.critics=3"),
    "parameter_gradient": ("strategy=parameter_gradient",),
    "privatize_once": ("mode=ldp",),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_killed_run_continues_to_the_same_bits(
    method: str, composed: Compose, tmp_path: Path
) -> None:
    config = composed(*SMALL, *METHODS[method])
    whole = start(config, tmp_path / "whole")
    killed_at(3, lambda: start(config, tmp_path / "run"))
    assert weights(resume(tmp_path / "run")) == weights(whole)
    assert load(whole).options["width"] == 4
    pictures = [open_run(str(tmp_path / name)).draw(8, 0)[0] for name in ("run", "whole")]
    assert torch.equal(*pictures)
