"""A hostile server: the nodes survive, and only charged, noised values leave.

Three attacks: records that no fedsink wrote, well-formed requests with hostile values, and valid
requests that are repeated, replayed, reordered, re-typed, altered, split and joined. What must hold
after every message stands in `Siege`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.common.serde import message_to_proto
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsink.privacy import Stream
from fedsink.protocol.failure_codes import FAILED, MALFORMED, OTHER_VERSION, REFUSED

from .honest import CRITIC, GRADIENT, KINDS, SHAPES, Honest, Sent
from .messages import (
    STEP,
    Step,
    hostile,
    hostile_critics,
    in_message,
    options_of,
    random_records,
    tampered,
)
from .siege import Siege

NODES = [("fast", "points"), ("fast", "images"), ("secure", "points"), ("keyed", "images")]
under_siege = pytest.mark.parametrize(("noise", "records"), NODES)


def attack(cases: int, **strategies: Any) -> Callable[[Callable[..., None]], None]:
    """Runs a function on so many generated cases, at once."""

    def run(function: Callable[..., None]) -> None:
        checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
        settings(max_examples=cases, suppress_health_check=checks)(given(**strategies)(function))()

    return run


def budgeted(quick: int, thorough: int) -> Any:
    """A test with `quick` cases, and one with `thorough` for `make test-all`."""
    slow = pytest.param(thorough, marks=pytest.mark.slow)
    return pytest.mark.parametrize("cases", [quick, slow])


@pytest.mark.medium
@budgeted(25, 250)
@under_siege
def test_records_that_no_fedsink_wrote(
    noise: str, records: str, cases: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    siege = Siege(tmp_path, monkeypatch, noise, records)

    @attack(cases, message=tampered(Honest(SHAPES[records]).messages()))
    def _(message: Sent) -> None:
        siege.begin()
        siege.send(*message)

    assert siege.answered > cases / 50  # some changes do no harm
    assert siege.codes[MALFORMED] + siege.codes[OTHER_VERSION] > cases / 4
    assert siege.codes[OTHER_VERSION] < cases / 4
    siege.check_noise()


@pytest.mark.medium
@budgeted(40, 200)
def test_random_records_are_never_answered(
    cases: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    siege = Siege(tmp_path, monkeypatch)

    @attack(cases, message=random_records())
    def _(message: Sent) -> None:
        assert siege.send(*message).error.code in (MALFORMED, OTHER_VERSION)


@pytest.mark.medium
@pytest.mark.quick("keyed-images-50", "secure-points-50")
@budgeted(50, 250)
@under_siege
def test_hostile_values(
    noise: str, records: str, cases: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    siege = Siege(tmp_path, monkeypatch, noise, records)

    @attack(cases, message=hostile(Honest(SHAPES[records])))
    def _(message: Sent) -> None:
        siege.begin()
        siege.send(*message)

    assert siege.answered > cases / 10
    assert siege.measured()[0] > 5 * cases
    siege.check_noise()


@pytest.mark.medium
@pytest.mark.quick("fast-points-25", "secure-points-25")
@budgeted(25, 250)
@under_siege
def test_hostile_values_for_critics(
    noise: str, records: str, cases: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    siege = Siege(tmp_path, monkeypatch, noise, records)

    @attack(cases, message=hostile_critics(Honest(SHAPES[records])))
    def _(message: Sent) -> None:
        siege.begin()
        siege.send(*message)

    assert siege.answered > cases / 10
    assert siege.codes[MALFORMED] + siege.codes[REFUSED] > cases / 10
    assert siege.measured()[0] > 2 * cases
    siege.check_noise()


@pytest.mark.medium
@pytest.mark.quick("fast-points-4", "keyed-images-4")
@budgeted(4, 40)
@under_siege
def test_sequences_of_requests(
    noise: str, records: str, cases: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs take turns, rounds come out of order, and content is sent again as another type."""
    honest = Honest(SHAPES[records])
    # Two of the four runs fit, and less than two of some.
    epsilon = 2.2 * honest.gradient(**options_of("one")).plan.epsilon()
    siege = Siege(tmp_path, monkeypatch, noise, records, epsilon)

    @attack(cases, steps=st.lists(STEP, min_size=12, max_size=12))
    def _(steps: list[Step]) -> None:
        siege.begin()
        for step in steps:
            if step[0] == "restart":
                siege.restart()
            else:
                siege.send(*in_message(step, honest))

    assert siege.answered > cases
    assert siege.codes[REFUSED] > cases / 10
    assert siege.measured()[0] > 48
    siege.check_noise()


@pytest.mark.medium
@pytest.mark.quick("keyed-images", "secure-points")
@under_siege
def test_content_that_is_sent_as_another_type_is_refused(
    noise: str, records: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise two functions of the data would leave under one noise and one charge."""
    for first, second in (("weights", "retyped"), ("retyped", "weights")):
        siege = Siege(tmp_path, monkeypatch, noise, records)
        sent = [in_message((how, "one", 1, 0), Honest(SHAPES[records])) for how in (first, second)]
        assert sent[0][1] == sent[1][1]
        assert sent[0][0] != sent[1][0]
        assert not siege.send(*sent[0]).has_error()
        assert siege.send(*sent[1]).error.code == REFUSED
        assert [len(node.claims()) for node in siege.nodes] == [1, 1]


@pytest.mark.medium
@pytest.mark.quick("keyed-images")
@under_siege
def test_honest_messages_of_every_type_are_answered(
    noise: str, records: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attacks above therefore start from messages that a node does answer."""
    siege = Siege(tmp_path, monkeypatch, noise, records)
    messages = Honest(SHAPES[records]).messages()
    assert {kind for kind, _ in messages} == set(KINDS)
    for message in messages:
        siege.begin()
        assert not siege.send(*message).has_error()
    siege.check_noise()


@pytest.mark.medium
@pytest.mark.quick("keyed-images")
@under_siege
def test_critics_that_missed_rounds_end_a_simulation_alone(
    noise: str, records: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    siege = Siege(tmp_path, monkeypatch, noise, records)
    siege.send(CRITIC, Honest(SHAPES[records]).critic(3).to_record())
    assert (siege.codes[FAILED], siege.answered) == ((1, 0) if noise == "keyed" else (0, 1))


def faint(add: Callable[..., Any]) -> Callable[..., Any]:
    """Two thirds of the noise."""
    return lambda self, values, std: add(self, values, 2 / 3 * std)


def frozen(add: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `add` with equal noise at every call."""
    return lambda self, values, std: add(Stream(b"frozen"), values, std)


@pytest.mark.medium
@pytest.mark.quick("faint")
@pytest.mark.parametrize("defect", [faint, frozen])
def test_the_siege_notices_wrong_noise(
    defect: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shows that the tests above can fail."""
    siege = Siege(tmp_path, monkeypatch)
    monkeypatch.setattr(Stream, "add_gaussian", defect(Stream.add_gaussian))

    def attacked() -> None:
        for round in range(1, 26):
            siege.send(GRADIENT, Honest(SHAPES["points"]).gradient(round).to_record())
        siege.check_noise()

    with pytest.raises(AssertionError):
        attacked()


def test_an_errors_message_holds_nothing_but_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    siege = Siege(tmp_path, monkeypatch)
    request = Honest(SHAPES["points"]).gradient(noise_multiplier=0.4)
    sent = message_to_proto(siege.send(GRADIENT, request.to_record())).SerializeToString()
    for word in (b"policy", b"noise", b"ward", b"Error", b"0.4"):
        assert word not in sent
