"""A server that sends whatever it likes: the node lives, and only charged, noised values leave it.

Three attacks: records that no fedsink wrote, well-formed requests with hostile values, and valid
requests that are repeated, replayed, reordered, altered, split and joined.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common.serde import message_to_proto, recorddict_to_proto
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from fedsink.clients.app import client_app
from fedsink.clients.gradient import client_gradient
from fedsink.clients.node import close_nodes, open_node
from fedsink.clients.settings import NodeSettings
from fedsink.data.maps import PointBall
from fedsink.privacy import Stream
from fedsink.privacy.ledger.check import problems
from fedsink.privacy.ledger.database import Database
from fedsink.privacy.ledger.report import report
from fedsink.protocol import GradientRequest, LocalPlan, PrivatizeReply, PrivatizeRequest
from fedsink.protocol.errors import FAILED, MALFORMED, MEANING, REFUSED
from fedsink.protocol.gradient import pack_requests, unpack_replies, unpack_requests

Make = Callable[..., GradientRequest]
Write = Callable[..., Path]
Silent = Callable[[str], Stream]

GRADIENT, PRIVATIZE = "train.gradient", "train.privatize"
RECORDS = 61
# The noise is 80 times as wide as the records are: a release is its noise.
LOCAL = LocalPlan("laplace", PointBall("l1", 1e-3, 4), 0.05, 0.0, 0.5, 3)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The owner's log has a line for each refusal."""
    log = logging.getLogger("fedsink.clients")
    log.disabled = True
    yield
    log.disabled = False


