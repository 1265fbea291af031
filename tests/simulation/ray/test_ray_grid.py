"""Flower apps under Ray, as in process: one Ray instance for the whole module."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import ray
import torch
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import load_file

from fedsink.clients.app import client_app
from fedsink.clients.node_cohort import NodeCohort
from fedsink.clients.node_settings import NodeSettings
from fedsink.errors import ClientError, ConfigError
from fedsink.privacy import SecretKey
from fedsink.server.folder import RunFolder
from fedsink.server.running import run_server
from fedsink.simulation.experiment import Experiment
from fedsink.simulation.grid import SimulationGrid
from fedsink.simulation.ray.cluster import INLINE, CohortPlaces
from fedsink.simulation.ray.ray_grid import Actor, RayGrid
from fedsink.simulation.virtual_clients import Hosted, LocalGrid, fedsink_apps

from ..conftest import Configure

pytestmark = pytest.mark.medium

_CLIENTS = 3
_OVERRIDES = ("seed=5", f"clients={_CLIENTS}", "rounds=12")
Run = Callable[[Experiment, SimulationGrid], Path]


@pytest.fixture(scope="module")
def grids() -> Iterator[dict[str, RayGrid]]:
    """One grid per settings, made by the first test that needs it."""
    made: dict[str, RayGrid] = {}
    yield made
    for grid in made.values():
        grid.close()
    ray.shutdown()


def _ray_grid(grids: dict[str, RayGrid], node: NodeSettings) -> RayGrid:
    if "ray" not in grids:
        # More cores than there are, so that several grids can live in one Ray instance, and a GPU
        # that Ray counts and hands out like a real one.
        ray.init(
            "local", num_cpus=16, num_gpus=1, include_dashboard=False, logging_level=logging.ERROR,
            # Else Ray starts a process for each of those cores at once.
            _system_config={"prestart_worker_first_driver": False, "enable_worker_prestart": False},
        )  # fmt: skip
        grids["ray"] = RayGrid(node, actors=2)
    return grids["ray"]


def _ask_one(grid: RayGrid, kind: str = "query.identity") -> list[Message]:
    return list(grid.send_and_receive([grid.create_message(RecordDict(), kind, 1000, "1")]))


def _run(settings: Experiment, grid: SimulationGrid, folder: Path) -> dict[str, torch.Tensor]:
    folder.mkdir()
    run_server(grid, settings.server, RunFolder(folder))
    return load_file(folder / "generator.safetensors")


@pytest.mark.quick("central")
@pytest.mark.parametrize("mode", ["central", "ldp"])
def test_ray_and_local_train_the_same_generator(
    grids: dict[str, RayGrid], configured: Configure, tmp_path: Path, mode: str
) -> None:
    settings = configured(*_OVERRIDES, f"mode={mode}")
    local_grid = LocalGrid(client_app(settings.node), _CLIENTS)
    local = _run(settings, local_grid, tmp_path / "local")
    remote = _run(settings, _ray_grid(grids, settings.node), tmp_path / "ray")
    assert set(local) == set(remote)
    for name, weights in local.items():
        if mode == "ldp":  # only the server trains: the uploads are the same bytes
            assert torch.equal(weights, remote[name]), name
        else:
            torch.testing.assert_close(remote[name], weights, rtol=0, atol=1e-6)
    ends = [json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("local", "ray")]
    assert ends[0]["epsilon"] == ends[1]["epsilon"]


@pytest.mark.parametrize("inline", [0, INLINE])  # through Ray's memory, and with the call
def test_a_reply_comes_from_the_node_that_was_asked(
    grids: dict[str, RayGrid], configured: Configure, monkeypatch: pytest.MonkeyPatch, inline: int
) -> None:
    grid = _ray_grid(grids, configured(*_OVERRIDES).node)
    monkeypatch.setattr(grid.cohorts, "inline", inline)
    nodes = list(reversed(list(grid.get_node_ids())))
    messages = [grid.create_message(RecordDict(), "query.identity", node, "1") for node in nodes]
    replies = {r.metadata.src_node_id: r for r in grid.send_and_receive(messages)}
    clients = {
        node: reply.content.config_records["identity"]["client"] for node, reply in replies.items()
    }
    assert clients == {node: node - 1000 for node in nodes}
    asked = {m.metadata.dst_node_id: m.metadata.message_id for m in messages}
    assert {n: r.metadata.reply_to_message_id for n, r in replies.items()} == asked


def test_an_error_at_a_client_comes_back_as_a_code(
    grids: dict[str, RayGrid], configured: Configure
) -> None:
    grid = _ray_grid(grids, configured(*_OVERRIDES).node)
    (reply,) = _ask_one(grid, "train.dp_sinkhorn")
    assert reply.has_error()
    assert reply.error.reason is None


@pytest.fixture
def make_grid(grids: dict[str, RayGrid], configured: Configure) -> Iterator[Callable[..., RayGrid]]:
    """Further grids in the module's Ray instance; their actors end with the test."""
    _ray_grid(grids, configured(*_OVERRIDES).node)
    made: list[RayGrid] = []

    def make(node: NodeSettings, **options: Any) -> RayGrid:
        made.append(RayGrid(node, **options))
        return made[-1]

    yield make
    for grid in made:
        grid.cohorts.close()


