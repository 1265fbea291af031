"""Nodes that are late, refuse, go away or come back, on a grid that does what a test says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

from fedsink.deployment import node_grid
from fedsink.deployment.node_grid import CLIENTS_OWN, NodeGrid, Patience
from fedsink.errors import ClientError
from fedsink.protocol.exchange import Broadcast, Content, Exchange
from fedsink.protocol.failure_codes import OTHER_VERSION, REFUSED
from fedsink.protocol.signing import identity_record
from fedsink.simulation.grid import SimulationGrid

GONE = 5  # Flower's code for a node that is not connected
Answer = Callable[[Message], Message | None]


def content(text: str) -> RecordDict:
    return RecordDict({"said": ConfigRecord({"text": text})})


def replying(text: str) -> Answer:
    return lambda message: Message(content(text), reply_to=message)


def failing(code: int) -> Answer:
    return lambda message: Message(Error(code), reply_to=message)


def silent(message: Message) -> None:
    return None


class Link(SimulationGrid):
    """SuperLink whose nodes 101, 102, … answer as a test says; knows which client each is."""

    def __init__(self, clients: int) -> None:
        super().__init__(clients)
        self.connected = {101 + client: client for client in range(clients)}
        self.answer: dict[int, Answer] = {node: replying(f"of {node}") for node in self.connected}
        self.identity: dict[int, Answer] = {}
        self.asked: list[tuple[int, str]] = []
        self.late: list[Message] = []

    def get_node_ids(self) -> list[int]:
        return list(self.connected)

    def execute(self, messages: Sequence[Message]) -> list[Message]:
        replies = []
        for message in messages:
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            self.asked.append((node, kind))
            reply: Message | None
            if kind != "query.identity":
                reply = self.answer.get(node, silent)(message)
            elif node in self.identity:
                reply = self.identity[node](message)
            else:
                reply = Message(identity_record(self.connected[node]), reply_to=message)
            replies += [] if reply is None else [reply]
        return replies

    def keep(self, round: int) -> None:
        raise NotImplementedError

    def arrive(self, message: Message, text: str) -> None:
        """A reply that comes after its message's push."""
        self._answered[message.metadata.message_id] = Message(content(text), reply_to=message)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_grid, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(node_grid, "_IDENTITY_SECONDS", 0.1)


def grid(link: Link, needed: int | None = None, **patience: Any) -> NodeGrid:
    wanted = {"wait": 0.1, "again": 60.0, "poll": 0.005} | patience
    return NodeGrid(link, link.clients, needed or link.clients, Patience(**wanted))


def exchange(of: NodeGrid, needed: int | None = None, kind: str = "train.x") -> Exchange:
    asked = Broadcast(Content(None, lambda: content("?")), of.roster(), ())
    return Exchange(kind, "1", [asked], needed)


def said(replies: Sequence[Message]) -> dict[int, str | int]:
    return {
        reply.metadata.src_node_id: reply.error.code
        if reply.has_error()
        else str(reply.content.config_records["said"]["text"])
        for reply in replies
    }


def seconds(call: Callable[[], object]) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started


OF = {101: "of 101", 102: "of 102", 103: "of 103"}


@pytest.mark.parametrize(
    ("wait", "needed", "timeout", "answers", "least", "most", "replies"),
    [
        (60.0, None, None, {}, 0.0, 1.0, {}),
        (0.3, 2, None, {102: silent}, 0.3, 2.0, {102: None}),
        (0.05, None, 0.4, {102: silent}, 0.4, 2.0, {102: None}),
        (60.0, 2, None, {102: failing(GONE)}, 0.0, 1.0, {102: GONE}),
        (60.0, None, None, {101: failing(REFUSED), 102: silent}, 0.0, 1.0,
         {101: REFUSED, 102: None}),
    ],
    ids=["everybody answers", "a quorum, when the time is up", "no quorum, until the end",
         "a quorum, and the other is gone", "refusals leave no quorum"],
)  # fmt: skip
def test_a_round_ends(
    wait: float, needed: int | None, timeout: float | None, answers: dict[int, Answer],
    least: float, most: float, replies: dict[int, Any],
) -> None:  # fmt: skip
    link = Link(3)
    of = grid(link, round=wait)
    assert dict(of.roster()) == {0: 101, 1: 102, 2: 103}
    assert of.roster() is of.roster()
    asked = exchange(of, needed)
    link.answer |= answers
    got: list[Message] = []
    assert least <= seconds(lambda: got.extend(of.send_and_receive(asked, timeout=timeout))) < most
    assert said(got) == {node: text for node, text in (OF | replies).items() if text is not None}
    assert link.asked.count((101, "query.identity")) == 1


