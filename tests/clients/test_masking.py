"""Tests of `fedsink.clients.masking`: one request is masked once, whatever is asked and when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedsink.clients.masking import Masking, Sessions, simulated_identity, simulated_peers
from fedsink.protocol.aggregation import KEYS, SHARES, SURVIVORS, UNMASK
from fedsink.secagg.client import Rules
from fedsink.secagg.parameters import Parameters
from fedsink.secagg.refusals import AnsweredError, RosterError
from fedsink.secagg.server import ServerSession

CLIENTS = 4
SUM = Parameters("run", "request", tuple(range(CLIENTS)), bits=32, length=6, minimum=3)


def vector(client: int) -> np.ndarray:
    return np.arange(6) * (client + 1) - 7


def maskings(folder: Path | None = None) -> list[Masking]:
    """Clients whose every trip is answered by a new process, where there is a folder."""
    return [
        Masking(
            client,
            simulated_identity(client),
            Rules(simulated_peers(CLIENTS), 3),
            Sessions(None if folder is None else folder / str(client)),
        )
        for client in range(CLIENTS)
    ]


def until_masked(clients: list[Masking], server: ServerSession) -> list[bytes]:
    """Plays trips 0 to 2; returns what each client has masked."""
    for number, client in enumerate(clients):
        assert server.take_keys(number, client.answer(KEYS, SUM, b""))
    for number, client in enumerate(clients):
        assert server.take_shares(number, client.answer(SHARES, SUM, server.roster()))
    return [
        client.mask(SUM, server.forwarded(number), lambda n=number: vector(n))
        for number, client in enumerate(clients)
    ]


def summed(clients: list[Masking], server: ServerSession, masked: list[bytes]) -> np.ndarray:
    for number, content in enumerate(masked):
        assert server.take_masked(number, np.frombuffer(content, np.uint32))
    for number, client in enumerate(clients):
        assert server.take_signature(number, client.answer(SURVIVORS, SUM, server.survivors()))
    for number, client in enumerate(clients):
        assert server.take_unmask(number, client.answer(UNMASK, SUM, server.signatures()))
    return server.result()[0]


@pytest.mark.parametrize("stored", [False, True])
def test_the_sum_is_that_of_the_vectors(tmp_path: Path, stored: bool) -> None:
    clients, server = maskings(tmp_path if stored else None), ServerSession(SUM)
    total = summed(clients, server, until_masked(clients, server))
    assert total.tolist() == sum(vector(client) for client in range(CLIENTS)).tolist()


def test_a_trip_that_comes_again_is_answered_with_the_same_bytes(tmp_path: Path) -> None:
    clients, server = maskings(tmp_path), ServerSession(SUM)
    masked = until_masked(clients, server)
    restarted = maskings(tmp_path)
    for number, client in enumerate(restarted):
        forwarded = server.forwarded(number)
        assert client.mask(SUM, forwarded, lambda n=number: vector(n)) == masked[number]
    assert summed(restarted, server, masked).any()
    signatures = server.signatures()
    again = maskings(tmp_path)[0]
    assert again.answer(UNMASK, SUM, signatures) == clients[0].answer(UNMASK, SUM, signatures)


def test_one_request_is_masked_in_one_session(tmp_path: Path) -> None:
    clients, server = maskings(tmp_path), ServerSession(SUM)
    until_masked(clients, server)
    other = replace(SUM, minimum=4)
    with pytest.raises(AnsweredError, match="in another way"):
        clients[0].answer(KEYS, other, b"")
    fewer = replace(SUM, clients=(0, 1, 2))
    with pytest.raises(AnsweredError):
        maskings(tmp_path)[0].answer(KEYS, fewer, b"")


def test_a_second_vector_or_second_shares_are_refused(tmp_path: Path) -> None:
    clients, server = maskings(tmp_path), ServerSession(SUM)
    until_masked(clients, server)
    with pytest.raises(AnsweredError):
        clients[0].mask(SUM, server.forwarded(0), lambda: vector(1))
    fewer = server.forwarded(0)[: len(server.forwarded(0)) // 3 * 2]
    with pytest.raises(AnsweredError):
        clients[0].mask(SUM, fewer, lambda: vector(0))


def test_nothing_is_charged_or_computed_before_a_roster_is_accepted() -> None:
    calls = []
    client = maskings()[0]
    client.answer(KEYS, SUM, b"")
    with pytest.raises(RosterError, match="no roster"):
        client.mask(SUM, b"", lambda: calls.append(1) or vector(0))
    assert not calls


@pytest.mark.parametrize("trip", [SHARES, SURVIVORS, UNMASK])
def test_a_session_begins_with_its_keys(trip: str) -> None:
    with pytest.raises(RosterError, match="sent no keys"):
        maskings()[0].answer(trip, SUM, b"")


def test_files_hold_no_secret_once_the_sum_is_unmasked(tmp_path: Path) -> None:
    clients, server = maskings(tmp_path), ServerSession(SUM)
    masked = until_masked(clients, server)
    assert len(list((tmp_path / "0").iterdir())) == 3
    summed(clients, server, masked)
    [left] = (tmp_path / "0").iterdir()
    assert left.stat().st_mode & 0o777 == 0o600
    assert b'"seed": ""' in left.read_bytes()
    assert b'"boxes": {}' in left.read_bytes()
    with pytest.raises(AnsweredError):
        maskings(tmp_path)[0].mask(SUM, server.forwarded(0), lambda: vector(0))


def test_the_slower_of_two_processes_answers_from_the_stored_session(tmp_path: Path) -> None:
    """Both have read the folder before either has written: their keys differ until then."""
    first, second = maskings(tmp_path)[0], maskings(tmp_path)[0]
    sessions = second._sessions
    keys = first.answer(KEYS, SUM, b"")
    sessions.get = lambda name: None  # type: ignore[method-assign]  # it looked before
    assert second.answer(KEYS, SUM, b"") == keys