def _dying(marker: Path, after: int, act: Callable[[], None]) -> Callable[[Any], Hosted]:
    """Returns a host whose process is harmed during a round, while the marker exists.

    Everything is local to this function, so that it travels to an actor by value.
    """

    def host(settings: Any) -> Hosted:
        hosted = fedsink_apps(settings)
        batched: Any = hosted.batched

        answered = 0

        def computed(answer: Any) -> Any:
            nonlocal answered
            answered += 1  # charged and computed, but not on its way
            if answered > after and marker.exists():
                act()
            return answer

        class Dying:
            handles, uploads, block = batched.handles, batched.uploads, batched.block

            def answers(self, *asked: Any) -> Any:
                return map(computed, batched.answers(*asked))

        app: Any = lambda message, context: computed(hosted.app(message, context))  # noqa: E731
        return Hosted(app, Dying())

    return host


def _killed(marker: Path, after: int, *, once: bool) -> Callable[[Any], Hosted]:
    marker.touch()

    def die() -> None:
        import os
        import signal

        if once:
            marker.unlink()
        os.kill(os.getpid(), signal.SIGKILL)

    return _dying(marker, after, die)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["reproducible", "secret", "secure"])
def test_the_clients_of_a_killed_actor_live_on_and_are_charged_once(
    make_grid: Callable[..., RayGrid], configured: Configure, tmp_path: Path, noise: str
) -> None:
    settings = configured(*_OVERRIDES)
    nodes = [settings.node, settings.node]
    if noise != "reproducible":
        SecretKey.create(tmp_path / "key", "run")
        secret = {"key_file": tmp_path / "key"} if noise == "secret" else {"noise": noise}
        nodes = [
            replace(settings.node, seed=None, ledger=tmp_path / f"{name}.sqlite", **secret)
            for name in ("still", "killed")
        ]
    marker = tmp_path / "marker"
    local = LocalGrid(client_app(nodes[0]), _CLIENTS, batched=NodeCohort(nodes[0]))
    still = _run(settings, local, tmp_path / "still")
    grid = make_grid(nodes[1], actors=2, host=_killed(marker, 5, once=True))
    first = list(grid.cohorts.actors)
    killed = _run(settings, grid, tmp_path / "killed")
    assert not marker.exists()
    assert sum(a is b for a, b in zip(first, grid.cohorts.actors, strict=True)) == 1
    if noise == "secure":  # nobody can draw this noise twice
        assert all(values.isfinite().all() for values in killed.values())
    else:
        for name, values in still.items():
            torch.testing.assert_close(killed[name], values, rtol=0, atol=1e-6)
    if noise != "reproducible":
        with sqlite3.connect(tmp_path / "killed.sqlite") as database:
            claimed = database.execute("SELECT count(*), count(DISTINCT digest) FROM claims")
            assert claimed.fetchone() == (12 * _CLIENTS, 12 * _CLIENTS)  # no two are asked alike