class Siege:
    """One node under attack; `send` checks after every message what must hold whatever was sent."""

    def __init__(self, write: Write, silent: Silent, **policy: Any) -> None:
        self._path = write(**policy)
        self._silent = silent
        self.answered = 0
        self.codes = {REFUSED: 0, MALFORMED: 0, FAILED: 0}
        self._gaussian: dict[tuple[int, ...], list[np.ndarray]] = {}
        self._laplace: dict[bytes, np.ndarray] = {}
        self.begin()

    def begin(self) -> None:
        """A node that has answered nothing yet."""
        shutil.rmtree(self._path.parent / "state", ignore_errors=True)
        self.restart()
        self.released: dict[tuple[str, str, int], bytes] = {}

    def restart(self) -> None:
        """The same node in another process."""
        close_nodes()
        self.settings = NodeSettings.from_policy(self._path, clients=3)

    def ask(self, kind: str, content: RecordDict) -> Message:
        context = Context(1, 1, {"partition-id": 0, "num-partitions": 3}, RecordDict(), {})
        message = Message(content, dst_node_id=1, message_type=kind)
        return client_app(self.settings)(message, context)

    def send(self, kind: str, content: RecordDict) -> Message:
        before = self._claims()
        reply = self.ask(kind, content)
        after = self._claims()
        assert set(before) <= set(after)
        self._check_ledger()
        if reply.has_error():
            assert reply.error.code in MEANING
            assert not reply.error.reason
            assert {place for place, out in after.items() if out} == {
                place for place, out in before.items() if out
            }
            self.codes[reply.error.code] += 1
            return reply
        self.answered += 1
        check = self._check_gradient if kind == GRADIENT else self._check_upload
        for place in check(content, reply.content):
            assert after[place], "it left without a charge"
        assert _bytes(self.ask(kind, content)) == _bytes(reply), "the same request again"
        return reply

    def check_noise(self) -> None:
        """The noise of all replies together has the plans' std, and no two replies share it."""
        for same in self._gaussian.values():
            table = torch.from_numpy(np.stack(same).reshape(len(same), -1))
            apart = torch.cdist(table, table, compute_mode="donot_use_mm_for_euclid_dist")
            assert float(apart.fill_diagonal_(math.inf).amin()) > 1e-3
        for noise, law in (
            ([x.ravel() for same in self._gaussian.values() for x in same], stats.norm),
            (list(self._laplace.values()), stats.laplace),
        ):
            drawn = np.concatenate([np.empty(0), *noise])
            assert_law(drawn, law)

    def measured(self) -> tuple[int, int]:
        """How many numbers of Gaussian and of Laplace noise were measured."""
        drawn = [x.size for same in self._gaussian.values() for x in same]
        return sum(drawn), sum(x.size for x in self._laplace.values())

    def _check_gradient(self, content: RecordDict, reply: RecordDict) -> list[tuple[str, str, int]]:
        requests = unpack_requests(content)
        rows = requests[0].rows
        _check_schema(reply, {"gradient": ("float32", (len(requests), *rows.shape))}, "{}")
        places = []
        for request, released in zip(requests, unpack_replies(reply), strict=True):
            assert bool(released.gradient.isfinite().all())
            place = (request.plan.adjacency, request.run, request.round)
            new = place not in self.released
            self._check_once(place, released.gradient)
            places.append(place)
            whole = request.plan.capacity is None or request.plan.capacity >= RECORDS
            if (
                new and request.plan.rate == 1.0 and whole
            ):  # else only the node knows who was sampled
                self._measure(request, released.gradient)
        return places

    def _measure(self, request: GradientRequest, released: torch.Tensor) -> None:
        total = client_gradient(request, open_node(self.settings, 0).shard, self._silent)
        assert not torch.equal(total, released)
        noise = (released.double() - total.double()).numpy() / request.plan.noise_std
        assert 1e-9 < stats.chi2.cdf((noise**2).sum(), noise.size) < 1 - 1e-9
        self._gaussian.setdefault(noise.shape, []).append(noise)

    def _check_upload(self, content: RecordDict, reply: RecordDict) -> list[tuple[str, str, int]]:
        request = PrivatizeRequest.from_record(content)
        upload = PrivatizeReply.from_record(reply)
        n = len(upload.labels)
        arrays = {
            "values": ("float32", (n, request.plan.map.dimension)),
            "labels": ("int64", (n,)),
        }
        _check_schema(reply, arrays, json.dumps({"chunks": upload.chunks}))
        assert bool(upload.values.isfinite().all())
        assert bool(((upload.labels >= 0) & (upload.labels < request.plan.classes)).all())
        place = ("replace-one", request.run, 1)
        whole = PrivatizeRequest(request.plan, 0, 1000, request.run)
        every = PrivatizeReply.from_record(self.ask(PRIVATIZE, whole.to_record()).content).values
        if place not in self.released and request.plan.map == LOCAL.map:
            scale = request.plan.image_mechanism.scale
            if scale > 50 * LOCAL.map.radius:
                self._laplace[every.numpy().tobytes()] = every.double().numpy().ravel() / scale
        self._check_once(place, every)
        start = request.chunk * request.chunk_size
        assert torch.equal(every[start : start + request.chunk_size], upload.values)
        return [place]

    def _check_once(self, place: tuple[str, str, int], released: torch.Tensor) -> None:
        content = released.numpy().tobytes()
        assert self.released.setdefault(place, content) == content, "two releases in one place"

    def _claims(self) -> dict[tuple[str, str, int], bool]:
        with_database = self.settings.ledger
        assert with_database is not None
        if not with_database.exists():
            return {}
        database = Database(with_database, writable=False)
        rows = database.rows(
            "SELECT adjacency, name, round, released FROM claims JOIN runs ON run = runs.id"
            " JOIN accounts ON account = accounts.id"
        )
        database.close()
        return {(adjacency, run, round): bool(out) for adjacency, run, round, out in rows}

    def _check_ledger(self) -> None:
        assert self.settings.ledger is not None
        if not self.settings.ledger.exists():
            return
        database = Database(self.settings.ledger, writable=False)
        assert problems(database) == []
        for account in report(database):
            assert account.spent_epsilon is not None
            assert account.epsilon is not None
            assert account.spent_epsilon <= account.epsilon * (1 + 1e-9)
            assert account.spent_delta is not None
            assert account.spent_delta <= (account.delta or 0.0) * (1 + 1e-9)
        database.close()


def assert_law(drawn: np.ndarray, law: Any) -> None:
    """Accepts the standard law, and would reject it two thirds or one and a half times as wide."""
    if drawn.size == 0:
        return
    assert stats.kstest(drawn, law.cdf).pvalue > 1e-6
    assert 1e-6 < _width(drawn, law) < 1 - 1e-6
    if drawn.size >= 400:
        assert _width(2 / 3 * drawn, law) < 1e-6
        assert _width(3 / 2 * drawn, law) > 1 - 1e-6


