"""Division of labour in an exchange, and its result."""

from __future__ import annotations

import pytest
import torch
from flwr.app import RecordDict

from fedsink.protocol.exchange import Broadcast, Content, Exchange
from fedsink.protocol.tree_sum import BLOCK, TreeSum
from fedsink.simulation.partial_sums import PartialSum, combine, divide


def _exchange(clients: int, groups: int) -> Exchange:
    nodes = {k: 1000 + k for k in range(clients)}
    return Exchange(
        "train.dp_sinkhorn",
        "1",
        [
            Broadcast(
                Content(list, RecordDict),
                {k: n for k, n in nodes.items() if k % groups == group},
                (2,),
            )
            for group in range(min(groups, clients))
        ],
    )


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