@pytest.mark.slow
def test_records_in_rays_memory_are_read_by_nobody_else(
    make_grid: Callable[..., RayGrid], configured: Configure, tmp_path: Path
) -> None:
    driver = os.getpid()

    def host(settings: Any) -> Hosted:
        import os

        from fedsink.data.sources import SOURCES

        if os.getpid() != driver:
            SOURCES["digits"] = None  # no cohort can read this source
        return fedsink_apps(settings)

    settings = configured("seed=5", f"clients={_CLIENTS}", "rounds=2")
    local = _run(settings, LocalGrid(client_app(settings.node), _CLIENTS), tmp_path / "local")
    grid = make_grid(settings.node, actors=1, data="object_store", host=host)
    for name, values in _run(settings, grid, tmp_path / "ray").items():
        torch.testing.assert_close(values, local[name], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_actors_that_keep_dying_end_the_run(
    make_grid: Callable[..., RayGrid], configured: Configure, tmp_path: Path
) -> None:
    settings = configured(*_OVERRIDES)
    host = _killed(tmp_path / "marker", 0, once=False)
    grid = make_grid(settings.node, actors=1, host=host, revivals=1)
    with pytest.raises(ClientError, match=r"died again and again.*engine\.actors=1.*resume="):
        _run(settings, grid, tmp_path / "run")


@pytest.mark.slow
def test_an_actor_that_cannot_be_built_ends_the_run_at_once(
    make_grid: Callable[..., RayGrid], configured: Configure
) -> None:
    driver = os.getpid()

    def host(settings: Any) -> Hosted:
        import os

        if os.getpid() != driver:
            raise RuntimeError("no clients here")
        return fedsink_apps(settings)

    grid = make_grid(configured(*_OVERRIDES).node, actors=1, host=host)
    with pytest.raises(ClientError, match=r"could not build the apps of its clients; --debug"):
        _ask_one(grid)


@pytest.mark.slow
def test_a_client_that_hangs_ends_the_run(
    make_grid: Callable[..., RayGrid], configured: Configure, tmp_path: Path
) -> None:
    def hang() -> None:
        import time

        time.sleep(1000)

    marker = tmp_path / "marker"
    marker.touch()
    settings = configured(*_OVERRIDES)
    grid = make_grid(settings.node, actors=1, host=_dying(marker, 2, hang))
    _ask_one(grid)
    grid.cohorts.timeout = 2.0  # once the actor is there
    began = time.monotonic()
    with pytest.raises(ClientError, match=r"did not answer within engine\.timeout=2 seconds"):
        _run(settings, grid, tmp_path / "run")
    assert time.monotonic() - began < 30


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clients", "run"),
    [
        (19, "clip=record strategy.schedule=joint"),
        (19, "clip=batch strategy.schedule=joint"),
        (1300, "clip=record strategy.schedule=joint"),  # whose noise is drawn once, in three blocks
        (1300, "clip=batch strategy.schedule=joint"),
        (1300, "mode=ldp"),  # who upload their records together
    ],
)
def test_any_number_of_actors_gives_the_same_bits(
    make_grid: Callable[..., RayGrid], configured: Configure, tmp_path: Path, clients: int, run: str
) -> None:
    settings = configured("seed=5", f"clients={clients}", "rounds=4", *run.split())
    assert settings.node.pooled == (clients > 100 and "ldp" not in run)
    local = LocalGrid(client_app(settings.node), clients, batched=NodeCohort(settings.node))
    expected = _run(settings, local, tmp_path / "local")
    for actors, inline in ((1, INLINE), (3, INLINE), (3, 0)):
        grid = make_grid(settings.node, actors=actors)
        grid.cohorts.inline = inline
        found = _run(settings, grid, tmp_path / f"{actors}-{inline}")
        for name, values in expected.items():
            assert torch.equal(found[name], values), (actors, inline, name)


