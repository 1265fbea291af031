from __future__ import annotations

import random
from math import comb

import pytest

from fedsink.secagg.graph import (
    COMPLETE,
    Circle,
    is_secure,
    most_colluders,
    neighbourhood,
    two_thirds,
)


@pytest.mark.parametrize("clients", [5, 64])
def test_in_a_small_cohort_all_are_neighbours(clients: int) -> None:
    assert neighbourhood(clients) == (clients - 1, two_thirds(clients))
    circle = Circle(range(clients), clients - 1, b"seed")
    assert circle.around(3) == tuple(range(clients))


@pytest.mark.parametrize("clients", [65, 100, 300, 1000])
def test_a_circle_is_regular_and_symmetric_and_drawn_by_its_seed(clients: int) -> None:
    k, threshold = neighbourhood(clients)
    assert k < clients - 1
    assert 3 * threshold > 2 * (k + 1)
    circle, other = Circle(range(clients), k, b"a"), Circle(range(clients), k, b"b")
    around = {client: circle.around(client) for client in range(clients)}
    for client, near in around.items():
        assert len(set(near)) == k + 1
        assert client in near
        assert all(client in around[peer] for peer in near)
    assert around != {client: other.around(client) for client in range(clients)}


def hypergeometric_tail(population: int, marked: int, drawn: int, least: int) -> float:
    some = range(least, min(marked, drawn) + 1)
    return sum(comb(marked, i) * comb(population - marked, drawn - i) for i in some) / comb(
        population, drawn
    )


@pytest.mark.parametrize("clients", [65, 200, 1000])
def test_the_bounds_of_the_lemma_hold(clients: int) -> None:
    k, threshold = neighbourhood(clients)
    half, roster = k // 2, two_thirds(clients)
    bad = hypergeometric_tail(roster - 1, clients // 10, half, threshold - half - 1)
    assert 2 * clients * bad <= 2.0**-80
    lost = hypergeometric_tail(clients, clients // 10, k + 1, k + 2 - threshold)
    assert clients * lost <= 1e-3


@pytest.mark.parametrize(
    ("clients", "k", "threshold"),
    [(5, 4, 3), (9, 2, 3), (9, 8, 6), (64, 30, 31), (64, 63, 42), (100, 99, 66), (100, 20, 21),
     (100, 41, 33), (1000, 100, 68), (1000, 0, 1), (1000, 2000, 1400)],
)  # fmt: skip
def test_a_weak_neighbourhood_is_known(clients: int, k: int, threshold: int) -> None:
    assert not is_secure(clients, k, threshold)


@pytest.mark.medium
def test_honest_survivors_are_connected_where_no_side_has_too_many_colluders() -> None:
    """The lemma by brute force: adversaries choose who drops out after they saw the circle."""
    draw, tried = random.Random(1), 0
    for _ in range(300):
        clients, half = 60, draw.randint(3, 6)
        m = 2 * half + 1
        t = draw.randint(two_thirds(m), m)
        circle = Circle(range(clients), 2 * half, bytes([draw.randrange(256)]))
        colluding = set(draw.sample(range(clients), draw.randint(0, 6)))
        sides = {c: (circle.around(c)[:half], circle.around(c)[half + 1 :]) for c in range(clients)}
        if any(len(colluding.intersection(s)) >= t - half - 1 for c in sides for s in sides[c]):
            continue
        dropped: set[int] = set()
        start = draw.randrange(clients)
        order = [circle._order[(start + i) % clients] for i in range(clients)]
        for client in order if draw.random() < 0.5 else draw.sample(order, clients):
            more = dropped | {client}
            if client not in colluding and all(
                len(more.intersection(circle.around(c))) <= m - t
                for c in range(clients)
                if c not in more | colluding
            ):
                dropped = more
        honest = set(range(clients)) - dropped - colluding
        reached, open_ = set(), [min(honest)]
        while open_:
            client = open_.pop()
            if client not in reached:
                reached.add(client)
                open_ += honest.intersection(circle.around(client))
        assert reached == honest
        tried += bool(dropped) and bool(colluding)
    assert tried > 30


@pytest.mark.parametrize("clients", range(2, COMPLETE + 1))
def test_fewer_than_a_third_of_a_complete_graph_may_collude(clients: int) -> None:
    assert 3 * most_colluders(clients) < clients <= 3 * (most_colluders(clients) + 1)
