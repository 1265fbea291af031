"""Simulated clients whose critics learn: runs that continue, and the owner of each client."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import RecordDict
from safetensors.torch import load_file

from fedsink.errors import FedsinkError
from fedsink.protocol.exchange import Broadcast, Content, Exchange
from fedsink.server.folder import RunFolder
from fedsink.simulation.grid import divide
from fedsink.simulation.simulated_run import resume, start

Compose = Callable[..., Any]
SMALL = (
    "strategy=gs_wgan", "clients=4", "rounds=9", "strategy.critics=3", "strategy.critic.warm=2",
    "strategy.critic.steps=1", "report.checkpoint_seconds=0",
)  # fmt: skip


class _Killed(BaseException):
    """Ends a run like kill -9: nothing of ours catches it."""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for keys."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def killed_at(round: int, play: Callable[[], object]) -> None:
    log = RunFolder.log

    def logged(folder: RunFolder, record: dict[str, Any]) -> None:
        log(folder, record)
        if record["round"] == round:
            raise _Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "log", logged)
        with pytest.raises(_Killed):
            play()


def generator(folder: Path) -> bytes:
    return (folder / "generator.safetensors").read_bytes()


PUBLISHED = ("strategy.published=true", "strategy.critics=1", "strategy.row_sigma=1")


@pytest.mark.medium
@pytest.mark.quick("in turn")
@pytest.mark.parametrize(
    ("overrides", "asked"),
    [((), 4), (("strategy.turns=2",), 4), (PUBLISHED, 3)],  # by the fourth round
    ids=["all", "in turn", "picked"],
)
def test_a_killed_run_goes_on_with_the_critics_of_its_checkpoint(
    composed: Compose, tmp_path: Path, state: Path, overrides: tuple[str, ...], asked: int
) -> None:
    config = composed("seed=3", *SMALL, *overrides)
    whole = start(config, tmp_path / "whole")
    assert not list(state.rglob("*.state"))
    run = tmp_path / "run"
    killed_at(4, lambda: start(config, run))
    states = list(state.rglob("*.state"))
    assert len({path.parent for path in states}) == asked
    assert {path.stat().st_mode & 0o777 for path in states} == {0o600}
    assert not list(run.rglob("*.state"))
    killed_at(7, lambda: resume(run))
    resume(run)
    assert generator(run) == generator(whole)
    assert not list(state.rglob("*.state"))


@pytest.mark.medium
def test_a_run_whose_critics_are_lost_does_not_go_on_in_silence(
    composed: Compose, tmp_path: Path, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    killed_at(4, lambda: start(composed("seed=3", *SMALL), run))
    [folder] = state.rglob("*.states")
    shutil.rmtree(folder)
    with pytest.raises(FedsinkError):
        resume(run)
    assert "have been trained in 0 rounds and not in 3: continue from" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ray", "flower"])
@pytest.mark.parametrize("overrides", [("strategy.turns=2",), PUBLISHED], ids=["in turn", "picked"])
def test_every_engine_ends_with_the_generator_of_the_local_one(
    composed: Compose, tmp_path: Path, engine: str, overrides: tuple[str, ...]
) -> None:
    """Equal up to the rounding of three rounds."""
    few = ("seed=3", *SMALL, "rounds=3", *overrides)
    local = start(composed(*few), tmp_path / "local")
    other = start(composed(*few, f"engine={engine}", small=False), tmp_path / engine)
    ours, theirs = (load_file(run / "generator.safetensors") for run in (local, other))
    for name, values in ours.items():
        assert torch.allclose(values.double(), theirs[name].double(), atol=1e-3)


@pytest.mark.parametrize("actors", [2, 3, 5])
def test_a_client_stays_with_its_cohort_from_turn_to_turn(actors: int) -> None:
    """A client's states are in the memory of the process that owns the client."""
    owners: dict[int, set[int]] = {}
    for round in range(12):
        asked = {client: 1000 + client for client in range(round % 3, 400, 3)}
        content = Content(None, RecordDict)
        exchange = Exchange("train.gs_wgan", "", [Broadcast(content, asked, (1,))])
        for owner, share in enumerate(divide(exchange, actors)):
            for part in share:
                for client in part.clients:
                    owners.setdefault(client, set()).add(owner)
    assert len(owners) == 400
    assert {len(each) for each in owners.values()} == {1}
