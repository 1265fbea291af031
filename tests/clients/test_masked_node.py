"""Nodes of several owners add up their replies under masks: what they answer, and what not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message, RecordDict

from fedsink.clients.node import close_nodes
from fedsink.clients.node_cohort import NodeCohort
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.ledger.account_report import report
from fedsink.clients.owner.ledger.database import Database
from fedsink.clients.owner.policy_file import read_policy
from fedsink.protocol.aggregation import (
    KEYS,
    SHARES,
    SURVIVORS,
    TRIPS,
    UNMASK,
    Trip,
    put_trip,
    trip_ahead,
    trip_of,
)
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.exchange import Reduction
from fedsink.protocol.failure_codes import (
    BAD_SIGNATURE,
    MALFORMED,
    MEANING,
    OUT_OF_TURN,
    REFUSED,
    SMALL_COHORT,
    SUM_REFUSED,
    SUMMED_ALREADY,
    UNSIGNED,
    UNTRUSTED_PEER,
    WEAK_THRESHOLD,
)
from fedsink.protocol.packing import pack
from fedsink.protocol.requests import unpack_replies
from fedsink.protocol.signing import NodeIdentityKey, node_receipt, shown_key, sign
from fedsink.secagg.identities import certify
from fedsink.secagg.parameters import Parameters
from fedsink.server.masked_grid import MaskedGrid
from fedsink.simulation.grid import client_of

from ..support.consortium import KIND, Consortium, shared, unchanged
from ..support.policies import limits

Make = Callable[..., GradientRequest]
RUN = "unnamed"
ORDER = (f"query.{KEYS}", f"query.{SHARES}", KIND, f"query.{SURVIVORS}", f"query.{UNMASK}")


def summed(
    nodes: Consortium, request: GradientRequest, clients: list[int] | None = None
) -> Reduction:
    reduction = MaskedGrid(nodes, RUN).send_and_receive(nodes.exchange(request, clients))
    assert isinstance(reduction, Reduction)
    return reduction


def clients_in(reduction: Reduction) -> int:
    """The number of clients in a reduction's one sum."""
    [total] = reduction.sums
    assert total is not None
    return total.clients


def rounds(make_request: Make, count: int) -> list[GradientRequest]:
    return [shared(make_request(round=1 + number), 3) for number in range(count)]


def exchanged(
    nodes: Consortium, grid: MaskedGrid, requests: list[GradientRequest], number: int
) -> Reduction:
    """The sums of one request, while the next one is announced."""
    following = requests[number + 1] if number + 1 < len(requests) else None
    reduction = grid.send_and_receive(nodes.exchange(requests[number], following=following))
    assert isinstance(reduction, Reduction)
    return reduction


def losing(kind: str, client: int) -> Callable[[Message], Message | None]:
    """A way on which one client gets nothing from one trip on."""
    gone = False

    def way(message: Message) -> Message | None:
        nonlocal gone
        at = message.metadata.message_type == kind
        gone = gone or at
        return None if gone and client_of(message.metadata.dst_node_id) == client else message

    return way


def codes(nodes: Consortium) -> set[int]:
    return {code for _, _, code in nodes.codes}


@pytest.mark.medium
def test_the_sum_is_that_of_the_replies_without_masks(tmp_path: Path, make_request: Make) -> None:
    nodes = Consortium(tmp_path, allow={"secure_aggregation": "trusted"})
    request = shared(make_request(), 4)
    [total] = summed(nodes, request).sums
    replies = [
        unpack_replies(nodes.send(client, request.to_record()).content)[0] for client in range(4)
    ]
    assert total is not None
    assert total.clients == 4
    assert torch.equal(total.total[0], torch.stack(replies).sum(0))
    assert nodes.claims() == [1, 1, 1, 1]


def test_a_policy_of_masks_gives_no_reply_without_them(tmp_path: Path, make_request: Make) -> None:
    nodes = Consortium(tmp_path)
    assert nodes.send(0, shared(make_request(), 4).to_record()).error.code == REFUSED
    assert nodes.claims() == [0, 0, 0, 0]
    assert not nodes.send(0, make_request().to_record()).has_error()  # its noise is its own