def test_what_comes_late_is_never_looked_at() -> None:
    link = Link(2)
    of = grid(link, round=0.05)
    sent: list[Message] = []
    link.answer[102] = lambda message: sent.append(message)  # type: ignore[func-returns-value]
    assert said(of.send_and_receive(exchange(of, needed=1))) == {101: "of 101"}
    link.arrive(sent[0], "too late")
    link.answer[102] = replying("in time")
    assert said(of.send_and_receive(exchange(of, needed=1))) == {101: "of 101", 102: "in time"}


def test_a_node_that_comes_back_under_a_new_id_is_asked_there_and_counts_as_before() -> None:
    """In the middle of a round, and in the rounds after it."""
    link = Link(2)
    of = grid(link)
    asked = exchange(of)

    def goes(message: Message) -> Message:
        del link.connected[102]
        link.connected[777], link.answer[777] = 1, replying("back")
        return Message(Error(GONE), reply_to=message)

    link.answer[102] = goes
    assert said(of.send_and_receive(asked)) == {101: "of 101", 102: "back"}
    assert dict(of.roster()) == {0: 101, 1: 777}
    assert said(of.send_and_receive(exchange(of))) == {101: "of 101", 777: "back"}
    assert link.asked.count((101, "train.x")) == 2


def test_a_node_that_was_asked_lately_is_not_asked_again() -> None:
    """Holds however often the server looks for replies."""
    link = Link(2)
    of = grid(link, again=60.0)
    link.answer[102] = silent
    of.send_and_receive(exchange(of), timeout=0.2)
    assert link.asked.count((102, "train.x")) == 1


def test_a_node_that_was_restarted_is_asked_again() -> None:
    """The node has lost the message, and Flower has not noticed that the node was away."""
    link = Link(2)
    of = grid(link, again=0.1)
    lost: list[Message] = []

    def loses(message: Message) -> None:
        lost.append(message)
        link.answer[102] = replying("again")

    link.answer[102] = loses
    assert said(of.send_and_receive(exchange(of))) == {101: "of 101", 102: "again"}
    assert link.asked.count((101, "train.x")) == 1
    assert link.asked.count((102, "train.x")) == 2


def test_a_node_that_is_asked_twice_answers_once() -> None:
    link = Link(2)
    of = grid(link, again=0.05, round=0.5)
    sent: list[Message] = []

    def slow(message: Message) -> None:
        sent.append(message)
        if len(sent) == 3:
            for number, each in enumerate(sent):
                link.arrive(each, f"copy {number}")

    link.answer[102] = slow
    replies = of.send_and_receive(exchange(of))
    assert len(replies) == 2
    assert said(replies) == {101: "of 101", 102: "copy 0"}


def test_missing_nodes_are_counted_and_late_ones_waited_for() -> None:
    link = Link(2)
    del link.connected[102]
    with pytest.raises(ClientError, match=r"1 of 2 clients are connected after 0\.1 s\. Start the"):
        grid(link).roster()
    assert dict(grid(link, needed=1).roster()) == {0: 101}
    of = grid(link, wait=60.0)
    looked = link.get_node_ids

    def comes() -> list[int]:
        link.connected[102] = 1
        return looked()

    link.get_node_ids = comes  # type: ignore[method-assign]
    assert dict(of.roster()) == {0: 101, 1: 102}


