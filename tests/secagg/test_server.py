from __future__ import annotations

import random

import numpy as np
import pytest

from fedsink.secagg.client import TRIPS
from fedsink.secagg.refusals import VoidMessageError, WrongShareError

from ..support.aggregation import Sum


def exact(played: Sum) -> None:
    total, survivors = played.result()
    assert total.dtype == np.int64
    assert total.tolist() == played.plain(survivors).tolist()


def some_drop_outs(draw: random.Random, clients: int, lost: int) -> dict[int, list[int]]:
    """Clients that disappear, each in a trip of its own."""
    gone: dict[int, list[int]] = {trip: [] for trip in range(5)}
    for client in draw.sample(range(clients), lost):
        gone[draw.randrange(5)].append(client)
    return gone


def random_sums(patterns: int, seed: int) -> int:
    """Plays random patterns of drop-outs; returns the number of those with any."""
    draw, dropped = random.Random(seed), 0
    for pattern in range(patterns):
        clients = draw.randint(3, 8)
        most = clients - (2 * clients // 3 + 1)
        gone = some_drop_outs(draw, clients, draw.randint(0, most))
        bits = draw.choice([16, 17, 24, 31, 32, 33, 48, 60])
        played = Sum(clients, seed=(seed, pattern), bits=bits, length=2).play(gone=gone)
        exact(played)
        lost = {client for trip in range(3) for client in gone[trip]}
        assert played.result().survivors == tuple(sorted(set(range(clients)) - lost))
        dropped += any(gone.values())
    return dropped


@pytest.mark.medium
def test_the_masked_sum_is_the_plain_sum_for_random_drop_outs_in_every_trip() -> None:
    assert random_sums(60, seed=0) > 20


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_the_masked_sum_is_the_plain_sum_for_ten_thousand_patterns(part: int) -> None:
    assert random_sums(1000, seed=1 + part) > 300


@pytest.mark.parametrize("stored", [False, True])
def test_the_masked_sum_is_exact_where_clients_drop_out_in_every_trip(stored: bool) -> None:
    gone = {0: [1], 1: [4], 2: [7, 0], 3: [9], 4: [12]}
    played = Sum(20, bits=24, length=50, stored=stored).play(gone=gone)
    exact(played)
    assert set(played.result().survivors) == set(range(20)) - {1, 4, 7, 0}


@pytest.mark.parametrize("trip", range(5))
def test_below_the_threshold_a_message_is_void_and_says_where(trip: int) -> None:
    played = Sum(7)
    with pytest.raises(VoidMessageError) as caught:
        played.play(gone={trip: [0, 1, 2]}).result()
    error = caught.value
    assert (error.trip, error.clients, error.needed) == (TRIPS[trip], 4, 5)
    assert "4 clients" in str(error)
    assert "5 are needed" in str(error)


def test_a_message_is_void_below_the_minimum_of_its_sum() -> None:
    with pytest.raises(VoidMessageError, match="6 are needed"):
        Sum(7, minimum=6).play(gone={2: [0, 1]})
    assert len(Sum(7, minimum=6).play(gone={2: [0]}).result().survivors) == 6


@pytest.mark.medium
def test_a_cohort_on_a_circle_adds_up_exactly() -> None:
    played = Sum(70).play(gone={0: [3], 1: [20], 2: [41]})
    assert played.parameters.neighbours < 69
    exact(played)


@pytest.mark.slow
def test_large_cohorts_on_a_circle_add_up_exactly_or_say_that_they_are_void() -> None:
    draw, void = random.Random(5), 0
    for pattern in range(12):
        gone = some_drop_outs(draw, 90, draw.randint(0, 12))
        try:
            exact(Sum(90, seed=pattern).play(gone=gone))
        except VoidMessageError:
            void += 1
    assert void < 6


def test_an_answer_that_comes_late_or_from_a_stranger_is_not_taken() -> None:
    played = Sum(7).play(4, gone={2: [6]})
    server, late = played.server, played.mask(6)
    assert not server.take_masked(6, late)
    assert not server.take_masked(5, played.mask(5))
    assert not server.take_keys(6, played.sessions[6].keys())
    assert not server.take_shares(6, played.sessions[6].shares(server.roster()))
    assert not server.take_signature(6, bytes(64))
    assert not server.take_keys(99, played.sessions[6].keys())
    played.unmask()
    assert not server.take_unmask(6, b"")
    exact(played)


def test_one_answer_twice_counts_once() -> None:
    played = Sum(5).play(2)
    server = played.server
    assert server.take_masked(0, played.mask(0)) if server.sharers() else False
    assert not server.take_masked(0, played.mask(0))
    played.masked(gone=[0])
    played.survivors()
    signatures = server.signatures()
    assert server.take_unmask(0, played.client(0).unmask(signatures))
    assert not server.take_unmask(0, played.client(0).unmask(signatures))
    played.unmask(gone=[0])
    exact(played)


def test_malformed_answers_are_drop_outs() -> None:
    played = Sum(7)
    for junk in (b"", b"x", bytes(260), played.sessions[1].keys()):
        assert not played.server.take_keys(0, junk)
    played.keys(gone=[0])
    played.server.roster()
    for junk in (b"", b"x", bytes(98), bytes(98 * 5)):
        assert not played.server.take_shares(1, junk)
    played.shares(gone=[0, 1])
    played.server.sharers()
    for junk in (b"", b"x", bytes(13)):
        assert not played.server.take_masked(2, junk)
    played.masked()
    played.server.survivors()
    for junk in (b"", bytes(64), bytes(63)):
        assert not played.server.take_signature(2, junk)
    played.survivors()
    played.server.signers()
    for junk in (b"", bytes(38), bytes(38 * 5)):
        assert not played.server.take_unmask(2, junk)
    played.unmask()
    exact(played)


def test_a_wrong_share_ends_the_message_instead_of_a_wrong_sum() -> None:
    played = Sum(7).play(4, gone={2: [6]})
    signatures = played.server.signatures()
    for client in played.server.signers():
        answer = bytearray(played.client(client).unmask(signatures))
        if client == 2:
            answer[-1] ^= 1  # of the share of client 6's mask key
        assert played.server.take_unmask(client, bytes(answer))
    with pytest.raises(WrongShareError, match="client 6"):
        played.result()


def test_there_is_no_result_before_the_last_trip() -> None:
    for trips in range(1, 5):
        with pytest.raises(VoidMessageError):
            Sum(5).play(trips).result()
