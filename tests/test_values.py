from __future__ import annotations

import json
import math
import tracemalloc

import numpy as np
import pytest
from flwr.app import ConfigRecord

from fedsink.deployment.deployed_run import received
from fedsink.deployment.results import FAILED, Receiver, frames
from fedsink.errors import CheckpointError, ConfigError, FedsinkError, PrivacyError
from fedsink.models import load
from fedsink.protocol.packing import pack, unpack
from fedsink.server.folder import RecordedRun
from fedsink.server.starting_weights import statement_of
from fedsink.values import (
    alike,
    by_range,
    checks,
    names_of,
    privacy_checks,
    read_json,
    read_ranges,
)


def test_numbers_of_other_libraries_become_built_in():
    assert type(privacy_checks.positive("x", np.float64(2))) is float
    assert type(privacy_checks.count("x", np.int64(2))) is int
    assert type(privacy_checks.probability("x", 1)) is float


@pytest.mark.parametrize("value", [True, None, "1", 0, -1, math.nan, math.inf, 1 + 0j, [1]])
@pytest.mark.parametrize("check", [checks, privacy_checks])
def test_what_is_no_positive_number_is_refused(check, value):
    with pytest.raises(check.error, match="x must be"):
        check.positive("x", value)
    if value != 0:
        with pytest.raises(check.error, match="x must be"):
            check.count("x", value)


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [("[0, 1)", (0, 0.5), (1, -0.1, math.nan, False)), ("(0, 1]", (0.5, 1), (0, 1.1, math.nan))],
)
def test_an_interval_is_read_as_it_is_written(interval, inside, outside):
    for value in inside:
        assert checks.within("x", value, interval) == value
    for value in outside:
        with pytest.raises(ConfigError):
            checks.within("x", value, interval)


@pytest.mark.parametrize("check", [checks, privacy_checks])
@pytest.mark.parametrize("digits", [309, 5000])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_whole_number_that_no_float_holds_is_refused(check, digits, sign):
    value = sign * 10**digits
    for refuse in (check.positive, check.number, check.probability):
        with pytest.raises(check.error, match=r"x must .*000|x must .*thousands of digits"):
            refuse("x", value)


def test_a_missing_library_is_named():
    with pytest.raises(
        PrivacyError, match=r"package no-such-library .*pip install no-such-library"
    ):
        privacy_checks.require("no_such_library.part")


def test_a_choice_of_one_word_is_named():
    with pytest.raises(ConfigError, match=r"^kind is invert, not 'foo'\.$"):
        checks.choice("kind", "foo", "invert")


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"a": [1.0, {"b": 2.0}], "c": 3, "d": None}, True),
        ({"a": [1.0, {"b": 2.0 + 1e-12}], "c": 3, "d": None}, True),
        ({"a": [1.0, {"b": 2.0 + 1e-8}], "c": 3, "d": None}, False),
        ({"a": [1.0, {"b": 2.0}, 0], "c": 3, "d": None}, False),
        ({"a": [1.0, {"b": 2.0, "e": 1}], "c": 3, "d": None}, False),
        ({"a": [1.0, {"b": math.nan}], "c": 3, "d": None}, False),
        ({"a": [1.0, {"b": "2.0"}], "c": 3, "d": None}, False),
        ({"a": [1.0, {"b": 2.0}], "c": 4, "d": None}, False),
        ({"a": [1.0, {"b": 2.0}], "c": 3, "d": 0}, False),
        (None, False),
    ],
)
def test_values_are_alike_up_to_rounding(other, same):
    assert alike({"a": [1.0, {"b": 2.0}], "c": 3, "d": None}, other) == same


def test_json_with_one_key_twice_has_no_value():
    assert read_json('{"a": [{"b": 1}, {"b": 2}]}') == {"a": [{"b": 1}, {"b": 2}]}
    inner = b'[{"b": {"a": 1, "c": 2, "a": 3}}]'
    for text in ('{"a": 1, "a": 1}', inner, '{"a": 1, "\\u0061": 2}'):
        with pytest.raises(ValueError, match="it has the key 'a' twice"):
            read_json(text)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json("[" * 100_000)


def _message(fields):
    record = pack({"run": "night"}, {})
    record["fields"] = ConfigRecord({"json": fields})
    return unpack(record)


def _results(text):
    receiver = Receiver()
    for line in frames({FAILED: text.encode()}):
        receiver.take(line)
    return receiver.results()


