"""What a node signs of a run, as it travels and as a stranger reads it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedsink.errors import BadSignatureError
from fedsink.protocol.charge_statement import (
    LONGEST_STATEMENT,
    ChargeStatement,
    StatedCharge,
    ask_statement,
    asked_run,
    give_statement,
    given_statement,
)
from fedsink.protocol.identity_key import NodeIdentityKey

KEY = NodeIdentityKey(Ed25519PrivateKey.from_private_bytes(bytes(32)))
CHARGE = StatedCharge("add-remove", {"rate": 0.1, "clip": {"bound": 2.0}}, 4.5, 1e-5, 20)
SAID = ChargeStatement("run", 1, 3, "secret", "masked", "2026-11-27", (CHARGE,))


def test_a_statement_is_read_as_it_was_signed_also_from_a_file() -> None:
    signed = json.loads(json.dumps(SAID.signed(KEY), indent=2))
    assert ChargeStatement.verified(signed) == (SAID, KEY.shown)


def _leaves(values: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(values, dict | list):
        items = values.items() if isinstance(values, dict) else enumerate(values)
        return [leaf for key, value in items for leaf in _leaves(value, (*path, key))]
    return [path]


def test_no_part_of_a_statement_can_be_changed_without_the_key() -> None:
    signed = SAID.signed(KEY)
    paths = _leaves(signed["statement"])
    assert len(paths) == 12
    for path in paths:
        changed = copy.deepcopy(signed)
        place = changed["statement"]
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = "x" if isinstance(place[path[-1]], str) else place[path[-1]] + 1
        with pytest.raises(BadSignatureError):
            ChargeStatement.verified(changed)
    other = NodeIdentityKey(Ed25519PrivateKey.from_private_bytes(bytes([1] * 32)))
    with pytest.raises(BadSignatureError):
        ChargeStatement.verified({**signed, "key": other.shown})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@pytest.mark.medium
@given(_JSON, st.sampled_from(["statement", "key", "signature", "charges", "run", "client", ""]))
def test_hostile_values_are_a_clear_error(value: Any, where: str) -> None:
    signed = SAID.signed(KEY)
    if where in signed:
        signed[where] = value
    elif where:
        signed["statement"][where] = value
    else:
        signed = value
    try:
        ChargeStatement.verified(signed)
    except (ValueError, BadSignatureError):
        pass
    else:
        assert signed == SAID.signed(KEY)


def test_a_statement_of_another_format_is_refused_in_a_sentence() -> None:
    """The first format said neither how noise was drawn nor whether replies were masked."""
    old = SAID.signed(KEY)
    del old["format"]
    with pytest.raises(ValueError, match=r"it is no fedsink charge statement 2, .* fedsink ledger"):
        ChargeStatement.verified(old)


def test_a_weak_key_is_refused() -> None:
    weak = "ed25519:AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
    with pytest.raises(ValueError, match="its key is no key of a node"):
        ChargeStatement.verified({**SAID.signed(KEY), "key": weak})


def test_a_question_names_a_run_and_an_answer_holds_the_statement() -> None:
    question, answer = RecordDict(), RecordDict()
    assert asked_run(question) is None
    ask_statement(question, "run")
    assert asked_run(question) == "run"
    assert given_statement(answer) is None
    give_statement(answer, SAID.signed(KEY))
    assert given_statement(answer) == SAID.signed(KEY)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "[" * 50_000, json.dumps({**SAID.signed(KEY), "signature": "AA=="})],
    ids=["empty", "torn", "list", "deep", "forged"],
)
def test_a_server_keeps_only_valid_statements(text: str) -> None:
    answer = RecordDict({"statement": ConfigRecord({"signed": text})})
    assert given_statement(answer) is None


def test_a_server_keeps_no_long_statement() -> None:
    long = ChargeStatement("x" * LONGEST_STATEMENT, 0, 1, "", "", "", ()).signed(KEY)
    answer = RecordDict()
    give_statement(answer, long)
    assert given_statement(answer) is None