def _width(drawn: np.ndarray, law: Any) -> float:
    """The quantile of the exact law of Σx² (normal) or 2Σ|x| (Laplace), both χ²."""
    if law is stats.norm:
        return float(stats.chi2.cdf((drawn**2).sum(), drawn.size))
    return float(stats.chi2.cdf(2 * np.abs(drawn).sum(), 2 * drawn.size))


def _check_schema(
    reply: RecordDict, arrays: dict[str, tuple[str, tuple[int, ...]]], fields: str
) -> None:
    assert sorted(reply) == ["arrays", "fields"]
    assert dict(reply.config_records["fields"]) == {"json": fields}
    found = reply.array_records["arrays"]
    assert {n: (a.dtype, tuple(a.shape)) for n, a in found.items()} == arrays


def _bytes(reply: Message) -> bytes:
    assert not reply.has_error()
    content: bytes = recorddict_to_proto(reply.content).SerializeToString(deterministic=True)
    return content


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


# Records that no fedsink wrote

JUNK = [
    None, True, False, 0, -1, 1, 3, 51, 2**31, 2**63, 10**30, 10**400, 0.5, -0.0, 5e-324, 1e-300,
    1e300, math.nan, math.inf, -math.inf, "", "x", "1", "\ud800", "\0", "a" * 300, [], {}, [[]],
    {"name": "x"}, "laplace", "gaussian", "record", "batch", "class", "joint", "client",
    "replace-one", "annealed", "dct", [4], [4.0], [5], ["4"], [1, 2, 2], "pixel_range",
]  # fmt: skip
DEEP = "[" * 100_000
TEXTS = st.one_of(
    st.sampled_from(
        ["", "{", "null", "[]", "{}", DEEP, '{"plan":' + DEEP, "9" * 5000, '{"a":NaN}']
    ),
    st.text(max_size=40),
    st.recursive(
        st.sampled_from([None, True, 0, 10**30, 1.5, "x"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["plan", "run", "rounds", "labels", "view"]), inner)
        ),
        max_leaves=8,
    ).map(json.dumps),
)
PARTS: dict[str, st.SearchStrategy[Any]] = {
    "dtype": st.sampled_from(
        ["float32", "float64", "int64", "bool", "float16", "object", "", ">f4", "complex64"]
    ),
    "shape": st.lists(
        st.sampled_from([-1, 0, 1, 2, 4, 6, 24, 10**9, 2**31 - 1, 2**62]), max_size=4
    ).map(tuple),
    "stype": st.sampled_from(["fedsink.raw", "numpy.ndarray", ""]),
    "data": st.binary(max_size=64) | st.integers(0, 200).map(bytes),
}
ARRAYS = st.sampled_from(["rows", "row_labels", "potentials", "self_gradient", "other"])


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of every value inside a JSON value."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    return [path] * bool(path) + [p for key, v in items for p in places_in(v, (*path, key))]


def tampered(data: st.DataObject, content: RecordDict) -> RecordDict:
    """A message of which some parts were replaced, removed or repeated."""
    text = str(content.config_records["fields"]["json"])
    arrays = dict(content.array_records["arrays"])
    value: Any = text
    how = data.draw(st.sampled_from(["fields", "fields", "fields", "text", "type", "arrays"]))
    if how == "text":
        value = data.draw(TEXTS)
    elif how == "type":
        value = data.draw(st.sampled_from([5, 1.5, b"{}", True, ["{}"], [1]]))
    elif how == "fields":
        fields = json.loads(text)
        for _ in range(data.draw(st.integers(1, 2))):
            *way, last = data.draw(st.sampled_from(places_in(fields)))
            inner = fields
            for key in way:
                inner = inner[key]
            if data.draw(st.integers(0, 9)):
                inner[last] = copy.deepcopy(data.draw(st.sampled_from(JUNK)))
            else:
                del inner[last]
            if not places_in(fields):
                break
        value = json.dumps(fields)
    else:
        name = data.draw(st.sampled_from(sorted(arrays)) if arrays else ARRAYS)
        old = arrays.pop(name, Array("float32", (1,), "fedsink.raw", b"1234"))
        if data.draw(st.integers(0, 9)):
            part = data.draw(st.sampled_from(sorted(PARTS)))
            kept = {"dtype": old.dtype, "shape": old.shape, "stype": old.stype, "data": old.data}
            arrays[name] = Array(**(kept | {part: data.draw(PARTS[part])}))
    parts: dict[str, Any] = {
        "fields": ConfigRecord({"json": value}),
        "arrays": ArrayRecord(arrays),
        "more": ConfigRecord({"seed": 7, "noise": "none"}),
    }
    kept_parts = data.draw(st.sampled_from([["fields", "arrays"]] * 8 + [[], ["fields"], [*parts]]))
    return RecordDict({name: parts[name] for name in kept_parts})


