from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from fedsink.clients.node import close_nodes
from fedsink.conf import loading
from fedsink.server.folder import RunFolder
from fedsink.simulation.experiment import Experiment
from fedsink.simulation.run_identity import RunIdentity

from ..support.policies import CENTRAL, DIGITS, limits, policy

Config = dict[str, Any]
Compose = Callable[..., Config]
Configure = Callable[..., Experiment]


def write_policy(folder: Path) -> Path:
    """A policy file for the digits."""
    path = folder / "policy.toml"
    allow = {"maximum_clip_bound": 3.0, "maximum_images": 4000}
    budget = {"add-remove": limits(10.0)}
    path.write_text(policy(budget=budget, mechanisms=CENTRAL, data=DIGITS, allow=allow))
    return path


_SMALL = ("engine=local", "clients=2", "rounds=20", "report.pictures=0", "report.html=false")


@pytest.fixture
def composed() -> Compose:
    """The configuration that `fedsink simulate` would see, small unless overridden."""

    def config(*overrides: str, small: bool = True) -> Config:
        found = loading.composed([*(_SMALL if small else ()), *overrides])
        resolved: Any = OmegaConf.to_container(found, resolve=True, throw_on_missing=True)
        return resolved

    return config


@pytest.fixture
def configured(composed: Compose, tmp_path: Path) -> Configure:
    """The settings of a run in `tmp_path / "run"`."""

    def settings(*overrides: str, small: bool = True) -> Experiment:
        config = composed(*overrides, small=small)
        return Experiment.of(config, RunIdentity.fresh(config["seed"]))

    return settings


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for keys."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


class _Killed(BaseException):
    """Ends a run like kill -9: nothing of ours catches it."""


def killed_at(round: int, play: Callable[[], object]) -> None:
    """Plays a run that is killed when this round has been logged."""
    log = RunFolder.log

    def logged(folder: RunFolder, record: dict[str, Any]) -> None:
        log(folder, record)
        if record["round"] == round:
            raise _Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "log", logged)
        with pytest.raises(_Killed):
            play()


def weights(folder: Path) -> bytes:
    """A run's generator."""
    return (folder / "generator.safetensors").read_bytes()


@pytest.fixture(autouse=True)
def _fresh_nodes() -> Iterator[None]:
    """Ends virtual clients, which live in this process, with their test."""
    yield
    close_nodes()
