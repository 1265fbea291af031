"""Messages of a hostile server: mutations of honest messages, and invented ones."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import strategies as st

from fedsink.privacy import TurnSchedule
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.packing import PROTOCOL_VERSION

from ..support.requests import pack_requests
from .honest import (
    CLASSES,
    CRITIC,
    CRITICS,
    GRADIENT,
    IDENTITY,
    KINDS,
    NOMINAL,
    PARAMETERS,
    PRIVATIZE,
    Honest,
    Sent,
    fields_of,
    with_fields,
)

# Mutations of honest messages

JUNK = [
    None, True, False, 0, -1, 1, 3, 51, 2**31, 2**63, 10**30, 10**400, 0.5, -0.0, 5e-324, 1e-300,
    1e300, math.nan, math.inf, -math.inf, "", "x", "1", "\ud800", "\0", "a" * 300, [], {}, [[]],
    {"name": "x"}, "laplace", "gaussian", "record", "batch", "class", "joint", "client",
    "replace-one", "annealed", "dct", [4], [4.0], [5], ["4"], [1, 4, 4], [1, 2, 2], "pixel_range",
    "mlp", "biggan", "conv", "dcgan", "dct_mlp", [10**9], [1] * 4000, 2.0, 1e30, 10**18,
]  # fmt: skip
DEEP = "[" * 100_000
STATED = {"protocol": PROTOCOL_VERSION}
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
    ).map(lambda value: json.dumps({**value, **STATED} if isinstance(value, dict) else value)),
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
NAMES = st.sampled_from(
    ["rows", "row_labels", "potentials", "self_gradient", "weights", "latents", "fakes", "other"]
)
ARRAYS = st.builds(Array, PARTS["dtype"], PARTS["shape"], PARTS["stype"], PARTS["data"])


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of every value inside a JSON value."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    return [path] * bool(path) + [p for key, v in items for p in places_in(v, (*path, key))]


def put(table: Any, path: Sequence[Any], value: Any) -> None:
    """Puts a copy of a value in one place of a JSON value."""
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = copy.deepcopy(value)


@st.composite
def tampered(draw: st.DrawFn, messages: list[Sent]) -> Sent:
    """A message with parts replaced, removed, doubled, or sent as another type."""
    kind, content = draw(st.sampled_from(messages))
    sent_as = draw(st.sampled_from([kind] * 8 + list(KINDS)))
    if kind == IDENTITY:
        parts = st.dictionaries(NAMES, ARRAYS, max_size=2)
        text = ConfigRecord({"json": draw(TEXTS), "seed": 7})
        return sent_as, RecordDict({"fields": text, "arrays": ArrayRecord(draw(parts))})
    text = str(content.config_records["fields"]["json"])
    arrays = dict(content.array_records["arrays"])
    value: Any = text
    hows = ["fields"] * 5 + ["text", "type", "doubled", "arrays", "arrays", "nothing"]
    how = draw(st.sampled_from(hows))
    if how == "text":
        value = draw(TEXTS)
    elif how == "type":
        value = draw(st.sampled_from([5, 1.5, b"{}", True, ["{}"], [1]]))
    elif how == "doubled":
        key = draw(st.sampled_from(sorted(json.loads(text))))
        entry = f'"{key}": {json.dumps(draw(st.sampled_from(JUNK)))}'
        value = draw(
            st.sampled_from(["{" + entry + ", " + text[1:], text[:-1] + ", " + entry + "}"])
        )
    elif how == "fields":
        fields = json.loads(text)
        for _ in range(draw(st.integers(1, 2))):
            place = draw(st.sampled_from(places_in(fields)))
            if draw(st.integers(0, 9)):
                put(fields, place, draw(st.sampled_from(JUNK)))
            else:
                inner = fields
                for key in place[:-1]:
                    inner = inner[key]
                del inner[place[-1]]
            if not places_in(fields):
                break
        value = json.dumps(fields)
    elif how == "arrays":
        name = draw(st.sampled_from(sorted(arrays)) if arrays else NAMES)
        old = arrays.pop(name, Array("float32", (1,), "fedsink.raw", b"1234"))
        if draw(st.integers(0, 9)):
            part = draw(st.sampled_from(sorted(PARTS)))
            kept = {"dtype": old.dtype, "shape": old.shape, "stype": old.stype, "data": old.data}
            arrays[name] = Array(**(kept | {part: draw(PARTS[part])}))
    everything: dict[str, Any] = {
        "fields": ConfigRecord({"json": value}),
        "arrays": ArrayRecord(arrays),
        "more": ConfigRecord({"seed": 7, "noise": "none"}),
    }
    kept_parts = draw(st.sampled_from([["fields", "arrays"]] * 8 + [[], ["fields"], [*everything]]))
    return sent_as, RecordDict({name: everything[name] for name in kept_parts})


@st.composite
def random_records(draw: st.DrawFn) -> Sent:
    """A message of a known type that no honest server wrote."""
    parts = {
        "fields": ConfigRecord({"json": draw(TEXTS)}),
        "arrays": ArrayRecord(draw(st.dictionaries(NAMES, ARRAYS))),
    }
    return draw(st.sampled_from([GRADIENT, PARAMETERS, PRIVATIZE, CRITIC])), RecordDict(parts)


# Well-formed requests with hostile values

NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.3, 1e-45, 1e-38, 1e4, -1e6, 2.0**20]
UNDEFINED = [math.nan, math.inf, -math.inf, 1e18, -1e30, 3.4e38]  # or beyond the public domain
POINTS = st.sampled_from(NUMBERS * 20 + UNDEFINED)


def often(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    """The usual value twelve times as often as all others together."""
    return st.sampled_from([usual] * (12 * len(others)) + list(others))


def filled(values: list[Any], *shape: int) -> torch.Tensor:
    """A tensor of this shape that repeats the values."""
    size = math.prod(shape)
    return torch.tensor((values * (size // len(values) + 1))[:size]).reshape(shape)


@st.composite
def hostile(draw: st.DrawFn, honest: Honest) -> Sent:
    """A request whose arrays and fields have the right types."""
    kind = draw(st.sampled_from([GRADIENT, GRADIENT, PARAMETERS, PRIVATIZE]))
    if kind == PRIVATIZE:
        return kind, draw(_hostile_upload(honest))
    n = draw(st.sampled_from([6] * 20 + [1, 2, 12, 13, 0, 400]))
    d = draw(st.sampled_from([honest.dimension] * 30 + [5, 1, 0]))
    classes = draw(st.sampled_from([CLASSES] * 20 + [1, 1, 2, 4]))
    schedule = draw(st.sampled_from(["joint", "class"]))
    uses = draw(st.sampled_from([1, 1, 2])) if kind == GRADIENT else 1
    requests = []
    for number in range(1, 1 + uses):
        few = draw(st.lists(POINTS, min_size=1, max_size=6))
        wild = draw(st.lists(POINTS, min_size=1, max_size=6))
        labels = draw(st.lists(st.sampled_from([0, 0, 1, 2, 2, classes - 1]), min_size=1))
        request = replace(
            honest.gradient(number, schedule=schedule),
            rows=filled(few, n, d),
            row_labels=filled([x % classes for x in labels], n).to(torch.int64),
            potentials=filled(wild, n),
            self_gradient=filled(few[::-1], n, d),
        )
        requests.append(request)
    content = pack_requests(requests)
    if kind == PARAMETERS:
        content = draw(_hostile_weights(honest, requests[0]))
    fields = fields_of(content)
    clip = {
        "name": draw(st.sampled_from(["record", "batch"])),
        "bound": draw(often(0.5, 1e-30, 2.0**-40, 1e-300)),
    }
    fields["plan"] |= {
        "clip": clip,
        "rate": draw(often(1.0, 0.5, 1e-12)),
        "noise_multiplier": draw(often(1.0, 0.5, 0.49, 7.0, 1e300)),
        "rounds": draw(often(50, 1, 2, 10**7 + 1, 2**63)),
        "delta": draw(often(1e-5, 1e-4, 0.5, 1e-300)),
        "adjacency": draw(often("add-remove", "replace-one", "client")),
        "capacity": draw(st.sampled_from([None] * 9 + [20, NOMINAL] * 4 + [1, 65, 10**12, 10**30])),
        "nominal_records": draw(st.sampled_from([NOMINAL] * 20 + [None, 10**6, 10**30])),
    }
    fields["objective"] |= {
        "lam": draw(often(0.5, 1e-300, 2.0**-40, 1e-6, 2.0**40, 1e300, 10**300)),
        "m": draw(often(0.0, 0.3, 2.0**20, 1e37, 1e300)),
        "label_weight": draw(often(1.5, 0.0, 2.0**20, 1e15, 1e300)),
        "classes": classes,
        "solver": draw(st.sampled_from(["converged", "annealed"])),
    }
    shape = list(honest.shape)
    fields["view"] = draw(often(fields["view"], {"name": "pixel", "shape": shape[::-1]}))
    if len(shape) == 3:
        dct = {"name": "dct", "shape": shape, "radius": 99.0}
        weighted = dct | {"frequency_weight": draw(st.sampled_from([0.5, 5e-324, 1e308, 1e-200]))}
        fields["view"] = draw(often(fields["view"], dct, dct, weighted, weighted))
    fields["run"] = draw(often("run", " ", "ε/../..", "'; DROP TABLE claims; --", "x" * 200))
    fields["share"] = draw(often(1, 2, 10**30, 0))
    fits = _FIXED_POINTS[0 if fields["share"] == 1 else 1]
    fields["fixed_point"] = draw(often(fits, *_FIXED_POINTS))
    return kind, with_fields(content, fields)


@st.composite
def _hostile_weights(draw: st.DrawFn, honest: Honest, asked: GradientRequest) -> RecordDict:
    extra = draw(st.sampled_from([0, 0, 2]))
    usual = honest.parameters(extra=extra, batch_norm=draw(st.booleans()))
    weights = filled(draw(st.lists(POINTS, min_size=1, max_size=6)), len(usual.weights))
    latents = filled(draw(st.lists(POINTS, min_size=1, max_size=6)), len(asked.rows) + extra, 2)
    request = replace(
        usual,
        gradient=asked,
        weights=draw(st.sampled_from([usual.weights, weights])),
        latents=draw(st.sampled_from([latents, latents.abs().sqrt() / 2**10])),
        extra_gradient=filled(draw(st.lists(POINTS, min_size=1)), extra, honest.dimension),
    )
    return request.to_record()


_FIXED_POINTS: list[Any] = [
    None,
    {"granularity": 2.0**-20, "bits": 40, "radius": 1024.0},
    {"granularity": 2.0**-20, "bits": 16, "radius": 2.0**-6},
    {"granularity": 2.0**-100, "bits": 60, "radius": 2.0**-60},
    {"granularity": 0.3, "bits": 40, "radius": 1.0},
    {"granularity": math.nan, "bits": 32, "radius": math.inf},
    {"granularity": -1.0, "bits": -32, "radius": -1.0},
    {"granularity": 0.0, "bits": 10**30, "radius": 1e308},
]
"""Of shared noise, which goes with a share above 1 only."""

CRITIC_FIELDS: dict[tuple[str, ...], list[Any]] = {
    ("round",): [2, 50, 51, 0, -1, 10**30],
    ("share",): [2, 10**30, 0],
    ("fixed_point",): _FIXED_POINTS,
    ("run",): [" ", "ε/../..", "x" * 200],
    ("view", "shape"): [[4], [1, 4, 4], [4, 4, 1], [16]],
    ("plan", "clip", "name"): ["batch", "record"],
    ("plan", "clip", "bound"): [1e-30, 2.0**-40, 1e-300, 1.0],
    ("plan", "clip", "critics"): [1, 3, 2**14, 2**14 + 1],
    ("plan", "rate"): [0.5, 0.0],
    ("plan", "noise_multiplier"): [0.5, 0.49, 7.0, 1e300],
    ("plan", "adjacency"): ["replace-one", "user", "client"],
    ("critics", "classes"): [1, 2, 4],
    ("critics", "kind"): ["convolution"],
    ("critics", "hidden"): [1, 8, 9, 2**14, 10**30],
    ("critics", "scale"): [2.0**-20, 2.0**20, 1e-300, 1e300],
    ("critics", "seed"): [2**62, 2**62 + 1, -1],
    ("critics", "training", "critics"): [1, 2, 5, 2**14, 10**30],
    # The domain ends at 2**14 steps, which tests/protocol asks for: here they would take hours.
    ("critics", "training", "steps"): [0, 4, 5, 2**7, 2**14 + 1],
    ("critics", "training", "warm"): [0, 5, 2**7, 2**14 + 1],
    ("critics", "training", "warm_generator"): [0, 1, 2**5, 2**14 + 1],
    ("critics", "training", "batch"): [1, 100, 2**14, 10**30],
    ("critics", "training", "history"): [1, 2**14, 10**30],
    ("critics", "training", "lr"): [0.0, 2.0**20, 1e300],
    ("critics", "training", "penalty"): [0.0, 2.0**20, 1e300],
    ("critics", "training", "drift"): [0.0, 2.0**20, 1e300],
    ("critics", "training", "mismatch"): [0.0, 0.5, 1.0, 1.5],
}


@st.composite
def hostile_critics(draw: st.DrawFn, honest: Honest) -> Sent:
    """A request to a client's critics whose arrays and fields have the right types."""
    n = draw(st.sampled_from([6] * 9 + [1, 7, 400]))
    f = draw(st.sampled_from([6] * 9 + [1, 5, 400]))
    few, wild = (draw(st.lists(POINTS, min_size=1, max_size=6)) for _ in range(2))
    labels = draw(st.lists(st.sampled_from([0, 0, 1, 2, 2]), min_size=1))
    request = replace(
        honest.critic(),
        rows=filled(few, n, honest.dimension),
        row_labels=filled(labels, n).to(torch.int64),
        fakes=filled(wild, f, honest.dimension),
        fake_labels=filled(labels[::-1], f).to(torch.int64),
    )
    fields = fields_of(request.to_record())
    for place in draw(st.lists(st.sampled_from(sorted(CRITIC_FIELDS)), max_size=2)):
        put(fields, place, draw(st.sampled_from(CRITIC_FIELDS[place])))
    return CRITIC, with_fields(request.to_record(), fields)