@budgeted(60, 500)
def test_records_that_no_fedsink_wrote(
    cases: int, policy_file: Write, make_request: Make, silent: Silent
) -> None:
    siege = Siege(policy_file, silent)
    valid = {
        GRADIENT: [
            make_request(clip="record").to_record(),
            make_request(schedule="class", label=1).to_record(),
            pack_requests([make_request(round=t, clip="batch", m=0.1) for t in (1, 2)]),
        ],
        PRIVATIZE: [PrivatizeRequest(LOCAL, 0, 20, "upload").to_record()],
    }

    @attack(cases, data=st.data())
    def _(data: st.DataObject) -> None:
        siege.begin()
        kind = data.draw(st.sampled_from([GRADIENT, GRADIENT, PRIVATIZE]))
        content = tampered(data, data.draw(st.sampled_from(valid[kind])))
        siege.send(data.draw(st.sampled_from([kind] * 9 + [PRIVATIZE, GRADIENT])), content)

    assert siege.answered > cases / 50  # some changes do no harm
    assert siege.codes[MALFORMED] > cases / 4
    siege.check_noise()


def test_random_records_are_never_answered(policy_file: Write, silent: Silent) -> None:
    siege = Siege(policy_file, silent)
    part = st.builds(Array, PARTS["dtype"], PARTS["shape"], PARTS["stype"], PARTS["data"])

    @attack(40, text=TEXTS, arrays=st.dictionaries(ARRAYS, part), kind=st.booleans())
    def _(text: str, arrays: dict[str, Array], kind: bool) -> None:
        parts = {"fields": ConfigRecord({"json": text}), "arrays": ArrayRecord(arrays)}
        reply = siege.send(GRADIENT if kind else PRIVATIZE, RecordDict(parts))
        assert reply.error.code == MALFORMED


# Well-formed requests with hostile values

NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.3, 1e-45, 1e-38, 1e4, -1e6, 2.0**20]
UNDEFINED = [math.nan, math.inf, -math.inf, 1e18, -1e30, 3.4e38]  # or beyond the public domain
POINTS = st.sampled_from(NUMBERS * 20 + UNDEFINED)


