"""Each lie of a server is refused with a code, before anything is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsink.secagg.client import OF_MASK_KEY, OF_SELF_MASK, ClientSession
from fedsink.secagg.identities import Identity, Peers
from fedsink.secagg.masks import SHARE_BYTES, public_of
from fedsink.secagg.parameters import Parameters, Rules
from fedsink.secagg.refusals import (
    AggregationError,
    AnsweredError,
    CohortError,
    MalformedTripError,
    OutOfTurnError,
    RosterError,
    SecretSharesError,
    SurvivorsError,
    UnsignedSurvivorsError,
    UntrustedPeerError,
    WeakKeyError,
    WeakThresholdError,
)
from fedsink.secagg.wire import BOX_BYTES, Entry, KeyRoster, forwarded, joined, named, opened, rows

from ..support.aggregation import Sum, identity, peers, source


def rewritten(played: Sum, client: int, signer: Identity | None = None, **changes: Any) -> bytes:
    """The roster with one entry changed, and signed by `signer` if there is one."""
    entries = dict(KeyRoster(played.server.roster()).entries)
    entry = dataclasses.replace(entries[client], **changes)
    if signer is not None:
        signature = signer.sign("keys", played.parameters.digest, entry.signed)
        entry = dataclasses.replace(entry, signature=signature)
    entries[client] = entry
    return joined((client, entry.rest) for client, entry in entries.items())


def without(roster: bytes, *gone: int) -> bytes:
    kept = [row for row in rows(roster, Entry.REST, "roster") if row[0] not in gone]
    return joined(kept)


KEY = public_of(bytes([9]) * 32)
SMALL = [
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    2**255 - 20,
    2**255 - 19,
    2**255 - 18,
    2**255,
]

# One lie in a trip of seven clients, of whom six have to be left ---------------------------------


def seven(**others: Any) -> Sum:
    return Sum(7, **{"minimum": 6, "rules": Rules(peers(9))} | others)


def stranger(played: Sum) -> bytes:
    """The roster with client 7, which was not asked, and which the owner trusts."""
    entry = Entry(7, identity(7).public, bytes(64), KEY, public_of(bytes([8]) * 32), b"")
    signature = identity(7).sign("keys", played.parameters.digest, entry.signed)
    return played.server.roster() + joined([(7, entry.rest + signature)])


def of_another(**changed: Any) -> Callable[[Sum], bytes]:
    """A roster with the keys that client 2 signed for another message."""
    row = KeyRoster(seven(seed=1, **changed).play(1).server.roster()).entries[2]
    keys = {"mask": row.mask, "channel": row.channel, "signature": row.signature}
    return lambda played: rewritten(played, 2, **keys)


def twice(place: str, of: str) -> Callable[[Sum], bytes]:
    """A roster where client 2 has a key of client 1."""
    return lambda played: rewritten(
        played, 2, identity(2), **{place: getattr(KeyRoster(played.server.roster()).entries[1], of)}
    )


def octets(number: int) -> bytes:
    return number.to_bytes(32, "little")


def roster_rows(played: Sum) -> list[tuple[int, bytes]]:
    return rows(played.server.roster(), Entry.REST, "roster")


def boxes(played: Sum, client: int = 0) -> dict[int, bytes]:
    """The shares that the others have encrypted for a client."""
    return opened(played.server.forwarded(client))[1]


def handed(change: Callable[[Sum], dict[int, bytes]], *gone: int) -> Callable[[Sum], bytes]:
    """Shares for client 0 that everybody is said to have sent, some of them changed or missing."""
    return lambda played: forwarded(
        range(7), [row for row in (boxes(played) | change(played)).items() if row[0] not in gone]
    )


def flipped(played: Sum, place: int) -> dict[int, bytes]:
    box = bytearray(boxes(played)[3])
    box[place] ^= 1
    return {3: bytes(box)}


def six(played: Sum, more: int) -> bytes:
    """Shares of six clients and of one whom these sharers do not name."""
    given = boxes(played)
    last = given.pop(6)
    return forwarded(range(6), (given | {more: last}).items())


def signed(played: Sum, lie: bytes) -> bytes:
    return joined((dict(rows(played.server.signatures(), 64, "")) | {3: lie}).items())


Lie = tuple[type[AggregationError], str | None, Callable[[Sum], bytes]]
ROSTERS: dict[str, Lie] = {
    **{f"another {name}": (
        UntrustedPeerError, "Client 2 did not sign",
        lambda p, name=name, value=value: rewritten(p, 2, **{name: value}),
    ) for name, value in (("channel", KEY), ("mask", KEY), ("signature", bytes(64)))},
    "signed by a stranger": (UntrustedPeerError, "does not trust", lambda p: rewritten(
        p, 2, identity(77), mask=KEY, identity=identity(77).public)),
    **{f"signed for another {name}": (
        UntrustedPeerError, None, of_another(**{name: value})
    ) for name, value in (
        ("run", "s"), ("message", "n"), ("bits", 33), ("length", 4), ("minimum", 5))},
    **{f"{what} of its own": (RosterError, "this client's keys", lie) for what, lie in (
        ("another mask key", lambda p: rewritten(p, 0, mask=KEY)),
        ("another channel key", lambda p: rewritten(p, 0, channel=KEY)),
        ("a signed entry of another message", lambda p: rewritten(p, 0, identity(0), mask=KEY)),
        ("no entry", lambda p: without(p.server.roster(), 0)))},
    "a name twice": (MalformedTripError, "stands after", lambda p: b"".join(
        joined([row]) for row in (*roster_rows(p), roster_rows(p)[-1]))),
    "names out of order": (MalformedTripError, "stands after", lambda p: b"".join(
        joined([row]) for row in reversed(roster_rows(p)))),
    **{f"a {of} key as {place} twice": (RosterError, "twice", twice(place, of)) for place, of in (
        ("mask", "mask"), ("channel", "channel"), ("mask", "channel"))},
    "a stranger": (RosterError, "was not asked", stranger),
    **{f"a {key} key of small order or second form, {small}": (
        WeakKeyError, None,
        lambda p, key=key, small=small: rewritten(p, 2, identity(2), **{key: octets(small)}),
    ) for key in ("channel", "mask") for small in SMALL},
    "two too few": (CohortError, "6 are needed", lambda p: without(p.server.roster(), 5, 6)),
}  # fmt: skip
SHARES: dict[str, Lie] = {
    **{f"byte {place} changed": (
        SecretSharesError, "Client 3", handed(lambda p, place=place: flipped(p, place))
    ) for place in (0, 12, 50, BOX_BYTES - 1)},
    "for another client": (SecretSharesError, None, handed(lambda p: {1: boxes(p, 1)[3]})),
    "its own, sent back": (SecretSharesError, None, handed(lambda p: {1: boxes(p, 1)[0]})),
    # Both directions of a pair have one key: sender and receiver are associated data.
    "its own, for the one that is said to send them": (
        SecretSharesError, "Client 3", handed(lambda p: {3: boxes(p, 3)[0]})),
    "one is missing": (SecretSharesError, None, handed(lambda p: {}, 1)),
    "three are missing": (SecretSharesError, None, handed(lambda p: {}, 1, 2, 3)),
    "of five sharers": (CohortError, "5 clients shared, and 6 are needed", lambda p: forwarded(
        range(5), [row for row in boxes(p).items() if row[0] < 5])),
    **{f"of whom the sharers do not name, {who}": (
        SecretSharesError, "neighbours that shared", lambda p, who=who: six(p, who)
    ) for who in (6, 9, 0)},
    "without itself": (SecretSharesError, None, lambda p: forwarded(range(1, 7), boxes(p).items())),
    "and sharers of a stranger": (
        SecretSharesError, None, lambda p: forwarded([*range(7), 9], boxes(p).items())),
}  # fmt: skip
SURVIVORS: dict[str, Lie] = {
    "without itself": (SurvivorsError, None, lambda p: named(range(1, 7))),
    "with a stranger": (SurvivorsError, None, lambda p: named([*range(6), 9])),
    "one too few": (CohortError, "6", lambda p: named(range(5))),
}
SIGNATURES: dict[str, Lie] = {
    "of nobody": (UnsignedSurvivorsError, "Client 3", lambda p: signed(p, bytes(64))),
    "of another": (UnsignedSurvivorsError, "Client 3", lambda p: signed(
        p, dict(rows(p.server.signatures(), 64, ""))[4])),
    "of another run, with the same keys": (
        UnsignedSurvivorsError, None, lambda p: seven(run="s").play(4).server.signatures()),
}  # fmt: skip
LIES = {
    (trip, what): lie
    for trip, lies in enumerate((ROSTERS, SHARES, SURVIVORS, SIGNATURES), start=1)
    for what, lie in lies.items()
}


@pytest.mark.parametrize(("trip", "what"), LIES)
def test_a_lie_is_refused_before_anything_is_given(trip: int, what: str) -> None:
    played = seven().play(trip)
    error, words, lie = LIES[trip, what]
    if trip == 2:
        played.server.sharers()
    session, content = played.client(0), lie(played)
    ask = (session.shares, lambda sent: played.mask(0, sent), session.survivors, session.unmask)
    with pytest.raises(error, match=words):
        ask[trip - 1](content)
    assert trip > 2 or played.computed == []
    if trip < 4:
        assert len(session._memory.answers) == trip


def test_an_identity_twice_is_refused() -> None:
    twin = Rules(Peers({**peers(5).keys, 2: identity(1).public}))
    twins = Sum(rules=twin)
    twins.sessions[2] = ClientSession(twins.parameters, 2, identity(1), twin, source("twin"))
    rows_of = [(c, twins.sessions[c].keys()[4:]) for c in range(5)]
    with pytest.raises(RosterError, match="twice"):
        twins.client(0).shares(joined(rows_of))


def test_a_cohort_below_the_minimum_is_refused_by_its_owner() -> None:
    with pytest.raises(CohortError, match="owner"):
        Sum(5, rules=Rules(peers(5), minimum_cohort=5))
    assert Sum(5, minimum=5, rules=Rules(peers(5), minimum_cohort=5)).play().result()


def test_a_threshold_too_low_is_refused_by_protocol_and_owner() -> None:
    for threshold in (1, 5, 6):
        with pytest.raises(WeakThresholdError):
            Sum(9, threshold=threshold)
    Sum(9, threshold=7)
    with pytest.raises(WeakThresholdError, match="owner"):
        Sum(9, threshold=7, rules=Rules(peers(9), threshold=0.8))
    Sum(9, threshold=8, rules=Rules(peers(9), threshold=0.8))


def test_a_client_that_is_not_asked_takes_no_part() -> None:
    with pytest.raises(RosterError, match="not asked"):
        ClientSession(Sum().parameters, 5, identity(5), Rules(peers(6)))


def test_shares_of_another_roster_are_refused() -> None:
    """With the same keys: a server shows one client a roster without client 5."""
    played = Sum(6, minimum=5).play(1)
    short = without(played.server.roster(), 5)
    played.server.take_shares(1, played.client(1).shares(short))
    boxes = dict(rows(played.client(1).shares(short), BOX_BYTES, ""))
    assert 5 not in boxes
    for client in (0, 2, 3, 4, 5):
        played.server.take_shares(client, played.client(client).shares(played.server.roster()))
    others = opened(played.server.forwarded(0))[1]
    with pytest.raises(SecretSharesError, match="Client 1"):
        played.mask(0, forwarded(range(6), [*others.items(), (1, boxes[0])]))


def test_too_few_sharers_around_a_client_are_refused_in_a_large_cohort() -> None:
    """Else its vector would leave for a sum whose masks its neighbours cannot take off."""
    played = Sum(70).play(2)
    around, parameters = played.server._circle.around(0), played.parameters
    _, boxes = opened(played.server.forwarded(0))
    for few, refused in ((parameters.threshold - 1, True), (parameters.threshold, False)):
        gone = set([client for client in around if client][few - 1 :])
        sharers = set(range(70)) - gone
        assert len(sharers) >= parameters.least
        content = forwarded(sharers, [row for row in boxes.items() if row[0] not in gone])
        if refused:
            with pytest.raises(CohortError, match=f"{few} clients around this one shared"):
                played.mask(0, content)
            assert played.computed == []
        else:
            played.mask(0, content)


# Masked vectors --------------------------------------------------------------------------------


def test_a_vector_is_computed_once_and_its_answer_repeated() -> None:
    played = Sum(stored=True).play(2)
    played.server.sharers()
    first = played.mask(0)
    assert played.computed == [0]
    played.vectors[0] = played.vectors[0] + 1
    assert played.mask(0) == first
    assert played.computed == [0]


def test_a_vector_that_fails_leaves_the_trip_open() -> None:
    played = Sum().play(2)

    def fails() -> Any:
        raise OSError("no data today")

    content = played.server.forwarded(0) if played.server.sharers() else b""
    with pytest.raises(OSError, match="no data"):
        played.client(0).masked(content, b"request", fails)
    for wrong in (
        np.zeros(2, np.int64),
        np.zeros((1, 3), np.int64),
        np.zeros(3),
        np.zeros(3, "i4"),
    ):
        with pytest.raises(MalformedTripError):
            played.client(0).masked(content, b"request", lambda wrong=wrong: wrong)
    played.masked()


@pytest.mark.parametrize("gone", [{}, {2: [4]}])
def test_vectors_for_different_requests_leave_masks_in_their_sum(
    gone: dict[int, list[int]],
) -> None:
    length = 6000
    for other in (b"request", b"another"):
        played = Sum(5, length=length)
        played.vectors = dict.fromkeys(played.vectors, np.zeros(length, np.int64))
        played.requests[0] = other
        total = played.play(gone=gone).result().total
        ones = np.unpackbits(total.astype("<u4").view(np.uint8)).mean()
        assert (
            ones == 0 if other == b"request" else abs(ones - 0.5) < 5 * 0.5 / (32 * length) ** 0.5
        )


@pytest.mark.parametrize("bits", [16, 24, 32, 33, 60])
def test_a_masked_vector_is_uniform_in_all_bits_whatever_the_vector(bits: int) -> None:
    length = 6000
    for x in (0, (1 << (bits - 1)) - 1):
        played = Sum(4, bits=bits, length=length, seed=bits)
        played.vectors[0] = np.full(length, x)
        played.play(2)
        played.server.sharers()
        width = -(-bits // 8)
        octets = np.frombuffer(played.mask(0), np.uint8).reshape(length, width)
        ones = np.unpackbits(octets, axis=1, bitorder="little")[:, :bits].mean(axis=0)
        assert np.abs(ones - 0.5).max() < 5 * 0.5 / length**0.5
        assert not np.unpackbits(octets, axis=1, bitorder="little")[:, bits:].any()


def test_masks_of_two_messages_are_independent_even_with_the_same_keys() -> None:
    length, answers = 6000, []
    for message in ("a", "b"):
        played = Sum(4, message=message, length=length, seed=0)  # the same keys and self mask
        played.vectors[0] = np.zeros(length, np.int64)
        played.play(2)
        played.server.sharers()
        answers.append(np.frombuffer(played.mask(0), "<u4"))
    difference = answers[0] - answers[1]
    octets = np.unpackbits(difference.view(np.uint8)).reshape(length, 32).mean(axis=0)
    assert np.abs(octets - 0.5).max() < 5 * 0.5 / length**0.5


@pytest.mark.parametrize("clients", [5, 70])
def test_every_secret_is_drawn_by_itself(clients: int) -> None:
    """No key, self mask or nonce is derived from another one, or from what the server sees.

    Both directions of a pair are encrypted under one key: a nonce twice would give the sum of two
    shares away, and whoever has one of them the other.
    """
    played = Sum(clients).play(1)
    drawn: list[bytes] = []

    def recorded(random: Callable[[int], bytes]) -> Callable[[int], bytes]:
        def draw(size: int) -> bytes:
            drawn.append(random(size))
            return drawn[-1]

        return draw

    roster, nonces = played.server.roster(), []
    for client in range(2):
        session = ClientSession(
            played.parameters, client, identity(client), played.rules, recorded(source((0, client)))
        )
        session.keys()
        boxes = rows(session.shares(roster), BOX_BYTES, "")
        nonces += [box[:12] for _, box in boxes]
        memory = session._memory
        secrets = [memory.channel, memory.mask, memory.seed]
        assert [drawn.count(secret) for secret in secrets] == [1, 1, 1]
        assert len(set(secrets)) == 3
    assert len(set(nonces)) == len(nonces) == 2 * played.parameters.neighbours
    assert all(drawn.count(nonce) == 1 for nonce in nonces)


def test_every_session_has_fresh_secrets() -> None:
    parameters, rules = Sum().parameters, Rules(peers(5))
    known = [ClientSession(parameters, 0, identity(0), rules).keys() for _ in range(3)]
    assert len({row[100:164] for row in known}) == 3


# Survivors -------------------------------------------------------------------------------------


def test_survivors_that_sent_no_shares_are_refused() -> None:
    played = Sum(7).play(3, gone={1: [6]})
    with pytest.raises(SurvivorsError):
        played.client(0).survivors(named(range(7)))


@pytest.mark.parametrize("minimum", [2, 6])
def test_too_few_survivors_are_refused(minimum: int) -> None:
    played = Sum(7, minimum=minimum).play(3)
    least = max(minimum, 5)
    with pytest.raises(CohortError, match=f"{least}"):
        played.client(0).survivors(named(range(least - 1)))
    assert len(played.client(0).survivors(named(range(least)))) == 64


@pytest.mark.medium
def test_too_few_survivors_around_a_client_are_refused() -> None:
    played = Sum(70).play(3)
    around, parameters = played.server._circle.around(0), played.parameters
    gone = set(around[parameters.threshold - 1 :])
    with pytest.raises(CohortError, match="around"):
        played.client(0).survivors(named(set(range(70)) - gone))


# Unmasking -------------------------------------------------------------------------------------


def test_a_client_gives_one_share_of_each_neighbour() -> None:
    played = Sum(7).play(4, gone={1: [6], 2: [5]})
    answer = played.client(0).unmask(played.server.signatures())
    given = {owner: rest[:1] for owner, rest in rows(answer, 1 + SHARE_BYTES, "")}
    assert given == {**dict.fromkeys(range(5), OF_SELF_MASK), 5: OF_MASK_KEY}


def test_fewer_than_two_thirds_of_all_clients_signatures_are_refused() -> None:
    played = Sum(7).play(4)
    signatures = rows(played.server.signatures(), 64, "")
    with pytest.raises(UnsignedSurvivorsError, match="4 clients have signed"):
        played.client(0).unmask(joined(signatures[:4]))
    assert played.client(0).unmask(joined(signatures[:5]))


@pytest.mark.medium
def test_signatures_of_a_neighbourhood_are_not_enough_in_a_large_cohort() -> None:
    played = Sum(70).play(4)
    around = set(played.server._circle.around(0))
    near = [row for row in rows(played.server.signatures(), 64, "") if row[0] in around]
    assert len(near) >= played.parameters.threshold
    with pytest.raises(UnsignedSurvivorsError):
        played.client(0).unmask(joined(near))


def test_a_stranger_that_signs_is_refused() -> None:
    played = Sum(7).play(4, gone={2: [6]})
    signed = played.server._roster.digest, named(range(7)), named(range(6))
    extra = joined([(6, identity(6).sign("survivors", *signed))])
    with pytest.raises(UnsignedSurvivorsError, match="Client 6"):
        played.client(0).unmask(played.server.signatures() + extra)


@pytest.mark.parametrize("lie", ["survivors", "sharers", "roster"])
def test_signatures_of_another_statement_do_not_count(lie: str) -> None:
    """A server that shows different sets to different clients unmasks nothing."""
    played = Sum(7).play(4)
    statement = {
        "roster": played.server._roster.digest,
        "sharers": named(range(7)),
        "survivors": named(range(7)),
    }
    assert played.client(0)._memory.answers[3][1] == identity(0).sign(
        "survivors", *statement.values()
    )
    statement[lie] = bytes(32) if lie == "roster" else named(range(6))
    others = [(c, identity(c).sign("survivors", *statement.values())) for c in range(1, 7)]
    with pytest.raises(UnsignedSurvivorsError):
        played.client(0).unmask(joined(others))


def test_a_peer_both_alive_and_dead_gets_no_two_shares() -> None:
    """Two groups are shown different survivors: both answers together would unmask client 6."""
    played = Sum(7, minimum=5).play(3)
    alive, dead = named(range(7)), named(range(6))
    half = {c: alive if c < 3 else dead for c in range(6)}
    signatures = {c: played.client(c).survivors(half[c]) for c in half}
    for client, shown in half.items():
        for some in ([c for c in half if half[c] == shown], list(half)):
            with pytest.raises(UnsignedSurvivorsError):
                played.client(client).unmask(joined((c, signatures[c]) for c in some))


ONCE: dict[str, tuple[int, Callable[[Sum], object]]] = {
    "another roster": (2, lambda p: p.client(0).shares(without(p.server.roster(), 6))),
    "other sharers": (3, lambda p: p.mask(0, forwarded(range(6), list(boxes(p).items())[:5]))),
    "another request": (3, lambda p: [p.requests.update({0: b"another"}), p.mask(0)]),
    "other survivors": (4, lambda p: p.client(0).survivors(named(range(6)))),
    "other signatures": (5, lambda p: p.client(0).unmask(
        joined(rows(p.server.signatures(), 64, "")[:6]))),
}  # fmt: skip


@pytest.mark.parametrize("other", ONCE)
def test_no_trip_is_answered_a_second_time_for_other_content(other: str) -> None:
    trips, ask = ONCE[other]
    played = seven(stored=True).play(trips)
    with pytest.raises(AnsweredError):
        ask(played)
    assert played.computed.count(0) == (trips > 2)
    if trips == 5:
        signatures = played.server.signatures()
        assert played.client(0).unmask(signatures) == played.client(0).unmask(signatures)


# Sessions --------------------------------------------------------------------------------------


def test_trips_are_answered_in_their_order() -> None:
    played = Sum().play(1)
    fresh, begun = played.begin(0), played.client(0)
    for session, done in ((fresh, 0), (begun, 1)):
        for ask in (session.shares, session.survivors, session.unmask)[done:]:
            with pytest.raises(OutOfTurnError):
                ask(played.server.roster())
        with pytest.raises(OutOfTurnError):
            session.masked(b"", b"", lambda: np.zeros(3, np.int64))


def test_the_same_question_has_the_same_answer_after_a_crash_between_any_two_trips() -> None:
    played, stored = Sum(6).play(), Sum(6, stored=True).play()
    for client in range(6):
        assert len(played.client(client)._memory.answers) == 5
        assert played.result().total.tolist() == played.plain(range(6)).tolist()
    assert stored.result().total.tolist() == stored.plain(range(6)).tolist()
    session = stored.client(0)
    assert session.keys() in stored.server.roster()
    assert session.shares(stored.server.roster()) == session.shares(stored.server.roster())


def test_secrets_are_gone_once_they_are_not_needed() -> None:
    played = Sum(5).play(2)
    memory = played.client(0)._memory
    secrets = {memory.channel, memory.mask, memory.seed}
    assert all(len(secret) == 32 for secret in secrets)
    played.masked()
    assert (memory.channel, memory.mask, memory.seed) == (b"", b"", b"")
    own = memory.shares
    played.survivors()
    played.unmask()
    assert memory.shares == b""
    content = played.client(0).to_bytes()
    restored = ClientSession.from_bytes(content, identity(0), played.rules)
    assert vars(restored._memory) == vars(memory)
    kept = [restored._memory.roster, restored._memory.sharers, restored._memory.survivors]
    kept += [part for answer in restored._memory.answers for part in answer]
    for secret in (*secrets, own[4 : 4 + SHARE_BYTES]):
        assert not any(secret in part for part in kept)
    with pytest.raises(AnsweredError):
        played.mask(0)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"\xff", b'{"parameters": {}, "client": 0}']
)
def test_something_else_is_no_session(content: bytes) -> None:
    with pytest.raises(MalformedTripError):
        ClientSession.from_bytes(content, identity(0), Rules(peers(5)))


# Hostile bytes ---------------------------------------------------------------------------------


def asked(played: Sum, client: int) -> tuple[list[Callable[[Any], bytes]], list[bytes]]:
    """The trips of a client that has answered some, and the honest content of each."""
    session, server = played.sessions[client], played.server
    vector = played.vectors[client]
    trips = [
        session.shares,
        lambda content: session.masked(content, b"request", lambda: vector),
        session.survivors,
        session.unmask,
    ]
    contents = [server.roster(), server.forwarded(client), server.survivors(), server.signatures()]
    return trips, contents


@pytest.fixture(scope="module")
def stages() -> list[tuple[bytes, Sum]]:
    """A client's stored session before each trip, and the message played to its end."""
    whole = Sum(3).play()  # of three clients all are needed in every trip
    return [(Sum(3).play(trips).client(0).to_bytes(), whole) for trips in range(1, 5)]


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_hostile_bytes_raise_the_protocols_errors_only(
    data: st.DataObject, stages: list[tuple[bytes, Sum]]
) -> None:
    trip = data.draw(st.integers(0, 3))
    content, whole = stages[trip]
    session = ClientSession.from_bytes(content, identity(0), whole.rules)
    whole.sessions[0] = session
    trips, honest = asked(whole, 0)
    sent = bytearray(honest[trip])
    kind = data.draw(st.sampled_from(["flip", "cut", "more", "any", "another trip"]))
    if kind == "flip":
        sent[data.draw(st.integers(0, len(sent) - 1))] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        del sent[data.draw(st.integers(0, len(sent) - 1)) :]
    elif kind == "more":
        sent += data.draw(st.binary(min_size=1, max_size=300))
    elif kind == "any":
        sent = bytearray(data.draw(st.binary(max_size=600)))
    else:
        sent = bytearray(honest[(trip + 1) % 4])
    before = session.to_bytes()
    with pytest.raises(AggregationError):
        trips[trip](bytes(sent))
    assert session.to_bytes() == before, "a refusal changed something"


@pytest.mark.parametrize("content", [None, "text", 7, 1.5, [], {}, bytearray(4), memoryview(b"")])
def test_what_is_no_bytes_is_malformed(content: Any, stages: list[tuple[bytes, Sum]]) -> None:
    for trip, (stored, whole) in enumerate(stages):
        whole.sessions[0] = ClientSession.from_bytes(stored, identity(0), whole.rules)
        with pytest.raises(MalformedTripError):
            asked(whole, 0)[0][trip](content)


ORDINARY = Sum().parameters.to_dict()
ANY = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=4),
    st.lists(st.integers(-2, 2**33), max_size=4),
)  # fmt: skip


@pytest.mark.medium
@given(st.dictionaries(st.sampled_from([*Parameters.__dataclass_fields__, "other"]), ANY))
@settings(max_examples=200, deadline=None)
def test_hostile_parameters_raise_the_protocols_errors_only(changed: dict[str, Any]) -> None:
    values = ORDINARY | changed
    try:
        read = Parameters.from_dict(values)
    except AggregationError:
        return
    assert len(read.digest) == 32
    assert 3 * read.threshold > 2 * (read.neighbours + 1)