@st.composite
def _hostile_upload(draw: st.DrawFn, honest: Honest) -> RecordDict:
    fields = fields_of(honest.upload().to_record())
    shape = list(honest.shape)
    maps: list[Any] = [
        {"name": "pixel_range", "shape": shape, "norm": "l1"},
        {"name": "l1_ball", "shape": shape, "radius": 1e300},
        {"name": "dct_direction", "shape": shape, "block": 2},
        {"name": "dct_direction", "shape": shape, "block": 2.0},
        {"name": "pooled_power", "shape": shape, "block": 2, "power": 1e300},
        {"name": "pooled_power", "shape": shape, "block": 2, "power": 10**300},
        {"name": "point_ball", "size": 4, "radius": 1e-40},
    ]
    fields["plan"] |= {
        "map": draw(often(fields["plan"]["map"], *maps)),
        "epsilon": draw(often(fields["plan"]["epsilon"], 3.0, 1e-300, 5e5, 10**300)),
        "label_epsilon": draw(often(0.5, None, 1e-300, 700.0, 1e300)),
        "classes": draw(often(CLASSES, 1, 2, 10**9)),
    }
    if draw(st.integers(0, 4)) == 0:
        norm_map = {"name": "point_ball", "norm": "l2", "radius": 1.0, "size": 4}
        if len(shape) == 3:
            norm_map = {"name": "non_negative_direction", "shape": shape, "pool": 2, "block": 2}
            norm_map["pool"] = draw(st.sampled_from([2, 2, 2.0]))
        fields["plan"] |= {"mechanism": "gaussian", "map": norm_map, "delta": 1e-5}
    fields["chunk"] = draw(often(0, 1, 5, 10**30, 2**63))
    fields["chunk_size"] = draw(often(20, 1, 10**6, 10**30, 2**63))
    fields["run"] = draw(often("run", " ", "x" * 200))
    return with_fields(honest.upload().to_record(), fields)