@st.composite
def hostile(draw: st.DrawFn, make: Make) -> RecordDict:
    """A request whose arrays and fields have the right types."""
    n = draw(st.sampled_from([6] * 20 + [1, 2, 12, 13, 0, 400]))
    d = draw(st.sampled_from([4] * 30 + [5, 1, 0]))
    uses = draw(st.sampled_from([1, 1, 2]))
    classes = draw(st.sampled_from([3] * 20 + [1, 1, 2, 4]))
    schedule = draw(st.sampled_from(["joint", "class"]))
    requests = []
    for use in range(uses):
        number = 1 + use
        label = number % 3 if schedule == "class" else None
        request = make(
            clip="record", schedule=schedule, label=label, round=number, rows=torch.zeros(6, 4)
        )
        few = draw(st.lists(POINTS, min_size=1, max_size=6))
        wild = draw(st.lists(st.sampled_from(NUMBERS * 20 + UNDEFINED), min_size=1, max_size=6))
        labels = draw(st.lists(st.sampled_from([0, 0, 1, 2, 2, classes - 1]), min_size=1))
        request = replace(
            request,
            rows=_filled(few, n, d),
            row_labels=_filled([x % classes for x in labels], n).to(torch.int64),
            potentials=_filled(wild, n),
            self_gradient=_filled(few[::-1], n, d),
        )
        requests.append(request)
    content = pack_requests(requests)
    fields = json.loads(str(content.config_records["fields"]["json"]))
    clip = {"name": draw(st.sampled_from(["record", "batch"])), "bound": draw(_often(0.5, 1e-30))}
    fields["plan"] |= {
        "clip": clip,
        "rate": draw(_often(1.0, 0.5, 1e-12)),
        "noise_multiplier": draw(_often(1.0, 0.5, 0.49, 7.0, 1e300)),
        "rounds": draw(_often(50, 1, 2, 10**7 + 1, 2**63)),
        "delta": draw(_often(1e-5, 1e-4, 0.5, 1e-300)),
        "adjacency": draw(_often("add-remove", "replace-one", "client")),
        "capacity": draw(_often(None, 1, 20, 61, 62, 10**12)),
        "nominal_records": draw(_often(None, 1, 60, 61, 10**6)),
    }
    fields["objective"] |= {
        "lam": draw(_often(0.5, 1e-300, 1e-6, 1e300, 10**300)),
        "m": draw(_often(0.0, 0.3, 1e300)),
        "label_weight": draw(_often(1.5, 0.0, 1e15, 1e300)),
        "classes": classes,
        "solver": draw(st.sampled_from(["converged", "annealed"])),
    }
    fields["view"] = draw(_often(fields["view"], {"name": "pixel", "shape": [4]}))
    fields["run"] = draw(_often("run", " ", "ε/../..", "'; DROP TABLE claims; --", "x" * 200))
    content.config_records["fields"]["json"] = json.dumps(fields)
    return content


def _often(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([usual] * (12 * len(others)) + list(others))


def _filled(values: list[Any], *shape: int) -> torch.Tensor:
    size = math.prod(shape)
    return torch.tensor((values * (size // len(values) + 1))[:size]).reshape(shape)


@budgeted(60, 500)
def test_hostile_values(cases: int, policy_file: Write, make_request: Make, silent: Silent) -> None:
    siege = Siege(policy_file, silent)

    @attack(cases, content=hostile(make_request))
    def _(content: RecordDict) -> None:
        siege.begin()
        siege.send(GRADIENT, content)

    assert siege.answered > cases / 10
    assert siege.measured()[0] > 5 * cases
    siege.check_noise()


@pytest.mark.parametrize("kind", [GRADIENT, PRIVATIZE])
def test_what_would_need_absurd_memory_is_refused_before_it_is_allocated(
    kind: str, policy_file: Write, make_request: Make, silent: Silent
) -> None:
    siege = Siege(policy_file, silent)
    giant = 10**9
    contents = []
    if kind == GRADIENT:
        valid = make_request(clip="record").to_record()
        for name, shape in (("rows", (1, giant, 4)), ("potentials", (1, giant)),
                            ("rows", (1, giant, 0)), ("rows", (giant, 6, 4))):  # fmt: skip
            arrays = dict(valid.array_records["arrays"])
            data = b"" if 0 in shape else arrays[name].data
            arrays[name] = Array("float32", shape, "fedsink.raw", data)
            parts = {"fields": valid.config_records["fields"], "arrays": ArrayRecord(arrays)}
            contents.append(RecordDict(parts))
        plans: list[tuple[str, Any]] = [("capacity", giant), ("rounds", 2**62)]
        for name, value in plans:
            fields = json.loads(str(valid.config_records["fields"]["json"]))
            fields["plan"] |= {"nominal_records": 10 * giant, name: value}
            parts = {"fields": ConfigRecord({"json": json.dumps(fields)}),
                     "arrays": valid.array_records["arrays"]}  # fmt: skip
            contents.append(RecordDict(parts))
        contents.append(make_request(rows=torch.zeros(13, 4)).to_record())
    else:
        valid = PrivatizeRequest(LOCAL, 0, 20).to_record()
        for options in (
            {"name": "pixel_range", "shape": [1, giant, giant], "norm": "l1"},
            {"name": "dct_direction", "shape": [1, giant, giant], "block": giant},
            {"name": "point_ball", "size": giant},
        ):
            fields = json.loads(str(valid.config_records["fields"]["json"]))
            fields["plan"] |= {"map": options, "epsilon": 1.0}
            parts = {"fields": ConfigRecord({"json": json.dumps(fields)}),
                     "arrays": valid.array_records["arrays"]}  # fmt: skip
            contents.append(RecordDict(parts))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, limits[1]))
    try:
        codes = [siege.ask(kind, content).error.code for content in contents]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert FAILED not in codes  # what a failed allocation is answered with


@pytest.mark.parametrize(
    "options",
    [
        {"name": "pixel_range", "shape": [1, 1, 1], "norm": "l1"},
        {"name": "point_ball", "norm": "l1", "radius": 1.0, "size": 1},
        {"name": "point_ball", "norm": "l1", "radius": 1.0, "size": 5},
    ],
)
def test_a_map_for_smaller_records_never_lowers_the_noise(
    options: dict[str, Any], policy_file: Write, silent: Silent
) -> None:
    """Its sensitivity is that of the shape it states: these records' would be larger."""
    siege = Siege(policy_file, silent)
    content = PrivatizeRequest(LOCAL, 0, 20).to_record()
    fields = json.loads(str(content.config_records["fields"]["json"]))
    fields["plan"] |= {"map": options, "epsilon": 3.0}
    content.config_records["fields"]["json"] = json.dumps(fields)
    assert siege.send(PRIVATIZE, content).error.code == MALFORMED
    assert siege._claims() == {}


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (GRADIENT, {"noise_multiplier": 1e300}),
        (GRADIENT, {"noise_multiplier": 1.0, "clip": {"name": "record", "bound": 1e-40}}),
        (GRADIENT, {"rounds": 10**7 + 1}),
        (PRIVATIZE, {"epsilon": 1e-300}),
        (PRIVATIZE, {"map": {"name": "point_ball", "radius": 1e-40, "size": 4}}),
    ],
)
def test_a_plan_that_no_float32_can_carry_or_nobody_can_price_is_refused_uncharged(
    kind: str, change: dict[str, Any], policy_file: Write, make_request: Make, silent: Silent
) -> None:
    siege = Siege(policy_file, silent)
    upload = PrivatizeRequest(LOCAL, 0, 20).to_record()
    content = make_request().to_record() if kind == GRADIENT else upload
    fields = json.loads(str(content.config_records["fields"]["json"]))
    fields["plan"] |= change
    content.config_records["fields"]["json"] = json.dumps(fields)
    assert siege.send(kind, content).error.code == MALFORMED
    assert siege._claims() == {}