def test_no_engine_gives_a_share_without_masks(tmp_path: Path, make_request: Make) -> None:
    request = shared(make_request(clip="record"), 4)
    for rule, code in (("masked", REFUSED), ("trusted", None)):
        nodes = Consortium(tmp_path / rule, allow={"secure_aggregation": rule})
        close_nodes()
        path = nodes.folders[0] / "policy.toml"
        settings = NodeSettings.from_policy(read_policy(path), clients=4)
        assert not NodeCohort(settings).handles(KIND)  # a policy's clients answer one by one
        reply = nodes.send(0, request.to_record())
        assert reply.has_error() == (code is not None)
        assert nodes.claims()[0] == (code is None)


def keys_of(run: str) -> RecordDict:
    return put_trip(pack({}, {}), Trip(Parameters(run, f"{KIND} 1", (0, 1, 2, 3), 32, 24, 3)))


@pytest.mark.medium
def test_keys_under_invented_names_fill_no_folder(tmp_path: Path, make_request: Make) -> None:
    nodes, requests = Consortium(tmp_path), rounds(make_request, 2)
    grid = MaskedGrid(nodes, RUN)
    assert clients_in(exchanged(nodes, grid, requests, 0)) == 4
    kept = nodes.folders[0] / "state" / "sessions" / "open"
    assert len(list(kept.iterdir())) == 1  # of the next sum, of the run that is admitted
    for number in range(40):
        assert not nodes.send(0, keys_of(f"invented {number}"), ORDER[0]).has_error()
    assert len(list(kept.iterdir())) == 32
    assert clients_in(exchanged(nodes, grid, requests, 1)) == 4
    assert nodes.claims()[0] == 2


def test_where_operators_are_named_nothing_is_written_for_an_unsigned_query(tmp_path: Path) -> None:
    known = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    nodes = Consortium(tmp_path, operators={"lab": shown_key(known)})
    for number in range(3):
        reply = nodes.send(0, keys_of(f"invented {number}"), ORDER[0])
        assert reply.error.code == UNSIGNED
    assert not (nodes.folders[0] / "state" / "sessions").exists()


@pytest.mark.medium
def test_the_plan_of_the_sum_is_charged(tmp_path: Path, make_request: Make) -> None:
    spent = []
    for name, mode in (("a", "masked"), ("b", "untrusted")):
        nodes = Consortium(
            tmp_path / name, allow={"secure_aggregation": mode, "minimum_noise_multiplier": 0.1}
        )
        summed(nodes, shared(make_request(), 4))
        database = Database(nodes.folders[0] / "state" / "ledger.sqlite", writable=False)
        [account] = report(database)
        [run] = account.runs
        assert (run.plan["share"], run.plan["aggregation_trusted"]) == (4, mode == "masked")
        spent.append(run.epsilon)
    request = make_request()
    assert spent[0] == pytest.approx(request.plan.epsilon("pld"), rel=1e-3)
    assert spent[1] > 1.5 * spent[0]


@pytest.mark.medium
@pytest.mark.parametrize(("place", "charged"), [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1)])
def test_a_client_that_is_lost_is_charged_once_if_its_vector_left(
    tmp_path: Path, make_request: Make, place: int, charged: int
) -> None:
    nodes = Consortium(tmp_path)
    nodes.way = losing(ORDER[place], 3)
    reduction = summed(nodes, shared(make_request(), 3))
    assert nodes.claims() == [1, 1, 1, charged]
    assert clients_in(reduction) == (3 if place < 3 else 4)
    assert list(reduction.absent) == ([3] if place < 3 else [])


@pytest.mark.medium
@pytest.mark.parametrize("place", range(5))
def test_too_few_clients_make_a_message_void(
    tmp_path: Path, make_request: Make, place: int
) -> None:
    nodes = Consortium(tmp_path)
    first, second = losing(ORDER[place], 3), losing(ORDER[place], 0)
    nodes.way = lambda message: None if first(message) is None else second(message)
    reduction = summed(nodes, shared(make_request(), 3))
    assert reduction.is_void
    assert "is void" in reduction.void[0]
    assert list(reduction.absent) == [0, 1, 2, 3]
    charged = [1, 1, 1, 1] if place > 2 else [0, 1, 1, 0] if place == 2 else [0] * 4
    assert nodes.claims() == charged