# Repeated, replayed, reordered, re-typed, altered, split and joined

RUNS = ["one", "two", "three", "four"]
STEP = st.tuples(
    st.sampled_from(
        ["ask", "ask", "weights", "weights", "retyped", "bit", "bit", "text", "join", "split",
         "round", "upload", "upload-other", "restart", "plan", "reorder", "identity", "critic"]
    ),
    st.sampled_from(RUNS),
    st.integers(1, 4),
    st.integers(0, 4 * 12 * 32 - 1),
)  # fmt: skip
Step = tuple[str, str, int, int]


def options_of(run: str, **more: Any) -> dict[str, Any]:
    """Clip, schedule and capacity of a run are its name's."""
    return {
        "clip": "batch" if run in ("one", "four") else "record",
        "schedule": "class" if run in ("two", "four") else "joint",
        "noise_multiplier": 5.0,
        "run": run,
        **({"capacity": NOMINAL, "nominal_records": NOMINAL} if run in ("three", "four") else {}),
        **more,
    }


def in_message(step: Step, honest: Honest) -> Sent:
    """The message of one step of a siege."""
    how, run, round, bit = step
    if how == "identity":
        return IDENTITY, RecordDict()
    if how == "critic":  # of any round, before or after another
        return CRITIC, honest.critic(round, noise_multiplier=5.0, run=run).to_record()
    if how in ("upload", "upload-other"):
        label = {"upload": 0.5}.get(how, 0.6 if bit % 2 else None)
        return PRIVATIZE, honest.upload(run, bit % 5, label=label).to_record()
    if how in ("weights", "retyped"):
        content = honest.parameters(round, **options_of(run)).to_record()
        return (PARAMETERS if how == "weights" else GRADIENT), content
    if how in ("join", "split", "reorder"):
        rounds = {"join": [1, 4], "split": [*range(round, 5)], "reorder": [4, 3, 2, 1]}[how]
        few = 12 // len(rounds)  # twelve images a message are allowed
        uses = [honest.gradient(t, rows=few, **options_of(run)) for t in rounds]
        return GRADIENT, pack_requests(uses)
    changes: dict[str, Any] = {"noise_multiplier": 6.0 + bit % 2} if how == "plan" else {}
    request = honest.gradient(
        round + 46 if how == "round" else round, rows=12, **options_of(run, **changes)
    )
    if how == "bit":
        rows = request.rows.clone()
        place = bit // 32 % rows.numel()
        rows.view(torch.int32).view(-1)[place] ^= 1 << bit % 31
        request = replace(request, rows=rows)
    content = request.to_record()
    if how == "text":  # the same request in other words
        text = str(content.config_records["fields"]["json"])
        content = with_fields(content, text + " " * (1 + bit % 3))
    return GRADIENT, content


