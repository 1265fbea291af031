"""Numbers that would size memory or time, in every field of every message, under a cap on both."""

from __future__ import annotations

import copy
import gc
import json
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict

from fedsink.clients.node import close_nodes
from fedsink.data import sources
from fedsink.protocol.aggregation import TRIPS, Trip, put_trip, sum_name
from fedsink.protocol.failure_codes import FAILED, MEANING
from fedsink.protocol.signing import ask_statement, show_receipts
from fedsink.secagg.parameters import Parameters

from ..support.consortium import KIND, Consortium, shared
from ..support.tiny import NOMINAL, points
from .besieged import BesiegedNode, many
from .honest import GRADIENT, IDENTITY, SHAPES, Honest, Sent, fields_of, with_fields
from .messages import places_in, put

NUMBERS = [10**6, 10**9, 10**12, 10**18, 2**63, 1e308, -1, 0, 0.5]
JSON = [None, True, "x", "9" * 400, [], {}, [10**9], [0] * 3, {"name": 10**9}, [[1], {"a": [2]}]]
MEMORY, SECONDS = 1 << 30, 4.0  # of one answer; an honest one takes a hundredth


class TooLongError(BaseException):
    """An answer takes too long; nothing that catches errors stops it."""


@contextmanager
def capped() -> Iterator[None]:
    """Limits the memory and the time of what happens inside."""

    def ring(*_: object) -> None:
        raise TooLongError

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = signal.signal(signal.SIGALRM, ring)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    signal.setitimer(signal.ITIMER_REAL, 10 * SECONDS)  # of a machine that others use as well
    gc.disable()  # what earlier tests left is not this message's time
    started = time.process_time()
    try:
        yield
    finally:
        gc.enable()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert time.process_time() - started < SECONDS


def with_value(table: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Returns a JSON value with another value in one place."""
    changed = copy.deepcopy(table)
    put(changed, path, value)
    return changed


def requests(sent: Sent, values: list[Any]) -> Iterator[tuple[str, Sent]]:
    """Every field of a request with every value, and what is changed."""
    kind, content = sent
    fields = fields_of(content)
    for path in places_in(fields):
        for value in values:
            changed = with_fields(content, with_value(fields, path, value))
            yield f"{kind} {path} {value!r}", (kind, changed)


def check(label: str, reply: Any, charged: int, before: int) -> None:
    if reply.has_error():
        assert reply.error.code in MEANING, label
        assert reply.error.code != FAILED, label
        assert charged == before, label


@pytest.fixture(autouse=True)
def _many(install_source: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    install_source(points)
    monkeypatch.setitem(sources.SOURCES, "besieged-many", lambda spec, split: many(spec.shape))


def besiege(folder: Path, shape: str, noise: str, messages: list[Sent], values: list[Any]) -> int:
    """Sends every changed message to a node; returns the number of answers."""
    node = BesiegedNode(folder, SHAPES[shape], "many", noise, 1e6)
    answered = 0
    for sent in messages:
        for label, (kind, content) in requests(sent, values):
            try:
                with capped():
                    reply = node.ask(kind, content)
            except (TooLongError, AssertionError):
                pytest.fail(f"this takes too long: {label}")
            claims = len(node.claims())
            check(label, reply, claims, 0)
            answered += not reply.has_error()
            if claims:
                close_nodes()
                node.begin()
    return answered


@pytest.mark.parametrize("noise", ["fast", "keyed"])
def test_a_capacity_is_at_most_the_public_number_of_records(tmp_path: Path, noise: str) -> None:
    full = {"capacity": NOMINAL, "nominal_records": NOMINAL}
    sent = GRADIENT, Honest(SHAPES["points"]).gradient(clip="record", **full).to_record()
    node = BesiegedNode(tmp_path, SHAPES["points"], "many", noise, 1e6)
    fields = fields_of(sent[1])
    for capacity in (NOMINAL + 1, 10**9, 3 * 10**9, 2**40):
        for nominal in (NOMINAL, 2**40):
            fields["plan"] |= {"capacity": capacity, "nominal_records": nominal}
            with capped():
                reply = node.ask(GRADIENT, with_fields(sent[1], fields))
            check(f"{capacity}", reply, len(node.claims()), 0)
            assert reply.has_error()
    assert not node.ask(*sent).has_error()


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["fast", "keyed"])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_no_number_of_a_request_takes_memory_or_time(
    tmp_path: Path, shape: str, noise: str
) -> None:
    honest = Honest(SHAPES[shape])
    messages = [sent for sent in honest.messages() if sent[0] != IDENTITY]
    assert besiege(tmp_path, shape, noise, messages, [*NUMBERS, *JSON]) > 20


def queries() -> Iterator[tuple[str, RecordDict]]:
    """Questions of secure aggregation and for an identity, with every value in every field."""
    values = [*NUMBERS, *JSON]
    sum_ = Parameters("run", sum_name(KIND, 1), (0, 1, 2, 3), 32, 24, 3)
    stated = sum_.to_dict()
    for trip in TRIPS:
        for path in places_in(stated):
            for value in values:
                record = put_trip(RecordDict(), Trip(sum_, b""))
                text = json.dumps(with_value(stated, path, value))
                said = dict(record.config_records["aggregation"]) | {"parameters": text}
                yield f"query.{trip}", RecordDict({"aggregation": ConfigRecord(said)})
        for content in (b"\xff" * 4, b"\xff" * 10**6, bytes(10**6)):
            yield f"query.{trip}", put_trip(RecordDict(), Trip(sum_, content))
    for receipts in (["x"] * 10_001, ["x" * 129], ["0" * 128] * 10_000):
        show_receipts(record := RecordDict(), receipts)
        yield IDENTITY, record
    for run in ("", "x" * 10**6, "9" * 400):
        ask_statement(record := RecordDict(), run)
        yield IDENTITY, record


@pytest.mark.slow
def test_no_number_of_a_query_takes_memory_or_time(tmp_path: Path) -> None:
    nodes = Consortium(tmp_path)
    for kind, record in queries():
        with capped():
            reply = nodes.send(0, record, kind)
        check(f"{kind} {record}"[:300], reply, nodes.claims()[0], 0)


@pytest.mark.medium
def test_no_number_of_a_masked_request_takes_memory_or_time(tmp_path: Path) -> None:
    nodes = Consortium(tmp_path)
    request = shared(Honest(SHAPES["points"]).gradient(), 3)
    sum_ = Parameters("run", sum_name(KIND, 1), (0, 1, 2, 3), 32, 24, 3)
    assert not nodes.send(0, put_trip(RecordDict(), Trip(sum_)), f"query.{TRIPS[0]}").has_error()
    for label, (kind, content) in requests((KIND, request.to_record()), NUMBERS):
        with capped():
            reply = nodes.send(0, put_trip(content, Trip(sum_, b"")), kind)
        check(label, reply, nodes.claims()[0], 0)
    stated = sum_.to_dict()
    for path in places_in(stated):
        for value in NUMBERS:
            record = put_trip(request.to_record(), Trip(sum_))
            said = dict(record.config_records["aggregation"])
            said["parameters"] = json.dumps(with_value(stated, path, value))
            record["aggregation"] = ConfigRecord(said)
            with capped():
                reply = nodes.send(0, record, KIND)
            check(f"{path} {value}", reply, nodes.claims()[0], 0)
