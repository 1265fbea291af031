"""Simulated clients whose critics learn: runs that continue, and the owner of each client."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from flwr.app import RecordDict

from fedsink.errors import FedsinkError
from fedsink.protocol.exchange import Broadcast, Content, Exchange
from fedsink.simulation.grid import divide
from fedsink.simulation.simulated_run import resume, start

from .conftest import Compose, killed_at, weights

SMALL = (
    "strategy=gs_wgan", "clients=4", "rounds=9", "strategy.critics=3", "strategy.critic.warm=2",
    "strategy.critic.steps=1", "report.checkpoint_seconds=0",
)  # fmt: skip


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
    assert weights(run) == weights(whole)
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
