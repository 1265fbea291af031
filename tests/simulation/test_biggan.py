"""The residual generator under every method and engine, whole and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedsink.models import load
from fedsink.server.finished import open_run
from fedsink.server.folder import RunFolder
from fedsink.simulation.simulated_run import resume, start

from .conftest import Compose

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


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


class _Killed(BaseException):
    """Ends a run like kill -9: nothing of ours catches it."""


def weights(folder: Path) -> bytes:
    return (folder / "generator.safetensors").read_bytes()


_FIRST = ("record", "gs_wgan")


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [pytest.param(m, marks=() if m in _FIRST else pytest.mark.slow) for m in METHODS],
)
def test_a_killed_run_continues_to_the_same_bits(
    method: str, composed: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = composed(*SMALL, *METHODS[method])
    whole = start(config, tmp_path / "whole")
    log = RunFolder.log

    def killed(folder: RunFolder, record: dict[str, Any]) -> None:
        log(folder, record)
        if record["round"] == 3:
            raise _Killed

    with monkeypatch.context() as kill:
        kill.setattr(RunFolder, "log", killed)
        with pytest.raises(_Killed):
            start(config, tmp_path / "run")
    assert weights(resume(tmp_path / "run")) == weights(whole)
    assert load(whole).options["width"] == 4
    pictures = [open_run(str(tmp_path / name)).draw(8, 0)[0] for name in ("run", "whole")]
    assert torch.equal(*pictures)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["record", "batch"])
def test_ray_trains_the_same_generator(method: str, composed: Compose, tmp_path: Path) -> None:
    common = (*SMALL, *METHODS[method], "capacity=auto")
    folders = [
        start(composed(*common, f"engine={name}"), tmp_path / name) for name in ("local", "ray")
    ]
    local, other = (load_file(folder / "generator.safetensors") for folder in folders)
    for name, tensor in local.items():
        torch.testing.assert_close(other[name], tensor, rtol=0, atol=1e-4)