@pytest.mark.medium
def test_a_server_that_starts_again_gets_the_same_sum_or_none(
    tmp_path: Path, make_request: Make
) -> None:
    """Clients answer again with the same bytes, until the message is unmasked."""
    nodes, request = Consortium(tmp_path), shared(make_request(), 3)
    first, second = losing(ORDER[3], 3), losing(ORDER[3], 0)
    nodes.way = lambda message: None if first(message) is None else second(message)
    assert summed(nodes, request).is_void
    nodes.way = lambda message: message
    assert clients_in(summed(nodes, request)) == 4
    assert nodes.claims() == [1, 1, 1, 1]

    nodes.codes.clear()
    for connected in ([0, 1, 2], None):  # it is over
        assert summed(nodes, request, connected).is_void
    assert codes(nodes) == {SUMMED_ALREADY}
    assert nodes.claims() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("aggregation", "clients", "code"),
    [
        ({"minimum_cohort": 4}, [0, 1, 2], SMALL_COHORT),
        ({"tolerate_dropouts": 0}, None, SMALL_COHORT),
        ({"threshold": 0.8}, None, WEAK_THRESHOLD),
    ],
)
def test_the_owners_table_refuses_a_sum_before_any_key_is_sent(
    tmp_path: Path,
    make_request: Make,
    aggregation: dict[str, float],
    clients: list[int] | None,
    code: int,
) -> None:
    nodes = Consortium(tmp_path, aggregation=aggregation)
    assert summed(nodes, shared(make_request(), 3), clients).is_void
    assert {(kind, answer) for kind, _, answer in nodes.codes} == {(ORDER[0], code)}
    assert nodes.claims() == [0, 0, 0, 0]


@pytest.mark.medium
def test_a_stranger_in_the_roster_is_refused_before_anything_is_shared(
    tmp_path: Path, make_request: Make
) -> None:
    nodes = Consortium(tmp_path)
    peers = nodes.folders[0] / "peers.toml"
    peers.write_text("".join(peers.read_text().splitlines(keepends=True)[:3]))
    reduction = summed(nodes, shared(make_request(), 3))
    assert (ORDER[1], 0, UNTRUSTED_PEER) in nodes.codes
    assert list(reduction.absent) == [0]  # the others go on without it
    assert nodes.claims() == [0, 1, 1, 1]


@pytest.mark.medium
def test_an_authority_stands_for_all_peers(tmp_path: Path, make_request: Make) -> None:
    authority = Ed25519PrivateKey.from_private_bytes(b"a" * 32)
    nodes = Consortium(tmp_path)
    shown = shown_key(authority.public_key().public_bytes_raw())
    for client, home in enumerate(nodes.folders):
        public = NodeIdentityKey.at(home / "state").public
        number = client if client < 3 else 7  # the last one has another client's certificate
        text = (home / "policy.toml").read_text()
        certificate = certify(authority, number, public).hex()
        text = text.replace(
            'peers = "peers.toml"', f'authority = "{shown}"\ncertificate = "{certificate}"'
        )
        (home / "policy.toml").write_text(text)
    reduction = summed(nodes, shared(make_request(), 3), [0, 1, 2])
    assert not reduction.void
    assert summed(nodes, shared(make_request(round=2), 3)).is_void
    assert codes(nodes) == {UNTRUSTED_PEER}


@pytest.mark.parametrize(
    "fields",
    [{"minimum": 3}, {"run": "another"}, {"message": "0" * 64}, {"bits": 40}, {"length": 23}],
)
def test_a_sum_of_something_else_than_the_request_is_refused_before_it_is_charged(
    tmp_path: Path, make_request: Make, fields: dict[str, object]
) -> None:
    nodes, request = Consortium(tmp_path), shared(make_request(), 4)
    values = {**parameters_of(nodes, request).to_dict(), **fields}
    parameters = Parameters.from_dict({**values, "threshold": 0, "neighbours": 0})
    record = put_trip(request.to_record(), Trip(parameters))
    assert nodes.send(0, record).error.code == SUM_REFUSED
    assert nodes.claims() == [0, 0, 0, 0]


def test_a_server_does_not_choose_who_is_in_a_sum(tmp_path: Path, make_request: Make) -> None:
    """Those that collude with it would be more than a third of the few that it asks."""
    nodes, request = Consortium(tmp_path), shared(make_request(), 3)
    exchange = nodes.exchange(request, [0, 1, 2])
    exchange.broadcasts = [replace(exchange.broadcasts[0], cohort=(0, 1, 2))]
    reduction = MaskedGrid(nodes, RUN).send_and_receive(exchange)
    assert isinstance(reduction, Reduction)
    assert reduction.is_void
    assert nodes.codes == [(KIND, client, SUM_REFUSED) for client in range(3)]
    assert nodes.claims() == [0, 0, 0, 0]
    assert nodes.clients == 4