@pytest.mark.parametrize(
    ("entries", "named"),
    [
        ({}, []),
        ({0: "a"}, [(0, "a")]),
        (dict.fromkeys(range(10), "a"), [(k, "a") for k in range(10)]),
        (dict.fromkeys(range(11), "a"), [("0-10", "a")]),
        (dict.fromkeys(range(10**6), "a"), [("0-999999", "a")]),
        ({3: "a", 7: "a"}, [(3, "a"), (7, "a")]),
        (dict.fromkeys([*range(11), *range(12, 30)], "a"), [("0-10", "a"), ("12-29", "a")]),
        (
            dict.fromkeys(range(20), "a") | {9: "b"} | {20: "b"},
            [
                *((k, "a") for k in range(9)),
                (9, "b"),
                *((k, "a") for k in range(10, 20)),
                (20, "b"),
            ],
        ),
    ],
)
def test_neighbours_with_equal_entries_share_a_range_and_are_read_again(entries, named):
    assert [*by_range(entries.items())] == named
    listed = [{"client": name, "of": entry} for name, entry in named]
    read = read_ranges(json.loads(json.dumps(listed)), 10**6)
    assert {client: one["of"] for some, one in read for client in some} == entries


def test_a_name_says_which_clients_without_counting_them_up():
    assert names_of(range(4, 5)) == [4]
    assert names_of(range(10**15)) == ["0-999999999999999"]


_WRONG = [
    "0-999999999999", "999-999999999999999", f"0-{'9' * 15}", f"0-{'9' * 16}", "9" * 4000, 10**15,
    1000, "1000", "0-1000", "990-1000", "5-3", "1-0", -1, "-1", "-1-3", "3--5", "0-", "-", "", " 1",
    "1 ", "1\n", "01", "0-05", "00-5", "1-2-3", "1,2", "0x1", "1e2", "1_0", "٣", "0–5", 1.0, 0.5,
    "1.0", math.nan, math.inf, "NaN", True, False, None, [], [0], [[0, 5]], {"client": 0}, "client",
]  # fmt: skip


@pytest.mark.parametrize(
    "listed",
    [
        *([{"client": name}] for name in _WRONG),
        *([{"client": 0}, {"client": name}] for name in _WRONG),
        *([{"client": "0-5"}, {"client": name}] for name in (0, 5, "0-5", "3-9", "5-9", "4")),
        [{"client": 5}, {"client": 3}],
        [{"client": "20-99"}, {"client": "0-9"}],
        [{"client": "0-999999999998"}, {"client": "0-999999999999"}],
        [{"clients": 3}], [{}], [0], ["0-5"], [None], [[{"client": 0}]],
        None, 5, "0-5", {}, {"client": 0}, {"0-5": {}}, math.nan, True,
    ],
    ids=lambda listed: str(listed)[:50],
)  # fmt: skip
def test_guarantee_a_list_of_clients_that_is_none_is_refused_before_it_is_built(listed):
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=r"each client once and below 1000: .* is not its"):
        read_ranges(listed, 1000)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def _in_folder(name, read):
    def within(text, folder):
        (folder / "config.yaml").write_text("{}")
        (folder / name).write_text(text)
        read(folder)

    return within


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (lambda text, folder: _message(text), '{"run": "night"}'),
        (lambda text, folder: _results(text), '{"message": "m", "exit_code": 1}'),
        (lambda text, folder: received(text), '{"engine": {"name": "deploy"}}'),
        (_in_folder("generator.json", load), '{"name": "mlp"}'),
        (_in_folder("privacy.json", statement_of), '{"public": {}}'),
        (_in_folder("evaluation.json", lambda f: RecordedRun.of(f).evaluations), '{"a": 1}'),
        (_in_folder("metrics.json", lambda f: RecordedRun.of(f).result), '{"a": 1}'),
        (_in_folder("metrics.jsonl", lambda f: RecordedRun.of(f).rounds), '{"round": 1}\n'),
    ],
    ids=["message", "results", "configuration", "generator", "start", "evaluation", "metrics",
         "rounds"],
)  # fmt: skip
def test_no_received_text_with_one_key_twice_is_read(tmp_path, read, text):
    doubled = text.replace("{", f"{{{text[1 : text.index(':')]}: 0, ", 1)
    words = "twice|Malformed|damaged|no readable|results: ValueError"
    with pytest.raises((ValueError, FedsinkError), match=words):
        read(doubled, tmp_path)