@pytest.mark.parametrize("change", [{"lam": 10**400}, {"m": 10**400}, {"label_weight": 10**400}])
def test_numbers_beyond_floats_are_malformed(
    change: dict[str, int], policy_file: Write, make_request: Make, silent: Silent
) -> None:
    """As a Python int they would pass every comparison and fail in the midst of a computation."""
    content = make_request().to_record()
    fields = json.loads(str(content.config_records["fields"]["json"]))
    fields["objective"] |= change
    content.config_records["fields"]["json"] = json.dumps(fields)
    siege = Siege(policy_file, silent)
    assert siege.send(GRADIENT, content).error.code == MALFORMED
    assert siege._claims() == {}


# Repeated, replayed, reordered, altered, split and joined

RUNS = ["one", "two", "three", "four"]
STEP = st.tuples(
    st.sampled_from(
        ["ask", "ask", "bit", "bit", "text", "join", "split", "round", "upload", "upload-other",
         "restart", "plan", "reorder"]
    ),
    st.sampled_from(RUNS),
    st.integers(1, 4),
    st.integers(0, 4 * 12 * 32 - 1),
)  # fmt: skip


def valid_request(make: Make, run: str, round: int) -> GradientRequest:
    """The run's clip and schedule are its name's."""
    schedule = "class" if run in ("two", "four") else "joint"
    request = make(
        clip="batch" if run in ("one", "four") else "record",
        schedule=schedule,
        label=round % 3 if schedule == "class" else None,
        round=round,
        rows=torch.linspace(-1, 1, 48).reshape(12, 4) / round,
        sigma=5.0,
    )
    return replace(request, run=run)