@pytest.mark.medium
def test_keys_and_shares_travel_with_the_sum_before(tmp_path: Path, make_request: Make) -> None:
    nodes = Consortium(tmp_path)
    grid, requests = MaskedGrid(nodes, RUN), rounds(make_request, 3)
    for number in range(3):
        asked: dict[str, int] = Counter()

        def way(message: Message, asked: dict[str, int] = asked) -> Message:
            asked[message.metadata.message_type] += 1
            return message

        nodes.way = way
        assert clients_in(exchanged(nodes, grid, requests, number)) == 4
        assert asked == dict.fromkeys(ORDER if number == 0 else ORDER[2:], 4)
    assert nodes.claims() == [3, 3, 3, 3]
    assert not nodes.codes


@pytest.mark.medium
@pytest.mark.parametrize(
    ("place", "sums"), [(2, [3, 3, 4]), pytest.param(3, [4, 3, 4], marks=pytest.mark.medium),
                        pytest.param(4, [4, 4, 4], marks=pytest.mark.medium)],
)  # fmt: skip
def test_a_client_that_misses_keys_or_shares_misses_that_sum_only(
    tmp_path: Path, make_request: Make, place: int, sums: list[int]
) -> None:
    nodes = Consortium(tmp_path)
    grid, requests = MaskedGrid(nodes, RUN), rounds(make_request, 3)
    nodes.way = losing(ORDER[place], 3)
    found = []
    for number in range(3):
        found.append(clients_in(exchanged(nodes, grid, requests, number)))
        nodes.way = unchanged
    assert found == sums
    assert nodes.claims() == [3, 3, 3, sum(clients == 4 for clients in sums)]


@pytest.mark.medium
@pytest.mark.parametrize("place", [2, pytest.param(3, marks=pytest.mark.medium)])
def test_a_sum_that_too_few_have_prepared_is_begun_again(
    tmp_path: Path, make_request: Make, place: int
) -> None:
    nodes = Consortium(tmp_path)
    grid, requests = MaskedGrid(nodes, RUN), rounds(make_request, 2)
    first, second = losing(ORDER[place], 3), losing(ORDER[place], 0)
    nodes.way = lambda message: None if first(message) is None else second(message)
    assert exchanged(nodes, grid, requests, 0).is_void
    nodes.way = unchanged
    assert clients_in(exchanged(nodes, grid, requests, 1)) == 4


@pytest.mark.medium
def test_a_sum_that_was_not_announced_begins_anew(tmp_path: Path, make_request: Make) -> None:
    nodes = Consortium(tmp_path)
    grid, requests = MaskedGrid(nodes, RUN), rounds(make_request, 3)
    exchanged(nodes, grid, requests, 0)
    assert clients_in(exchanged(nodes, grid, requests, 2)) == 4
    assert not nodes.codes