@pytest.mark.slow
@pytest.mark.parametrize("cohorts", [2, 4])
def test_cohorts_share_a_gpu_and_are_told_so(
    make_grid: Callable[..., RayGrid], configured: Configure, cohorts: int
) -> None:
    """Each sees the GPU that Ray gave it, and its clients compute there."""

    def host(settings: NodeSettings) -> Hosted:
        def answer(message: Message, context: Any) -> Message:
            import os

            from flwr.app import ConfigRecord, Message, RecordDict

            seen = {
                "process": os.getpid(),
                "visible": os.environ.get("CUDA_VISIBLE_DEVICES", "all"),
                "device": settings.device,
            }
            return Message(RecordDict({"seen": ConfigRecord(seen)}), reply_to=message)

        return Hosted(cast(ClientApp, answer))

    node = replace(configured("seed=5", f"clients={cohorts}").node, device="cuda")
    grid = make_grid(node, actors=cohorts, num_gpus=1 / cohorts, host=host)
    messages = [
        grid.create_message(RecordDict(), "train.dp_sinkhorn", 1000 + client, "1")
        for client in range(cohorts)
    ]
    seen = [reply.content.config_records["seen"] for reply in grid.send_and_receive(messages)]
    assert len({cohort["process"] for cohort in seen}) == cohorts
    assert {(cohort["visible"], cohort["device"]) for cohort in seen} == {("0", "cuda")}


def test_there_are_no_more_places_than_clients_or_cores_and_more_gpu_is_refused_at_once(
    grids: dict[str, RayGrid], configured: Configure
) -> None:
    _ray_grid(grids, configured(*_OVERRIDES).node)
    for clients, cohorts, count in ((10, None, 10), (99, None, 16), (10, 2, 2), (1, 4, 1)):
        assert CohortPlaces(ray, clients, cohorts, 0.0).count == count
    CohortPlaces(ray, 10, 4, 0.25)
    with pytest.raises(ConfigError, match=r"4 cohorts of engine\.num_gpus=0\.5 do not fit on 1"):
        CohortPlaces(ray, 10, 4, 0.5)


def test_cohorts_without_a_place_end_the_run_and_say_what_is_free(
    make_grid: Callable[..., RayGrid], configured: Configure
) -> None:
    """The GPU is there, but somebody has it."""
    taken = ray.remote(Actor).options(**CohortPlaces(ray, 1, 1, 1.0).options()).remote(False)
    ray.get(taken.place.remote())
    grid = make_grid(configured("seed=0").node, actors=1, num_gpus=1.0, revive_seconds=0.5)
    began = time.monotonic()
    with pytest.raises(
        ClientError,
        match=r"1 of 1 cohorts did not start within engine\.revive_seconds=0\.5: each asks for 1 "
        r"CPU and 1 GPU, and on 1 live nodes \d+ CPU and 0 GPU are free; add nodes or lower",
    ):
        _ask_one(grid)
    assert time.monotonic() - began < 5
    ray.kill(taken)


@pytest.mark.slow
def test_clients_that_take_too_long_end_the_run(
    make_grid: Callable[..., RayGrid], configured: Configure
) -> None:
    grid = make_grid(configured("seed=0").node, actors=1, timeout=1e-3)
    with pytest.raises(ClientError, match=r"did not answer within engine\.timeout=0\.001 seconds"):
        _ask_one(grid)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ((), None),
        (("engine.address=auto",), None),
        (
            ("engine.num_cpus=2",),
            r"engine\.num_cpus=2 is for an instance .* connected to one already",
        ),
        (("engine.address=127.0.0.1:1",), r"address=127\.0\.0\.1:1 is another Ray than that of 1"),
    ],
)
def test_the_ray_that_this_process_is_connected_to_is_taken_as_it_is(
    grids: dict[str, RayGrid], configured: Configure, overrides: tuple[str, ...], told: str | None
) -> None:
    grid = _ray_grid(grids, configured(*_OVERRIDES).node)
    if told is not None:
        with pytest.raises(ConfigError, match=told):
            configured("seed=5", "engine=ray", *overrides, small=False)
        return
    settings = configured("seed=5", "engine=ray", *overrides, small=False)
    second = RayGrid(settings.node, actors=1, address=settings.engine.address)
    second.close()
    if not ray.is_initialized():
        grids.clear()  # no Ray is left to close them
        pytest.fail("closing the second grid has ended the caller's Ray")
    with pytest.raises(ConfigError, match="GPUs"):
        RayGrid(settings.node, actors=1, num_gpus=5)
    assert len(grid.cohorts) == 2