def test_at_first_everybody_is_waited_for_and_not_the_quorum_alone() -> None:
    link, looks = Link(2), []
    del link.connected[102]
    looked = link.get_node_ids

    def comes() -> list[int]:
        looks.append(looked())
        if len(looks) == 2:
            link.connected[102] = 1
        return looked()

    link.get_node_ids = comes  # type: ignore[method-assign]
    assert dict(grid(link, needed=1, wait=60.0).roster()) == {0: 101, 1: 102}


def test_two_nodes_of_one_number_are_named() -> None:
    link = Link(2)
    link.connected[102] = 0
    with pytest.raises(ClientError, match="nodes 101 and 102 both are client 0: give each another"):
        grid(link).roster()


def test_no_node_takes_the_place_of_a_connected_one() -> None:
    """Whatever numbers strangers give, and however many come at once."""
    link = Link(2)
    of = grid(link)
    of.roster()
    link.connected |= {777: 1, 778: 1, 779: 0}
    assert dict(of.roster()) == {0: 101, 1: 102}
    del link.connected[102]
    assert dict(of.roster()) == {0: 101, 1: 777}
    link.connected[102] = 1  # a key has one id: this one was the first
    assert dict(of.roster()) == {0: 101, 1: 102}
    assert link.asked.count((777, "query.identity")) == 1


@pytest.mark.parametrize(
    ("identity", "why"),
    [
        (lambda m: Message(RecordDict({"identity": ConfigRecord({"client": 1})}), reply_to=m),
         "Node 102 takes no part: The other side speaks a version of the protocol before 3"),
        (lambda m: Message(RecordDict({"identity": ConfigRecord({"client": 1, "protocol": 9})}),
                           reply_to=m),
         "Node 102 takes no part: The other side speaks protocol 9, this one 5: install one"),
        (lambda m: Message(RecordDict(), reply_to=m), "Node 102 takes no part: "),
        (failing(OTHER_VERSION), "node 102 speaks another version of the protocol"),
    ],
)  # fmt: skip
def test_a_node_of_another_version_is_named_and_does_without(identity: Answer, why: str) -> None:
    link = Link(2)
    link.identity[102] = identity
    with pytest.raises(ClientError, match="1 of 2 clients are connected") as refused:
        grid(link).roster()
    assert why in str(refused.value)
    assert dict(grid(link, needed=1).roster()) == {0: 101}


def test_a_node_that_was_upgraded_takes_part() -> None:
    """Under its old id, as nodes with a key have it."""
    link = Link(2)
    link.identity[102] = failing(OTHER_VERSION)
    of = grid(link, needed=1, again=0.05)
    assert dict(of.roster()) == {0: 101}
    del link.identity[102]
    time.sleep(0.1)
    assert dict(of.roster()) == {0: 101, 1: 102}


def test_the_node_that_a_client_has_left_is_not_asked_again() -> None:
    link = Link(2)
    of = grid(link, again=0.01)
    of.roster()
    link.connected[777] = 1
    link.identity[102] = silent
    assert dict(of.roster()) == {0: 101, 1: 102}  # Flower notices a minute later that 102 is gone
    del link.connected[102]
    assert dict(of.roster()) == {0: 101, 1: 777}
    time.sleep(0.02)
    assert dict(of.roster()) == {0: 101, 1: 777}
    assert link.asked.count((102, "query.identity")) == 1


def test_a_node_that_does_not_say_who_it_is_holds_up_one_round_alone() -> None:
    link = Link(2)
    link.identity[102] = silent
    of = grid(link, needed=1)
    of.roster()
    assert seconds(of.roster) < 0.05
    assert link.asked.count((102, "query.identity")) == 1


def test_messages_that_the_superlink_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(2)
    of = grid(link)
    asked = exchange(of)
    monkeypatch.setattr(link, "push_messages", lambda messages: [])
    with pytest.raises(ClientError, match="The SuperLink took 0 of 2 messages: ask for less"):
        of.send_and_receive(asked)
    assert CLIENTS_OWN <= REFUSED
