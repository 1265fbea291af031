"""Eight nodes add up under masks while they are killed between the trips, one for good.

The run ends, every ledger holds, and the generator is the one that the survivors' stored replies
give when they are added up without masks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord
from torch import Tensor

from fedsink.clients.owner.gate import round_digests
from fedsink.clients.owner.ledger.database import Database
from fedsink.clients.owner.replies import ReplyStore
from fedsink.deployment.deployed_run import deployed_settings
from fedsink.models import load
from fedsink.protocol.exchange import Exchange, Reduction, Sum
from fedsink.server.folder import RunFolder, stored_config
from fedsink.server.running import build_strategy
from fedsink.simulation.grid import SimulationGrid

from ..support.processes import gone
from .test_demo import check_fetched, left_over, pytestmark  # noqa: F401 (the same needs)
from .test_siege import CEILING, CLIENTS, LOST, USES, Siege, all_records, check_owner, used_rounds

TRIPS = (
    "train.dp_sinkhorn",  # with the keys for the next sum
    "query.aggregation_survivors",  # with the shares for the next sum
    "query.aggregation_unmask",
)
"""A node is killed when it has answered one of them, before it is asked the next."""
KINDS = ("node", *("runner",) * 6)
SPARED = 2


@pytest.fixture
def lab(demo: Any, tmp_path: Path) -> Iterator[Any]:
    """A SuperLink with TLS and eight hospitals that know one another's keys."""
    lab = demo.Lab(tmp_path, (CEILING,) * CLIENTS)
    try:
        lab.prepare("fast")
        lab.exchange_identities()
        lab.start_superlink()
        for number in lab.hospitals:
            lab.register(number)
        yield lab
    finally:
        lab.stop()
        assert left_over(tmp_path) == []


class MaskedSiege(Siege):
    """Kills a node or its runner behind a certain trip, each kind behind each trip."""

    def __init__(self, lab: Any, seed: int) -> None:
        super().__init__(lab, seed)
        plan = [(trip, kind) for trip in TRIPS for kind in KINDS]
        self._plan = self._random.sample(plan, len(plan))
        self._victim: tuple[int, int] | None = None  # node, and length of its log
        self.behind: Counter[str] = Counter()

    def step(self, messages: int) -> None:
        """Looks after the nodes, and kills the victim once it has answered the planned trip."""
        self._supervise()
        if messages > self._messages:
            self._messages = messages
            self._look_at_replies()
            if messages == 3:
                self._lost.add(LOST)
                self._kill("node", LOST)
        if self._victim is None:
            up = [number for number in self._up() if number not in self._lost]
            if not self._plan or messages < 3 or len(up) < CLIENTS - 1:
                return
            number = self._random.choice(up)
            self._victim = number, len(self._log(number))
        (number, start), (trip, kind) = self._victim, self._plan[-1]
        if f"{trip} answered" in self._log(number)[start:] and self._kill(kind, number):
            self.behind[trip] += 1
            self._plan.pop()
            self._victim = None


class Everybody(SimulationGrid):
    """Knows all clients, and asks nobody."""

    def execute(self, messages: Any) -> Any:
        raise AssertionError("nobody is asked")

    def keep(self, round: int) -> None:
        """Does nothing."""


def stored_replies(state: Path) -> dict[int, Tensor]:
    """A node's stored replies by the first round of their messages."""
    database = Database(state / "ledger.sqlite", writable=False)
    try:
        claimed = dict(database.rows("SELECT digest, round FROM claims"))
    finally:
        database.close()
    (folder,) = {path.parent for path in state.rglob("*.reply")}
    store, found = ReplyStore(folder), {}
    for name in store.digests():
        reply = store.get(name)
        assert reply is not None
        found[claimed[round_digests(name, USES)[0]]] = torch.stack(
            [reply[place] for place in sorted(reply, key=int)]
        )
    return found


def added_up(
    at_server: Path,
    records: list[dict[str, Any]],
    stored: Mapping[int, Mapping[int, Tensor]],
    home: Path,
) -> dict[str, Tensor]:
    """The generator's weights, if the survivors' stored replies are added up without masks."""
    config = RunFolder(at_server)
    values = stored_config(config)
    settings, _ = deployed_settings(values, RunFolder(home), values["run"])
    strategy, grid = build_strategy(settings), Everybody(CLIENTS)
    for number, record in enumerate(records, 1):
        exchange = strategy.configure_train(number, ArrayRecord(), ConfigRecord(), grid)
        assert isinstance(exchange, Exchange)
        if "void" in record:
            strategy.skip(number)
            continue
        [broadcast] = exchange.broadcasts
        absent, first = record.get("absent", []), USES * (number - 1) + 1
        replies = [stored[client][first] for client in range(CLIENTS) if client not in absent]
        total = torch.stack(replies).sum(0).reshape(broadcast.shape)
        strategy.aggregate_train(number, Reduction([Sum(total, len(replies))], {}, absent))
    return strategy.generator.state_dict()


def test_masked_sums_outlive_kills_between_the_trips(lab: Any, tmp_path: Path) -> None:
    siege = MaskedSiege(lab, seed=30)
    folder, at_server = siege.run(
        "strategy.schedule=joint", "noise.share=secure_aggregation",
        f"noise.tolerate_dropouts={SPARED}",
    )  # fmt: skip
    print(siege.killed, siege.behind)
    assert siege.killed.total() > len(TRIPS) * len(KINDS)
    assert set(siege.behind.values()) == {len(KINDS)}
    lab.stop()
    assert all(gone(pid) for pid in siege.pids)

    check_fetched(folder, at_server)
    records = all_records(folder)
    summed = [record for record in records if "void" not in record]
    print(f"{len(summed)} of {len(records)} messages have a sum")
    assert len(summed) > len(records) / 2
    assert all(len(record.get("absent", ())) <= SPARED for record in summed)
    assert all(LOST - 1 in record["absent"] for record in records[5:])
    stated = json.loads((folder / "privacy.json").read_text())
    assert stated["participation"]["void"] == len(records) - len(summed)

    stored = {}
    for number in lab.hospitals:
        state = lab.folder / f"hospital-{number}" / "state"
        check_owner(state, used_rounds(records, number - 1), stated)
        stored[number - 1] = stored_replies(state)
    expected = added_up(at_server, records, stored, tmp_path / "again")
    for name, weights in load(folder).state_dict().items():
        assert torch.equal(weights, expected[name]), name
