"""Tests of `fedsink.clients.masking`: one request is masked once, whatever is asked and when."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsink.clients.masking import Masking, Sessions, simulated_identity, simulated_peers
from fedsink.clients.owner.policy import PolicyRefusedError
from fedsink.errors import LedgerError, RunTakenError
from fedsink.protocol.aggregation import KEYS, SHARES, SURVIVORS, UNMASK
from fedsink.secagg.parameters import Parameters, Rules
from fedsink.secagg.refusals import AnsweredError, OutOfTurnError
from fedsink.secagg.server import ServerSession

CLIENTS = 4
REQUEST = b"r" * 32
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


def until_shared(clients: list[Masking], server: ServerSession) -> None:
    """Plays trips 0 and 1."""
    for number, client in enumerate(clients):
        assert server.take_keys(number, client.answer(KEYS, SUM, b""))
    for number, client in enumerate(clients):
        assert server.take_shares(number, client.answer(SHARES, SUM, server.roster()))


def until_masked(clients: list[Masking], server: ServerSession) -> list[bytes]:
    """Plays trips 0 to 2; returns what each client has masked."""
    until_shared(clients, server)
    return [
        client.mask(SUM, server.forwarded(number), REQUEST, lambda n=number: vector(n))
        for number, client in enumerate(clients)
    ]


def summed(clients: list[Masking], server: ServerSession, masked: list[bytes]) -> np.ndarray:
    for number, content in enumerate(masked):
        assert server.take_masked(number, content)
    for number, client in enumerate(clients):
        assert server.take_signature(number, client.answer(SURVIVORS, SUM, server.survivors()))
    for number, client in enumerate(clients):
        assert server.take_unmask(number, client.answer(UNMASK, SUM, server.signatures()))
    return server.result(REQUEST).total


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
        assert client.mask(SUM, forwarded, REQUEST, lambda n=number: vector(n)) == masked[number]
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
    fewer = replace(SUM, clients=(0, 1, 2), neighbours=0, threshold=0)
    with pytest.raises(AnsweredError):
        maskings(tmp_path)[0].answer(KEYS, fewer, b"")


@pytest.mark.parametrize("stored", [False, True])
def test_a_wrong_query_changes_nothing_for_the_sum(tmp_path: Path, stored: bool) -> None:
    clients, server = maskings(tmp_path if stored else None), ServerSession(SUM)
    for wrong in (replace(SUM, minimum=4), replace(SUM, bits=40), replace(SUM, length=10**18)):
        clients[0].answer(KEYS, wrong, b"")
    masked = until_masked(clients, server)
    assert summed(clients, server, masked).any()
    with pytest.raises(AnsweredError):  # all others of its name are over
        clients[0].answer(KEYS, replace(SUM, bits=40), b"")
    assert not stored or len(files(tmp_path / "0")) == 1


@pytest.mark.medium
def test_few_sessions_are_open_and_those_of_strangers_are_forgotten_first(tmp_path: Path) -> None:
    def client() -> Masking:
        rules = Rules(simulated_peers(CLIENTS), 3)
        sessions = Sessions(tmp_path / "0")
        return Masking(0, simulated_identity(0), rules, sessions, {}, {"run"}.__contains__)

    first = client().answer(KEYS, SUM, b"")
    for number in range(34):
        client().answer(KEYS, replace(SUM, run=f"invented {number}"), b"")
        assert len(files(tmp_path / "0")) == min(32, number + 2)
    assert client().answer(KEYS, SUM, b"") == first
    for number in range(34):  # an admitted run is no way around it
        client().answer(KEYS, replace(SUM, message=f"invented {number}"), b"")
        assert len(files(tmp_path / "0")) == 32
    for days, left in ((1, 32), (0, 0)):
        Sessions(tmp_path / "0").wipe(days)
        assert len(files(tmp_path / "0")) == left


def test_no_session_continues_under_other_words_of_the_policy(tmp_path: Path) -> None:
    def client(words: dict[str, Any]) -> Masking:
        rules, sessions = Rules(simulated_peers(CLIENTS), 3), Sessions(tmp_path / "0")
        return Masking(0, simulated_identity(0), rules, sessions, words)

    clients, server = maskings(tmp_path), ServerSession(SUM)
    clients[0] = client({"tolerate_dropouts": 0})
    masked = until_masked(clients, server)
    other = client({"tolerate_dropouts": 1})
    with pytest.raises(RunTakenError, match="other words of the policy"):
        other.mask(SUM, server.forwarded(0), REQUEST, lambda: pytest.fail("again"))
    for trip in (KEYS, SURVIVORS):
        with pytest.raises(RunTakenError, match="other words of the policy"):
            other.answer(trip, SUM, b"")
    assert summed(clients, server, masked).any()


def test_other_shares_are_refused_and_the_vector_is_computed_once(tmp_path: Path) -> None:
    clients, server = maskings(tmp_path), ServerSession(SUM)
    masked = until_masked(clients, server)
    forwarded = server.forwarded(0)
    assert clients[0].mask(SUM, forwarded, REQUEST, lambda: pytest.fail("again")) == masked[0]
    with pytest.raises(AnsweredError):
        clients[0].mask(SUM, server.forwarded(1), REQUEST, lambda: vector(0))


def test_a_session_masks_one_request(tmp_path: Path) -> None:
    clients, server = maskings(tmp_path), ServerSession(SUM)
    until_masked(clients, server)
    with pytest.raises(AnsweredError):
        clients[0].mask(SUM, server.forwarded(0), b"o" * 32, lambda: pytest.fail("again"))


def test_nothing_is_charged_or_computed_before_a_roster_is_accepted() -> None:
    client = maskings()[0]
    client.answer(KEYS, SUM, b"")
    with pytest.raises(OutOfTurnError):
        client.mask(SUM, b"", REQUEST, lambda: pytest.fail("computed"))


def test_a_vector_that_fails_leaves_the_session_as_it_was(tmp_path: Path) -> None:
    clients, server = maskings(tmp_path), ServerSession(SUM)
    until_shared(clients, server)

    def fails() -> np.ndarray:
        raise PolicyRefusedError("the budget is spent")

    with pytest.raises(PolicyRefusedError):
        clients[0].mask(SUM, server.forwarded(0), REQUEST, fails)
    masked = [
        c.mask(SUM, server.forwarded(n), REQUEST, lambda n=n: vector(n))
        for n, c in enumerate(clients)
    ]
    assert summed(clients, server, masked).any()


def test_sessions_of_two_runs_and_two_requests_are_apart(tmp_path: Path) -> None:
    clients = maskings(tmp_path)
    until_masked(clients, ServerSession(SUM))  # what is masked shuts neither of the others out
    keys = {
        clients[0].answer(KEYS, replace(SUM, run=run, message=message), b"")
        for run in ("run", "other")
        for message in ("request", "1")
        if (run, message) != ("run", "request")
    }
    assert len(keys) == 3


def files(folder: Path) -> list[Path]:
    """Files of sessions that hold anything."""
    return [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]


def kept(folder: Path) -> dict[str, Any]:
    [path] = files(folder)
    assert path.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    return dict(json.loads(path.read_bytes()))


def test_files_hold_no_mask_once_the_vector_has_left_and_no_share_once_it_is_unmasked(
    tmp_path: Path,
) -> None:
    clients, server = maskings(tmp_path), ServerSession(SUM)
    masked = until_masked(clients, server)
    memory = kept(tmp_path / "0")["memory"]
    assert (memory["channel"], memory["mask"], memory["seed"]) == ("", "", "")
    assert memory["shares"]
    summed(clients, server, masked)
    assert kept(tmp_path / "0")["memory"]["shares"] == ""
    with pytest.raises(AnsweredError):
        maskings(tmp_path)[0].mask(SUM, server.forwarded(0), REQUEST, lambda: vector(0))


def test_a_wiped_session_holds_nothing_and_is_not_begun_again(tmp_path: Path) -> None:
    clients, server = maskings(tmp_path), ServerSession(SUM)
    until_masked(clients, server)
    sessions = Sessions(tmp_path / "0")
    sessions.wipe(days=1)
    assert kept(tmp_path / "0")
    sessions.wipe(days=0)
    assert files(tmp_path / "0") == []
    for trip in (KEYS, SURVIVORS):
        with pytest.raises(AnsweredError, match="wiped"):
            maskings(tmp_path)[0].answer(trip, SUM, b"")


@pytest.mark.medium
def test_wiping_waits_for_whoever_answers_and_not_where_nothing_is_old(tmp_path: Path) -> None:
    clients, server = maskings(tmp_path), ServerSession(SUM)
    until_masked(clients, server)
    sessions = Sessions(tmp_path / "0")
    context = multiprocessing.get_context("fork")
    held = context.Event()
    other = context.Process(target=_wipe_after, args=(held, tmp_path / "0"))
    other.start()  # before the lock, which a fork would hold as well
    with sessions.held():
        sessions.wipe(days=1)
        held.set()
        other.join(1.0)
        assert other.is_alive()
        assert kept(tmp_path / "0")
    other.join(60.0)
    assert other.exitcode == 0
    assert files(tmp_path / "0") == []


def test_two_processes_that_are_asked_at_once_answer_from_one_session(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with context.Pool(4) as pool:
        keys = pool.map(_keys_in_a_process, [tmp_path] * 12)
    assert len(set(keys)) == 1


def _wipe_after(held: Event, folder: Path) -> None:
    held.wait()
    Sessions(folder).wipe(days=0)


def _keys_in_a_process(folder: Path) -> bytes:
    return maskings(folder)[0].answer(KEYS, SUM, b"")


def test_a_folder_that_cannot_be_written_stops_the_answer(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("no folder")
    with pytest.raises(LedgerError, match="nothing leaves without"):
        maskings(tmp_path)[0].answer(KEYS, SUM, b"")


def test_memory_keeps_the_latest_sessions_only() -> None:
    client = maskings()[0]
    first = client.answer(KEYS, replace(SUM, message="0"), b"")
    assert client.answer(KEYS, replace(SUM, message="0"), b"") == first
    for number in range(1, 20):
        client.answer(KEYS, replace(SUM, message=str(number)), b"")
    with pytest.raises(OutOfTurnError):
        client.answer(SHARES, replace(SUM, message="0"), b"")
    client.answer(KEYS, replace(SUM, message="19"), b"")