# A run name under everything that it can be combined with

ADJACENCY_OF = {"a": "user", "b": "add-remove", "c": "replace-one", "d": "client", "e": "user"}
LOUD = {"critics": CRITICS, "steps": 0, "warm": 6, "batch": 8, "history": 1, "lr": 0.03,
        "penalty": 0.0, "drift": 0.0}  # fmt: skip
"""Critics that learn in their first round alone, and then say all they know."""
CRITICS_ASKED: list[dict[str, Any]] = [
    {"classes": 1, "training": LOUD},
    {"classes": 1, "training": LOUD | {"steps": 3, "warm": 3}},
    {"classes": 1, "training": LOUD | {"critics": 3, "steps": 1}},
    {"classes": 1, "training": LOUD | {"critics": 1}, "hidden": 8},
    {"classes": 1, "training": LOUD | {"steps": 1, "warm": 0, "warm_generator": 2}},
    {"training": LOUD | {"mismatch": 0.5, "steps": 2, "warm": 0, "penalty": 10.0}},
    {"kind": "convolution", "hidden": 2},
    {},
]
PLANS_ASKED: list[dict[str, Any]] = [
    {},
    {"noise_multiplier": 2.0},
    {"rounds": 6},
    {"rate": 0.5},
    {"clip": {"name": "critic", "bound": 0.25, "critics": CRITICS + 4}},
    {"schedule": TurnSchedule(2).to_dict()},
    {"delta": 1e-7, "clip": {"name": "row", "bound": 0.5, "rows": 6}},
]