def in_message(step: tuple[str, str, int, int], make: Make) -> tuple[str, RecordDict]:
    """The message of one step."""
    how, run, round, bit = step
    request = valid_request(make, run, round)
    if how == "upload":
        return PRIVATIZE, PrivatizeRequest(LOCAL, bit % 5, 20, run).to_record()
    if how == "upload-other":
        other = replace(LOCAL, label_epsilon=0.6 if bit % 2 else None)
        return PRIVATIZE, PrivatizeRequest(other, bit % 5, 20, run).to_record()
    if how in ("join", "split", "reorder"):
        many = [replace(valid_request(make, run, t), round=t) for t in range(1, 5)]
        many = [r if r.label is None else replace(r, row_labels=torch.full((12,), r.label))
                for r in many]  # fmt: skip
        chosen = {"join": many[:1] + many[3:], "split": many[round - 1 :], "reorder": many[::-1]}
        # Twelve images a message are allowed.
        few = 12 // len(chosen[how])
        return GRADIENT, pack_requests(
            [
                replace(r, rows=r.rows[:few], row_labels=r.row_labels[:few],
                        potentials=r.potentials[:few], self_gradient=r.self_gradient[:few])
                for r in chosen[how]
            ]
        )  # fmt: skip
    if how == "bit":
        rows = request.rows.clone()
        rows.view(torch.int32).view(-1)[bit // 32] ^= 1 << bit % 31
        request = replace(request, rows=rows)
    if how == "round":
        request = replace(request, round=round + 46)  # 47 to 50
        if request.label is not None:
            label = request.round % 3
            request = replace(request, label=label, row_labels=torch.full((12,), label))
    if how == "plan":
        request = replace(request, plan=replace(request.plan, noise_multiplier=6.0 + bit % 2))
    content = request.to_record()
    if how == "text":  # the same request in other words
        text = str(content.config_records["fields"]["json"])
        content.config_records["fields"]["json"] = text + " " * (1 + bit % 3)
    return GRADIENT, content


def besiege(siege: Siege, cases: int, length: int, make: Make) -> None:
    @attack(cases, steps=st.lists(STEP, min_size=length, max_size=length))
    def _(steps: list[tuple[str, str, int, int]]) -> None:
        siege.begin()
        for step in steps:
            if step[0] == "restart":
                siege.restart()
            else:
                siege.send(*in_message(step, make))

    assert siege.answered > cases
    assert siege.codes[REFUSED] > cases / 10
    assert min(siege.measured()) > 48
    siege.check_noise()


@budgeted(10, 150)
def test_sequences_of_requests(
    cases: int, policy_file: Write, make_request: Make, silent: Silent
) -> None:
    # Two of the four runs fit, and less than two of some.
    epsilon = 2.2 * valid_request(make_request, "one", 1).plan.epsilon()
    besiege(Siege(policy_file, silent, epsilon=epsilon), cases, 8, make_request)


@budgeted(4, 50)
def test_sequences_of_requests_under_secure_noise(
    cases: int, policy_file: Write, make_request: Make, silent: Silent
) -> None:
    epsilon = 2.2 * valid_request(make_request, "one", 1).plan.epsilon()
    siege = Siege(policy_file, silent, epsilon=epsilon, backend="secure")
    besiege(siege, cases, 8, make_request)


def test_the_siege_notices_missing_noise(
    policy_file: Write, make_request: Make, silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the tests above can fail."""

    def faint(self: Stream, values: torch.Tensor, std: float) -> torch.Tensor:
        return add(self, values, 2 / 3 * std)

    add = Stream.add_gaussian
    siege = Siege(policy_file, silent)
    requests = [valid_request(make_request, "one", t) for t in range(1, 26)]
    with monkeypatch.context() as patch:
        patch.setattr(Stream, "add_gaussian", faint)
        for request in requests:
            try:
                siege.send(GRADIENT, request.to_record())
            except AssertionError:
                return
        with pytest.raises(AssertionError):
            siege.check_noise()


def test_an_errors_message_holds_nothing_but_a_code(
    policy_file: Write, make_request: Make, silent: Silent
) -> None:
    reply = Siege(policy_file, silent).send(GRADIENT, make_request(bound=0.6).to_record())
    sent = message_to_proto(reply).SerializeToString()
    for word in (b"policy", b"clip", b"ward", b"Error", b"0.6"):
        assert word not in sent
