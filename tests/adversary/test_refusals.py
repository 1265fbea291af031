"""A message's numbers are compared with public limits before anything is built from them.

Each of these messages cost seconds or gigabytes once. The bounds are `SECONDS` and `MEGABYTES`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Array, RecordDict

from fedsink.privacy import PrivacyPlan
from fedsink.protocol.failure_codes import FAILED, MALFORMED, REFUSED

from .honest import (
    GRADIENT,
    PARAMETERS,
    PRIVATIZE,
    SHAPES,
    Honest,
    Kind,
    Sent,
    changed,
    fields_of,
    with_arrays,
    with_fields,
)
from .messages import DEEP
from .siege import Siege

GIANT = 10**9
HONEST = {name: Honest(shape) for name, shape in SHAPES.items()}
RAW = "fedsink.raw"


@pytest.fixture(params=["points", "images"])
def honest(request: pytest.FixtureRequest) -> Honest:
    return HONEST[request.param]


@pytest.fixture(params=["fast", "keyed"])
def siege(
    request: pytest.FixtureRequest, honest: Honest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Siege:
    """Nodes that have answered an honest message, so that their libraries are warm."""
    records = next(name for name, each in HONEST.items() if each == honest)
    besieged = Siege(tmp_path, monkeypatch, request.param, records)
    assert not besieged.send(GRADIENT, honest.gradient(run="first").to_record()).has_error()
    besieged.begin()
    return besieged


def refused(siege: Siege, messages: list[Sent]) -> set[int]:
    """The codes of messages that are all refused, uncharged, within the bounds of `Siege.send`."""
    replies = [siege.send(*message) for message in messages]
    answered = [content for (_, content), reply in zip(messages, replies, strict=True)
                if not reply.has_error()]  # fmt: skip
    assert answered == []
    codes = {reply.error.code for reply in replies}
    assert [node.claims() for node in siege.nodes] == [{}, {}]
    assert FAILED not in codes  # the answer to a failed allocation
    return codes


def architectures(honest: Honest) -> list[dict[str, Any]]:
    """Generators that would take minutes or gigabytes to build."""
    usual = fields_of(honest.parameters().to_record())["architecture"]
    options = usual["options"]
    wide = [
        {"hidden": [1] * 12_000}, {"hidden": [1] * 64}, {"hidden": [9000, 9000]},
        {"hidden": [GIANT]},
        {"hidden": [2**30] * 63}, {"hidden": [10**4000]}, {"latent_dim": GIANT},
        {"hidden": [GIANT], "batch_norm": True}, {"hidden": "9" * 60_000}, {"hidden": {"0": 1}},
    ]  # fmt: skip
    made: list[dict[str, Any]] = [usual | {"options": options | each} for each in wide]
    for shape in ([1, 9000, 9000], [9000, 9000], [1, 2**20, 2**20], [GIANT], [1] * 20_000):
        made += [
            usual | {"shape": shape},
            {"name": "dct_mlp", "shape": shape, "classes": 3, "options": {}},
        ]
    made += [usual | {"classes": GIANT}, usual | {"classes": 10**4000}]
    for name, more in (
        ("dct_mlp", {"hidden": [9000, 9000]}),
        ("dct_mlp", {"radius": 1e300, "hidden": [GIANT], "per_class_first_layer": True}),
        ("conv", {"hidden": GIANT}),
        ("conv", {"maps": [GIANT, GIANT]}),
        ("conv", {"maps": [1] * 60}),
        ("biggan", {"width": GIANT}),
        ("biggan", {"blocks": GIANT}),
        ("dcgan", {"width": GIANT}),
        ("dcgan", {"width": 4000, "latent_dim": 4000, "label_embedding": 4000}),
    ):
        made.append({**usual, "name": name, "options": more})
    return made


def test_generators_that_are_larger_than_the_weights_sent(siege: Siege, honest: Honest) -> None:
    content = honest.parameters().to_record()
    messages = []
    for architecture in architectures(honest):
        text = json.dumps({**fields_of(content), "architecture": architecture})
        assert len(text) < 2**18
        messages.append((PARAMETERS, with_fields(content, text)))
    assert refused(siege, messages) == {MALFORMED}


def test_views_and_maps_of_other_records(siege: Siege, honest: Honest) -> None:
    shapes: list[list[int]] = [
        [1, 9000, 9000], [9000, 9000], [1, GIANT, GIANT], [GIANT], [1] * 100_000, [2**62] * 3,
    ]  # fmt: skip
    messages: list[Sent] = []
    upload = honest.upload().to_record()
    for shape in shapes:
        for view in ({"name": "pixel"}, {"name": "dct", "radius": 1e9}):
            for kind, content in (
                (GRADIENT, honest.gradient().to_record()),
                (PARAMETERS, honest.parameters().to_record()),
            ):
                fields = fields_of(content) | {"view": view | {"shape": shape}}
                messages.append((kind, with_fields(content, fields)))
        for options in (
            {"name": "pixel_range", "norm": "l1", "shape": shape},
            {"name": "l1_ball", "radius": 1.0, "shape": shape},
            {"name": "dct_direction", "block": max(shape), "shape": shape},
            {"name": "pooled_power", "block": 2, "shape": shape},
        ):
            messages.append((PRIVATIZE, changed(upload, "plan", map=options, epsilon=1.0)))
    for size in (GIANT, 10**30, 10**400):
        options = {"name": "point_ball", "size": size}
        messages.append((PRIVATIZE, changed(upload, "plan", map=options, epsilon=1.0)))
    assert refused(siege, messages) == {MALFORMED}


@pytest.mark.quick("keyed-images")
def test_numbers_without_end(siege: Siege, honest: Honest) -> None:
    gradient, upload = honest.gradient().to_record(), honest.upload().to_record()
    parameters = honest.parameters().to_record()
    messages: list[Sent] = []
    for giant in (GIANT * GIANT, 10**30, 10**400, 10**4000):
        for kind, content in ((GRADIENT, gradient), (PARAMETERS, parameters)):
            for entries in (
                {"rounds": giant}, {"capacity": giant}, {"rate": giant}, {"delta": giant},
                {"nominal_records": -giant}, {"noise_multiplier": giant},
                {"clip": {"name": "batch", "bound": giant}},
            ):  # fmt: skip
                messages.append((kind, changed(content, "plan", **entries)))
            for entries in (
                {"lam": giant},
                {"m": giant},
                {"label_weight": giant},
                {"classes": giant},
            ):
                messages.append((kind, changed(content, "objective", **entries)))
            for entry in ({"rounds": [giant]}, {"labels": [giant]}, {"share": giant}):
                messages.append((kind, with_fields(content, fields_of(content) | entry)))
        of_plan: list[dict[str, Any]] = [{"classes": giant}, {"delta": giant}, {"delta": -giant}]
        if giant > 10**308:  # up to there a node without a ceiling answers
            of_plan += [{"epsilon": giant}, {"label_epsilon": giant}]
        messages += [(PRIVATIZE, changed(upload, "plan", **entries)) for entries in of_plan]
        negative = fields_of(upload) | {"chunk_size": -giant}
        messages.append((PRIVATIZE, with_fields(upload, negative)))
    codes = refused(siege, messages)
    assert codes <= {MALFORMED, REFUSED}


def test_texts_without_end(siege: Siege, honest: Honest) -> None:
    """Deep nesting, giant literals, a million of everything."""
    million = 10**6
    texts = [
        DEEP, '{"plan":' * 50_000, "[" * million, "9" * million, '{"rounds": ' + "9" * million,
        '{"rounds": [' + "1," * (million // 2) + "1]}", '{"rounds": [' + "[]," * 300_000 + "1]}",
        "[" + "{}," * 300_000 + "{}]", '"' + "\\u0000" * 170_000 + '"', " " * million + "{}",
        '{"' + "a" * million + '": 1}', json.dumps({str(i): i for i in range(60_000)}),
    ]  # fmt: skip
    content = honest.parameters().to_record()
    kinds = (GRADIENT, PARAMETERS, PRIVATIZE)
    messages = [(kind, with_fields(content, text)) for text in texts for kind in kinds]
    assert refused(siege, messages) == {MALFORMED}


def uses(honest: Honest, count: int, rows: tuple[int, ...], **sizes: tuple[int, ...]) -> RecordDict:
    """A message that asks for so many uses with arrays of these shapes, filled with zeros."""
    content = honest.gradient(clip="record").to_record()
    text = {**fields_of(content), "rounds": [*range(1, count + 1)], "labels": [None] * count}
    text["plan"] |= {"rounds": max(count, 1)}
    names = {"row_labels": rows[:1], "potentials": rows[:1], "self_gradient": (0, 0), **sizes}
    arrays = {}
    for name, shape in {"rows": rows, **names}.items():
        dtype, width = ("int64", 8) if name == "row_labels" else ("float32", 4)
        size = count * width
        for length in shape:
            size *= length
        arrays[name] = Array(dtype, (count, *shape), RAW, bytes(size))
    return with_arrays(with_fields(content, text), **arrays)


@pytest.mark.medium
@pytest.mark.quick("keyed-images")
def test_arrays_that_are_not_what_they_declare(siege: Siege, honest: Honest) -> None:
    content, d = honest.gradient(clip="batch").to_record(), honest.dimension
    data = content.array_records["arrays"]["rows"].data
    shapes: list[tuple[str, tuple[int, ...], bytes]] = [
        ("rows", (1, GIANT, 4), data), ("rows", (GIANT, 6, d), data), ("rows", (1, GIANT, 0), b""),
        ("rows", (GIANT, 0, d), b""), ("potentials", (1, GIANT), data),
        ("rows", (2**62, 2**62), b""), ("rows", (1, 2**40, 0), b""),
        ("rows", (0, *[2**31] * 30), b""), ("self_gradient", (1, 2**62, 0), b""),
    ]  # fmt: skip
    messages = [
        (GRADIENT, with_arrays(content, **{name: Array("float32", shape, RAW, data)}))
        for name, shape, data in shapes
    ]
    # A million uses of nothing: too long a text; and as many as fit into one.
    messages += [(GRADIENT, uses(honest, count, (0, d))) for count in (10**6, 10_000, 2001, 2000)]
    assert refused(siege, messages) == {MALFORMED}


@pytest.mark.medium
@pytest.mark.parametrize("siege", ["fast"], indirect=True)
def test_the_most_uses_that_a_message_may_ask_for(siege: Siege, honest: Honest) -> None:
    messages = [(GRADIENT, uses(honest, count, (1, honest.dimension))) for count in (200, 2000)]
    messages.append((GRADIENT, honest.gradient(rows=4096).to_record()))
    assert refused(siege, messages) == {REFUSED}


@pytest.mark.slow
@pytest.mark.parametrize("siege", ["fast"], indirect=True)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("capacity", [40, pytest.param(None, marks=pytest.mark.slow)])
def test_plans_that_are_far_too_dear(
    siege: Siege, honest: Honest, adjacency: str, capacity: int | None
) -> None:
    """Such plans are refused at a rough price, those of millions of rounds without any price."""
    for node in siege.nodes:
        node._epsilon = 0.05
    siege.begin()
    messages = []
    for clip in ("record", "batch"):
        for rate in (1.0, 0.999, 0.2, 0.013, 1e-4):
            for sigma in (0.5, 0.731, 1.3, 4.7):
                for rounds in (1, 50, 999, 99_999, 10**7):
                    plan = {
                        "rate": rate, "noise_multiplier": sigma, "rounds": rounds,
                        "adjacency": adjacency, "capacity": capacity, "nominal_records": 64,
                    }  # fmt: skip
                    request = honest.gradient(clip=clip, run=f"run {len(messages)}", **plan)
                    if isinstance(request.plan, PrivacyPlan):
                        messages.append((GRADIENT, request.to_record()))
    for kind, content in messages:
        siege.send(kind, content)
    assert siege.codes[REFUSED] > 0.8 * len(messages)
    assert siege.codes[FAILED] == 0


@pytest.mark.quick("keyed-points")
def test_chunks_without_end_are_answered_once(siege: Siege, honest: Honest) -> None:
    """A chunk's number and size choose rows of one release and allocate nothing."""
    content = honest.upload().to_record()
    for chunk, size in ((0, 10**30), (10**30, 10**30), (10**30, 1), (2**63, 2**63), (1, 2**62)):
        message = with_fields(content, fields_of(content) | {"chunk": chunk, "chunk_size": size})
        assert not siege.send(PRIVATIZE, message).has_error()