@pytest.mark.medium
def test_a_refusal_of_the_next_sum_leaves_this_one(
    tmp_path: Path, make_request: Make, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = Consortium(tmp_path, aggregation={"minimum_cohort": 4})
    grid = MaskedGrid(nodes, RUN)
    requests = [shared(make_request(), 4), shared(make_request(round=2), 3)]
    assert clients_in(exchanged(nodes, grid, requests, 0)) == 4
    assert not nodes.codes
    assert f"client 0 {MEANING[SMALL_COHORT]}" in caplog.text
    assert exchanged(nodes, grid, requests, 1).is_void
    assert codes(nodes) == {SMALL_COHORT}
    assert nodes.claims() == [1, 1, 1, 1]


def test_only_two_trips_take_a_trip_of_the_next_sum_along(
    tmp_path: Path, make_request: Make
) -> None:
    nodes, requests = Consortium(tmp_path), rounds(make_request, 2)
    sums = [parameters_of(nodes, request) for request in requests]
    for trip in (KEYS, SHARES, UNMASK):
        record = put_trip(RecordDict(), Trip(sums[0]), Trip(sums[1]))
        assert nodes.send(0, record, f"query.{trip}").error.code == MALFORMED


def test_a_client_that_is_not_connected_has_dropped_out(tmp_path: Path, make_request: Make) -> None:
    nodes, request = Consortium(tmp_path), shared(make_request(), 3)
    assert clients_in(summed(nodes, request, [0, 1, 3])) == 3
    assert nodes.claims() == [1, 1, 0, 1]


def parameters_of(nodes: Consortium, request: GradientRequest) -> Parameters:
    """The public numbers of a request's sum."""
    seen: list[Message] = []
    nodes.way = seen.append  # type: ignore[assignment]  # nothing arrives
    summed(nodes, request)
    nodes.way = lambda message: message
    return trip_of(seen[0].content, nodes.clients)[0]


def test_the_trips_come_in_order(tmp_path: Path, make_request: Make) -> None:
    nodes, request = Consortium(tmp_path), shared(make_request(), 4)
    parameters = parameters_of(nodes, request)
    for trip in TRIPS[1:]:
        record = put_trip(pack({}, {}), Trip(parameters))
        assert nodes.send(0, record, f"query.{trip}").error.code == OUT_OF_TURN
    record = put_trip(request.to_record(), Trip(parameters))
    assert nodes.send(0, record).error.code == OUT_OF_TURN
    assert nodes.claims() == [0, 0, 0, 0]


@pytest.mark.medium
def test_a_node_without_the_table_takes_no_part(tmp_path: Path, make_request: Make) -> None:
    nodes = Consortium(tmp_path, allow={"secure_aggregation": "trusted"})
    path = nodes.folders[0] / "policy.toml"
    text = path.read_text()
    start = text.index("[aggregation]")
    path.write_text(text[:start] + text[text.index("[budget", start) :])
    summed(nodes, shared(make_request(), 3))
    assert nodes.codes == [(ORDER[0], 0, REFUSED)]


def test_a_budget_that_is_spent_stops_the_vector(tmp_path: Path, make_request: Make) -> None:

    nodes = Consortium(
        tmp_path, budget={"replace-one": limits(0.1, 1e-3), "add-remove": limits(0.1)}
    )
    assert summed(nodes, shared(make_request(), 4)).is_void
    assert {(kind, code) for kind, _, code in nodes.codes} == {(KIND, REFUSED)}
    assert nodes.claims() == [0, 0, 0, 0]


@pytest.mark.medium
def test_an_operators_signature_covers_every_trip(tmp_path: Path, make_request: Make) -> None:
    key = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
    operators = {"lab": shown_key(key.public_key().public_bytes_raw())}
    nodes, request = Consortium(tmp_path, operators=operators), shared(make_request(), 3)
    names = []
    for client in range(4):
        given = node_receipt(nodes.send(client, RecordDict(), "query.identity").content)
        assert given is not None
        names.append(given.name)

    def signed(message: Message) -> Message:
        meta = message.metadata
        sign(message.content, meta.message_type, names[client_of(meta.dst_node_id)], key)
        return message

    assert summed(nodes, request).is_void
    assert codes(nodes) == {UNSIGNED}
    for kind in ORDER:

        def forged(message: Message, kind: str = kind) -> Message:
            signed(message)
            if message.metadata.message_type == kind:
                parameters, content = trip_of(message.content, 4)
                put_trip(message.content, Trip(parameters, content + b"\0"))
            return message

        nodes.codes.clear()
        nodes.way = forged
        other = shared(make_request(round=2 + ORDER.index(kind)), 3)
        assert summed(nodes, other).is_void
        assert set(nodes.codes) == {(kind, client, BAD_SIGNATURE) for client in range(4)}
    nodes.way = signed
    assert not summed(nodes, request).void

    for kind in ORDER[2:4]:

        def forged_ahead(message: Message, kind: str = kind) -> Message:
            signed(message)
            ahead = (
                trip_ahead(message.content, 4) if message.metadata.message_type == kind else None
            )
            if ahead is not None:
                longer = Trip(ahead.parameters, ahead.content + b"\0")
                put_trip(message.content, trip_of(message.content, 4), longer)
            return message

        nodes.codes.clear()
        nodes.way = forged_ahead
        first = 10 * ORDER.index(kind)
        pair = [shared(make_request(round=first + number), 3) for number in (0, 1)]
        assert exchanged(nodes, MaskedGrid(nodes, RUN), pair, 0).is_void
        assert set(nodes.codes) == {(kind, client, BAD_SIGNATURE) for client in range(4)}