class Order(NamedTuple):
    """One step of a server that combines one run name with everything."""

    how: str  # the message that the server sends, or a fault of the nodes
    run: str
    round: int
    adjacency: str | None  # None: that of `ADJACENCY_OF` the run
    plan: int  # a place in `PLANS_ASKED`
    critics: int  # a place in `CRITICS_ASKED`
    bits: int  # choose everything else
    signature: str = "good"  # as of `History.send`


def _mostly(usual: int, others: int) -> st.SearchStrategy[int]:
    return st.sampled_from([usual] * 3 * others + list(range(others)))


ORDERS = st.builds(
    Order,
    st.sampled_from(
        ["critic"] * 14
        + ["other", "hostile", "gradient", "gradient", "weights", "upload", "again", "again"]
        + ["restart", "data", "lose", "damage", "swap", "identity", "junk"]
    ),
    st.sampled_from(["a", "a", "b", "c", "d", "e"]),
    st.integers(1, 6),
    st.sampled_from([None] * 12 + sorted(set(ADJACENCY_OF.values()))),
    _mostly(0, len(PLANS_ASKED)),
    st.sampled_from([0, 0, 0, 1, 1, *range(len(CRITICS_ASKED))]),
    st.integers(0, 2**16 - 1),
    st.sampled_from(["good"] * 20 + ["none", "stranger", "another", "type"]),
)


