from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from flwr.app import Message

from fedsink.clients.app import client_app
from fedsink.conf.acting import compose_config
from fedsink.errors import CheckpointError, ConfigError
from fedsink.protocol.packing import payload_bytes
from fedsink.reporting.output_files import write_json
from fedsink.results.pages.uploads import Uploads
from fedsink.server.folder import RecordedRun, RunFolder, store_config
from fedsink.server.running import run_server
from fedsink.simulation.experiment import Experiment
from fedsink.simulation.run_identity import RunIdentity, kind_of_noise
from fedsink.simulation.virtual_clients import LocalGrid

from .conftest import SMALL, Begin

METHODS = {
    "dp_sinkhorn": ("mode=central", "rounds=7", "strategy.uses_per_message=3"),
    "parameter_gradient": ("mode=central", "strategy=parameter_gradient", "rounds=3"),
    "turns": (
        *("mode=central", "strategy=gs_wgan", "rounds=5", "strategy.turns=2"),
        *("strategy.critics=2", "strategy.critic.warm=1"),
    ),
    "picks": (
        *("experiment=gs_wgan_published_digits", "clients=5", "rounds=6"),
        "strategy.critic.warm=1",
    ),
}


class Counting(LocalGrid):
    """Writes down the size of every reply, by client."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.sizes: dict[int, list[int]] = defaultdict(list)

    def execute(self, messages: Sequence[Message]) -> list[Message]:
        replies = super().execute(messages)
        clients = {node: client for client, node in self.roster().items()}
        for reply in replies:
            client = clients[reply.metadata.src_node_id]
            self.sizes[client].append(payload_bytes(reply.content))
        return replies


def _played(path: Path, *overrides: str) -> tuple[RunFolder, Counting]:
    config = compose_config([*SMALL, "seed=1", *overrides])
    folder, identity = RunFolder(path), RunIdentity.fresh(1)
    settings = Experiment.of(config, identity)
    folder.create()
    stated = settings.server.strategy.statement(kind_of_noise(settings.node))
    folder.write(folder.privacy, stated)
    store_config(folder, {**config, "run": identity.to_config()})
    grid = Counting(client_app(settings.node), settings.node.clients)
    run_server(grid, settings.server, folder)
    return folder, grid


def by_client(run: RecordedRun) -> list[tuple[str, ...]]:
    """Cells of the table for each client, whether or not it shares its row."""
    cells: list[tuple[str, ...]] = []
    for name, *row in Uploads.of(run).table.rows:
        first, *last = map(int, re.findall(r"\d+", name))
        assert first == len(cells)
        cells += [tuple(row)] * ((last[0] if last else first) - first + 1)
    return cells


@pytest.mark.medium
@pytest.mark.quick("turns")
@pytest.mark.parametrize("method", METHODS)
def test_bytes_are_those_that_clients_send(tmp_path: Path, method: str) -> None:
    folder, grid = _played(tmp_path / "run", *METHODS[method])
    rows = by_client(RecordedRun.of(folder.path))
    from fedsink.results.pages.page import number, size

    for client in range(5):
        sizes = grid.sizes[client]
        replies, _, whole, epsilon = rows[client]
        assert replies == number(len(sizes))
        assert whole == size(sum(sizes))
        assert float(epsilon) > 0


@pytest.mark.medium
def test_a_local_upload_is_stated_per_record(tmp_path: Path) -> None:
    folder, grid = _played(tmp_path / "run", "mode=ldp", "rounds=2", "strategy.chunk_size=4")
    run = RecordedRun.of(folder.path)
    (row, *_) = Uploads.of(run).table.rows
    assert row[:2] == ("clients 0–4, each", "once")
    sizes = grid.sizes[0]  # chunks of four records each, and the rest
    four = max(sizes)
    values = int(row[2].partition(" ")[0])
    assert 4 * values < four < 4 * values + 60  # and the number of chunks


@pytest.mark.medium
def test_what_a_client_missed_has_not_left_it(begin: Begin) -> None:
    folder = begin("mode=central")
    before = by_client(RecordedRun.of(folder.path))
    stated = RecordedRun.of(folder.path).privacy or {}
    stated["participation"] = {"messages": 20, "missed": [{"client": 2, "messages": 5}]}
    stated["clients"][3]["epsilon"] = None
    write_json(folder.privacy, stated)
    rows = by_client(RecordedRun.of(folder.path))
    assert [rows[client] for client in (0, 1, 4)] == [before[client] for client in (0, 1, 4)]
    assert rows[3] == (*before[3][:-1], "∞")  # null: nothing of it is protected
    assert (before[2][0], rows[2][0]) == ("20", "15")
    whole, left = (float(row[2][2].partition(" ")[0]) for row in (before, rows))
    assert left == pytest.approx(0.75 * whole, rel=0.02)


@pytest.mark.parametrize("kind", ["joint", "turns", "ldp"])
def test_a_million_clients_have_few_rows(begin: Begin, kind: str) -> None:
    options = {
        "joint": ("mode=central",),
        "turns": ("mode=central", "strategy=gs_wgan", "strategy.turns=3"),
        "ldp": ("mode=ldp",),
    }
    folder = begin(*options[kind], "clients=1000000")
    rows = Uploads.of(RecordedRun.of(folder.path)).table.rows
    names = (
        ["each of 333,334", "each of 666,666"] if kind == "turns" else ["clients 0–999999, each"]
    )
    assert [row[0] for row in rows] == names
    assert folder.privacy.stat().st_size < 20_000
    if kind != "joint":
        return
    stated = {**(RecordedRun.of(folder.path).privacy or {})}
    stated["participation"] = {"messages": 20, "missed": [{"client": "10-99999", "messages": 3}]}
    write_json(folder.privacy, stated)
    rows = Uploads.of(RecordedRun.of(folder.path)).table.rows
    assert [row[:2] for row in rows] == [
        ("clients 0–9, each", "20"), ("clients 10–99999, each", "17"),
        ("clients 100000–999999, each", "20"),
    ]  # fmt: skip
    missed = [{"client": client, "messages": 1 + client % 2} for client in range(0, 50, 2)]
    missed[7] |= {"messages": 5}
    stated["participation"] = {"messages": 20, "missed": missed}
    write_json(folder.privacy, stated)
    rows = Uploads.of(RecordedRun.of(folder.path)).table.rows
    assert [row[:2] for row in rows] == [
        ("each of 24", "19"), ("each of 999,975", "20"), ("each of 1", "15"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["0-999999999999", "0-5", 5, "3-1", -1, 0.0, None, [0], True, "0-4294967296"],
    ids=str,
)
@pytest.mark.parametrize("place", ["clients", "missed"])
def test_clients_that_the_run_does_not_have_are_refused(
    begin: Begin, name: object, place: str
) -> None:
    folder = begin("mode=central")
    stated = {**(RecordedRun.of(folder.path).privacy or {})}
    if place == "clients":
        stated["clients"] = [{**stated["clients"][0], "client": name}]
    else:
        stated["participation"] = {"messages": 20, "missed": [{"client": name, "messages": 1}]}
    write_json(folder.privacy, stated)
    with pytest.raises(CheckpointError, match=r"below 5: .* is not its next one"):
        Uploads.of(RecordedRun.of(folder.path))


@pytest.mark.parametrize("messages", [-1, 1.5, "1", None, [1], True])
def test_a_number_of_messages_that_is_none_is_refused(begin: Begin, messages: object) -> None:
    folder = begin("mode=central")
    stated = {**(RecordedRun.of(folder.path).privacy or {})}
    stated["participation"] = {"missed": [{"client": 1, "messages": messages}]}
    write_json(folder.privacy, stated)
    with pytest.raises(ConfigError, match="messages must be a whole number of at least 0"):
        Uploads.of(RecordedRun.of(folder.path))


@pytest.mark.parametrize("clients", [10**7 + 1, 10**15])
@pytest.mark.parametrize("mode", ["central", "ldp"])
def test_a_run_of_more_clients_than_there_are_is_refused(
    begin: Begin, clients: int, mode: str
) -> None:
    folder = begin(f"mode={mode}", change=lambda config: {**config, "clients": clients})
    with pytest.raises(ConfigError, match=r"clients must be in \[1, 10000000\]"):
        Uploads.of(RecordedRun.of(folder.path))


@pytest.mark.medium
def test_neighbours_with_equal_uploads_share_a_row(begin: Begin) -> None:
    folder = begin("mode=central", "clients=100")
    ((name, *_),) = Uploads.of(RecordedRun.of(folder.path)).table.rows
    assert name == "clients 0–99, each"
    stated = {**(RecordedRun.of(folder.path).privacy or {})}
    stated["participation"] = {"messages": 20, "missed": [{"client": 50, "messages": 1}]}
    write_json(folder.privacy, stated)
    names = [row[0] for row in Uploads.of(RecordedRun.of(folder.path)).table.rows]
    assert names == ["clients 0–49, each", "client 50", "clients 51–99, each"]
