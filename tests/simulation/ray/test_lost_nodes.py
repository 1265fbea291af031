"""Nodes of a Ray cluster that go and come in the middle of a run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsink.errors import ClientError
from fedsink.server.folder import RunFolder
from fedsink.simulation.simulated_run import resume, start

from ..conftest import Compose, weights
from .nodes import Nodes

pytestmark = pytest.mark.slow

_RUN = (
    *("seed=5", "clients=5", "rounds=12", "strategy.schedule=joint"),
    *("report.pictures=0", "report.html=false"),
)
_PHONES = 100_000


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ...]:
    """Five clients; with the parameter "phones" very many, of one record each."""
    if getattr(request, "param", None) is None:
        return _RUN
    random, data = np.random.default_rng(0), tmp_path / "phones"
    data.mkdir()
    for split, size in (("train", _PHONES), ("test", 100)):
        pictures = random.integers(0, 256, (size, 1, 8, 8), dtype=np.uint8)
        np.savez(data / f"{split}.npz", x=pictures, y=np.arange(size) % 2)
    facts = ("shape=[1,8,8]", "classes=[a,b]", f"nominal_records={_PHONES}", f"root={data}")
    described = ("data=npz", *(f"data.{fact}" for fact in facts))
    return (*_RUN, *described, f"clients={_PHONES}", "rate=0.01", "strategy.rows=20")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    running = Nodes(tmp_path)
    yield running
    running.close()


@pytest.fixture
def expected(composed: Compose, tmp_path: Path, run: tuple[str, ...]) -> bytes:
    """The generator of the same run in one process."""
    return weights(start(composed(*run, "engine=local"), tmp_path / "local"))


def cluster_run(
    composed: Compose, nodes: Nodes, *more: str, run: tuple[str, ...] = _RUN
) -> dict[str, Any]:
    engine = ("engine=ray", f"engine.address={nodes.address}")
    return composed(*run, *engine, *more, small=False)


def meanwhile(monkeypatch: pytest.MonkeyPatch, acts: dict[int, Callable[[], object]]) -> None:
    """Acts when a round has been logged."""
    log = RunFolder.log

    def logged(folder: RunFolder, record: dict[str, Any]) -> None:
        log(folder, record)
        acts.pop(record["round"], lambda: None)()

    monkeypatch.setattr(RunFolder, "log", logged)


@pytest.mark.parametrize("run", [pytest.param(None, id="five"), "phones"], indirect=True)
def test_the_clients_of_a_lost_node_go_on_at_one_that_joins_later(
    nodes: Nodes,
    composed: Compose,
    tmp_path: Path,
    run: tuple[str, ...],
    expected: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes.add()
    lost = nodes.add()
    later = threading.Timer(6.0, nodes.add)  # no core is spare until then

    def power_cut() -> None:
        nodes.kill(lost)
        later.start()

    meanwhile(monkeypatch, {4: power_cut})
    folder = start(cluster_run(composed, nodes, run=run), tmp_path / "run")
    assert later.finished.is_set()
    assert weights(folder) == expected


def test_without_another_node_the_run_stops_in_time_and_resumes_to_the_same_bytes(
    nodes: Nodes,
    composed: Compose,
    tmp_path: Path,
    expected: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray's head stays idle meanwhile, so that a node that joins is answered."""
    nodes.add()
    lost = nodes.add()
    cut: list[float] = []
    before: list[float] = []

    def power_cut() -> None:
        nodes.kill(lost)
        cut.append(time.monotonic())
        before.append(nodes.head_seconds())

    meanwhile(monkeypatch, {4: power_cut})
    config = cluster_run(composed, nodes, "engine.revive_seconds=60", "report.checkpoint_seconds=0")
    with pytest.raises(
        ClientError,
        match=r"2 of 4 cohorts did not start within engine\.revive_seconds=60: each asks for "
        r"1 CPU, and on 2 live nodes 0 CPU are free; add nodes .* or continue .* with resume=",
    ):
        start(config, tmp_path / "run")
    assert time.monotonic() - cut[0] < 60 + 15  # until the loss is noticed
    assert nodes.head_seconds() - before[0] < 20  # of 60: a head that tries again and again has 50
    assert weights(resume(tmp_path / "run")) == expected


def test_a_node_with_another_torch_is_refused(
    nodes: Nodes, composed: Compose, tmp_path: Path
) -> None:
    """The torch installed on the node states another version, wherever pip has put it."""
    other = tmp_path / "torch-1.13.1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.13.1+cu117\n")
    nodes.add(PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    here = version("torch").partition("+")[0]
    with pytest.raises(
        ClientError,
        match=rf"The node \S+ \(\w{{8}}\) of the Ray cluster has torch 1\.13\.1, and the driver "
        rf"has {here}: install the same version on both",
    ):
        start(cluster_run(composed, nodes), tmp_path / "run")