@pytest.mark.quick("keyed-images-*")
@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": 1e300},
        {"noise_multiplier": 1.0, "clip": {"name": "record", "bound": 1e-40}},
        {"rounds": 10**7 + 1},
        {"clip": {"name": "record", "bound": 5e-324}},
        {"capacity": 2**41},
    ],
)
@pytest.mark.parametrize("kind", [GRADIENT, PARAMETERS])
def test_a_plan_outside_the_public_domain(
    kind: Kind, change: dict[str, Any], siege: Siege, honest: Honest
) -> None:
    usual = honest.gradient() if kind == GRADIENT else honest.parameters()
    message = (kind, changed(usual.to_record(), "plan", **change))
    assert refused(siege, [message]) == {MALFORMED}


@pytest.mark.quick("keyed-images-*")
@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 1e-300}, {"epsilon": 1e300}, {"classes": 2}, {"delta": -1.0}, {"delta": 1e-9},
        {"map": {"name": "pooled_power", "shape": [1, 4, 4], "block": 2, "power": 10**300}},
        {"map": {"name": "pooled_power", "shape": [1, 4, 4], "block": 2.0}},
        {"map": {"name": "dct_direction", "shape": [1, 4, 4], "block": 2.5}},
        {"map": {"name": "l1_ball", "shape": [1, 4, 4], "radius": True}},
        {
            "map": {"name": "non_negative_direction", "shape": [1, 4, 4], "pool": 2.0, "block": 2},
            "mechanism": "gaussian", "delta": 1e-9, "epsilon": 3.0,
        },
    ],
)  # fmt: skip
def test_an_upload_that_cannot_be_carried_out(
    change: dict[str, Any], siege: Siege, honest: Honest
) -> None:
    content = changed(honest.upload().to_record(), "plan", **change)
    assert refused(siege, [(PRIVATIZE, content)]) == {MALFORMED}


@pytest.mark.quick("keyed-images-*")
@pytest.mark.parametrize(
    "options",
    [
        {"name": "pixel_range", "shape": [1, 1, 1], "norm": "l1"},
        {"name": "point_ball", "norm": "l1", "radius": 1.0, "size": 1},
        {"name": "point_ball", "norm": "l1", "radius": 1.0, "size": 5},
        {"name": "point_ball", "norm": "l1", "radius": 1e-40, "size": 4},
    ],
)
def test_a_map_for_other_records_never_lowers_the_noise(
    options: dict[str, Any], siege: Siege, honest: Honest
) -> None:
    """The sensitivity is that of the stated shape: that of these records would be larger."""
    content = changed(honest.upload().to_record(), "plan", map=options, epsilon=3.0)
    assert refused(siege, [(PRIVATIZE, content)]) == {MALFORMED}