def ordered(order: Order, honest: Honest) -> Sent:
    """The message of an order that is for one."""
    adjacency = order.adjacency or ADJACENCY_OF[order.run]
    plan = {"adjacency": adjacency, **PLANS_ASKED[order.plan]}
    bits, asked = order.bits, {"run": order.run}
    if order.how == "identity":
        return IDENTITY, RecordDict()
    if order.how == "upload":
        label = [0.5, None][bits % 2]
        return PRIVATIZE, honest.upload(order.run, bits % 3, label=label).to_record()
    if order.how in ("gradient", "weights"):
        sampled = {
            "adjacency": adjacency,
            "rate": [1.0, 1.0, 0.5][bits % 3],
            "capacity": [None, NOMINAL][adjacency == "client" or bits // 3 % 2],
            "nominal_records": NOMINAL,
            "noise_multiplier": [5.0, 1.0][bits // 6 % 2],
            "rounds": 6,
        }
        if adjacency == "user":  # which gradients have no guarantee for
            sampled["adjacency"] = "replace-one"
        clip, schedule = ["record", "batch"][bits // 12 % 2], ["joint", "class"][bits // 24 % 2]
        make = honest.gradient if order.how == "gradient" else honest.parameters
        request = make(order.round, clip=clip, schedule=schedule, **asked, **sampled)
        return (GRADIENT if order.how == "gradient" else PARAMETERS), request.to_record()
    critics = CRITICS_ASKED[order.critics]
    rows = [1, 1, 1, 6][bits % 4]
    request = honest.critic(order.round, rows=rows, critics=critics, **asked, **plan)
    if critics.get("classes") == 1:
        request = replace(
            request, row_labels=0 * request.row_labels, fake_labels=0 * request.fake_labels
        )
    share = [1] * 15 + [2]  # points near the middle: there a critic shows its training
    request = replace(
        request, rows=request.rows / 10, fakes=request.fakes / 10, share=share[bits // 4 % 16]
    )
    if order.how == "other":  # the same place, and another function
        request = replace(request, rows=request.rows - 1)
    content = request.to_record()
    fields = fields_of(content)
    if len(honest.shape) == 3 and bits // 64 % 8 == 0:
        fields["view"] = {"name": "dct", "shape": list(honest.shape), "radius": 99.0}
        content = with_fields(content, fields)
    if order.how == "hostile":
        place = sorted(CRITIC_FIELDS)[bits // 512 % len(CRITIC_FIELDS)]
        put(fields, place, CRITIC_FIELDS[place][bits % len(CRITIC_FIELDS[place])])
        content = with_fields(content, fields)
    if order.how == "junk":
        way = places_in(fields)[bits // 64 % len(places_in(fields))]
        put(fields, way, JUNK[bits % len(JUNK)])
        content = with_fields(content, fields)
    return CRITIC, content
