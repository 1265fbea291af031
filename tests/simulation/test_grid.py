"""Unmodified Flower apps and strategies run on the in-process grid."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedsink.flower_internals import become
from fedsink.protocol.exchange import Broadcast, Content, Exchange
from fedsink.protocol.tree_sum import BLOCK, TreeSum
from fedsink.simulation.grid import PartialSum, client_of, combine, divide, node_of
from fedsink.simulation.virtual_clients import LocalGrid

app = ClientApp()


@app.query("who")
def _who(message: Message, context: Context) -> Message:
    calls = context.state.metric_records.setdefault("calls", MetricRecord({"n": 0}))
    calls["n"] = int(calls["n"]) + 1  # type: ignore[call-overload]
    client = int(context.node_config["partition-id"])
    of = int(context.node_config["num-partitions"])
    answer = {"client": client, "of": of, "calls": calls["n"]}
    return Message(RecordDict({"who": ConfigRecord(answer)}), reply_to=message)


@app.train()
def _train(message: Message, context: Context) -> Message:
    """Adds the client's number to the model; the more records, the larger the number."""
    client = int(context.node_config["partition-id"])
    model = message.content["arrays"]["x"].numpy()
    metrics = MetricRecord({"num-examples": client + 1, "loss": float(client)})
    arrays = ArrayRecord({"x": Array(model + client)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def _queries(grid: LocalGrid, nodes: list[int]) -> list[Message]:
    return [grid.create_message(RecordDict(), "query.who", node, "1") for node in nodes]


def test_there_is_one_node_per_client_and_node_numbers_invert() -> None:
    grid = LocalGrid(app, 5)
    assert list(grid.get_node_ids()) == [node_of(k) for k in range(5)]
    assert [client_of(node) for node in grid.get_node_ids()] == list(range(5))
    assert len(set(grid.get_node_ids())) == 5


def test_a_reply_comes_from_the_node_that_was_asked_and_names_its_message() -> None:
    grid = LocalGrid(app, 3)
    messages = _queries(grid, [node_of(2), node_of(0)])
    replies = list(grid.send_and_receive(messages))
    assert [r.metadata.src_node_id for r in replies] == [node_of(2), node_of(0)]
    assert [r.metadata.reply_to_message_id for r in replies] == [
        m.metadata.message_id for m in messages
    ]
    assert len({m.metadata.message_id for m in messages}) == 2
    answers = [r.content.config_records["who"] for r in replies]
    assert [a["client"] for a in answers] == [2, 0]
    assert {a["of"] for a in answers} == {3}


def test_a_client_keeps_its_context_and_shares_it_with_nobody() -> None:
    grid = LocalGrid(app, 2)
    for calls in (1, 2, 3):
        reply = next(iter(grid.send_and_receive(_queries(grid, [node_of(0)]))))
        assert reply.content.config_records["who"]["calls"] == calls
    other = next(iter(grid.send_and_receive(_queries(grid, [node_of(1)]))))
    assert other.content.config_records["who"]["calls"] == 1


def test_a_reply_is_pulled_once() -> None:
    grid = LocalGrid(app, 2)
    ids = list(grid.push_messages(_queries(grid, [node_of(0), node_of(1)])))
    assert len(list(grid.pull_messages(ids[:1]))) == 1
    assert list(grid.pull_messages(ids[:1])) == []
    assert len(list(grid.pull_messages(ids))) == 1
    assert list(grid.pull_messages(["unknown"])) == []


def test_flowers_fedavg_trains_on_the_grid_unmodified() -> None:
    become(1, 1)
    grid = LocalGrid(app, 3)
    strategy = FedAvg(fraction_evaluate=0.0, min_evaluate_nodes=0, min_train_nodes=3)
    start = ArrayRecord({"x": Array(np.zeros(2, dtype=np.float32))})
    result = strategy.start(grid=grid, initial_arrays=start, num_rounds=2, timeout=10)
    # Each round adds the mean of the clients' numbers, weighted by num-examples: (0+2+6)/6.
    assert result.arrays["x"].numpy() == pytest.approx([2 * 8 / 6] * 2)
    assert result.train_metrics_clientapp[2]["loss"] == pytest.approx(8 / 6)


def test_the_run_can_be_read_and_set() -> None:
    grid = LocalGrid(app, 1, run_id=7)
    assert grid.run.run_id == 7
    other = LocalGrid(app, 1, run_id=8).run
    grid.set_run(other)
    assert grid.run.run_id == 8


def _exchange(clients: int, groups: int) -> Exchange:
    nodes = {k: 1000 + k for k in range(clients)}
    of_group = [
        {k: n for k, n in nodes.items() if k % groups == group}
        for group in range(min(groups, clients))
    ]
    broadcasts = [Broadcast(Content(list, RecordDict), nodes, (2,)) for nodes in of_group]
    return Exchange("train.dp_sinkhorn", "1", broadcasts)


@pytest.mark.parametrize("clients", [1, 7, 10, 100, 1003])
@pytest.mark.parametrize("groups", [1, 3, 10])
@pytest.mark.parametrize("cohorts", [1, 2, 3, 7])
def test_every_client_is_in_one_part_and_sums_do_not_depend_on_the_parts(
    clients: int, groups: int, cohorts: int
) -> None:
    exchange = _exchange(clients, groups)
    values = torch.randn(clients, 2, generator=torch.Generator().manual_seed(1))
    made = []
    for share in divide(exchange, cohorts):
        of_cohort = [PartialSum([], 0, {}) for _ in exchange.broadcasts]
        for part in share:
            total = TreeSum(part.lo, part.hi)
            for place, client in enumerate(part.clients):
                total.add(part.lo + place // BLOCK, values[client])
            of_cohort[part.place] = PartialSum(total.parts(), len(part.clients), {})
        made.append(of_cohort)
    found = combine(made)
    assert found.failures == {}
    for broadcast, one in zip(exchange.broadcasts, found.sums, strict=True):
        whole = TreeSum()
        for place, client in enumerate(broadcast.nodes):
            whole.add(place // BLOCK, values[client])
        assert one is not None
        assert one.clients == len(broadcast.nodes)
        assert torch.equal(one.total, whole.total())


@pytest.mark.parametrize("cohorts", [2, 3, 5])
def test_broadcasts_are_cut_between_blocks_alone(cohorts: int) -> None:
    exchange = _exchange(1003, 3)
    for share in divide(exchange, cohorts):
        for part in share:
            everyone = list(exchange.broadcasts[part.place].nodes)
            first = everyone.index(part.clients[0])
            assert first == part.lo * BLOCK
            assert len(part.clients) % BLOCK == 0 or part.clients[-1] == everyone[-1]


@pytest.mark.parametrize("groups", [1, 10])
def test_shares_are_nearly_equal(groups: int) -> None:
    for cohorts in (2, 3, 4):
        sizes = [
            sum(len(part.clients) for part in share)
            for share in divide(_exchange(1000, groups), cohorts)
        ]
        assert sum(sizes) == 1000
        assert max(sizes) <= 1.15 * 1000 / cohorts + BLOCK


def test_failures_of_all_cohorts_are_reported_and_missing_sums_are_none() -> None:
    found = combine([[PartialSum([], 1, {3: 1001})], [PartialSum([], 0, {9: 1003})]])
    assert found.failures == {3: 1001, 9: 1003}
    assert found.sums == [None]


def test_few_sums_come_of_many_clients() -> None:
    """Otherwise the sums would travel more than the replies."""
    for cohorts in (2, 3, 4):
        total = [TreeSum(p.lo, p.hi) for (p,) in divide(_exchange(10_000, 1), cohorts)]
        for share, one in zip(divide(_exchange(10_000, 1), cohorts), total, strict=True):
            for place in range(0, len(share[0].clients), BLOCK):
                one.add(share[0].lo + place // BLOCK, torch.zeros(1))
        assert sum(len(one.parts()) for one in total) <= 7 * cohorts
