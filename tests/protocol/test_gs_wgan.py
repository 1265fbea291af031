from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedsink.data.views import DctView, PixelView
from fedsink.models.critics import (
    ConvolutionCritic,
    CriticTraining,
    LocalGenerator,
    PerceptronCritic,
)
from fedsink.privacy import (
    BatchClip,
    CriticClip,
    JointSchedule,
    PrivacyPlan,
    TurnSchedule,
    UnprotectedPlan,
)
from fedsink.protocol.gs_wgan import MOST_FAKES, MOST_PAIRS, MOST_WEIGHTS, CriticRequest, Critics
from fedsink.protocol.packing import digest, pack, unpack

from ..support.requests import GRID, shared

PLAN = PrivacyPlan(1.0, 1.5, 7, CriticClip(0.5, 6), TurnSchedule(3), 1e-5)
CRITICS = Critics(CriticTraining(6, lr=1e-3, late=0.5), classes=3, hidden=4, scale=2.0, seed=5)


def make(**changes: Any) -> CriticRequest:
    fields: dict[str, Any] = {
        "round": 2,
        "plan": PLAN,
        "critics": CRITICS,
        "view": {"name": "pixel", "shape": [2]},
        "rows": torch.arange(8.0).reshape(4, 2),
        "row_labels": torch.tensor([0, 0, 1, 2]),
        "fakes": torch.ones(5, 2),
        "fake_labels": torch.tensor([2, 1, 0, 0, 0]),
    }
    return CriticRequest(**{**fields, **changes})


def with_fields(change: Callable[[dict[str, Any]], None]) -> RecordDict:
    record = make().to_record()
    fields = json.loads(str(record.config_records["fields"]["json"]))
    change(fields)
    record["fields"] = ConfigRecord({"json": json.dumps(fields)})
    return record


@pytest.mark.parametrize(
    "plan",
    [PLAN, replace(PLAN, schedule=JointSchedule()),
     UnprotectedPlan(1.0, 7, "critic", TurnSchedule(2))],
    ids=["turns", "joint", "unprotected"],
)  # fmt: skip
def test_a_request_round_trips(plan: Any) -> None:
    sharers = 2 if plan.protected else 1
    request = shared(make(plan=plan, run="ward 7, first try"), sharers)
    read = CriticRequest.from_record(request.to_record())
    for name in ("round", "label", "plan", "critics", "view", "run", "share", "fixed_point"):
        assert getattr(read, name) == getattr(request, name)
    for name in ("rows", "row_labels", "fakes", "fake_labels"):
        assert torch.equal(getattr(read, name), getattr(request, name))
    assert read.rate == request.rate
    assert read.own_plan.noise_std == pytest.approx(plan.noise_std / sharers**0.5)


def test_the_rate_follows_the_round() -> None:
    assert [make(round=t).rate for t in (3, 4)] == [1e-3, 5e-4]


@pytest.mark.parametrize(
    "changes",
    [
        {"round": 3}, {"run": "another"}, {"share": 2}, {"plan": replace(PLAN, delta=1e-6)},
        {"critics": replace(CRITICS, seed=6)}, {"critics": replace(CRITICS, hidden=5)},
        {"critics": replace(CRITICS, training=replace(CRITICS.training, warm=1))},
        {"rows": torch.zeros(4, 2)}, {"fakes": torch.zeros(5, 2)},
        {"row_labels": torch.tensor([0, 0, 1, 1])}, {"fake_labels": torch.tensor([2, 1, 0, 0, 1])},
        {"view": {"name": "pixel", "shape": [1, 2]}},
    ],
    ids=str,
)  # fmt: skip
def test_every_part_is_in_the_digest(changes: dict[str, Any]) -> None:
    digests = {digest("train.gs_wgan", r.to_record()) for r in (make(), make(**changes))}
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"round": 0}, r"round must be an integer ≥ 1"),
        ({"round": 8}, r"Round 8 is not in the plan's 1\.\.7"),
        ({"plan": PrivacyPlan(0.1, 1.5, 7, BatchClip(1.0), JointSchedule(), 1e-5)}, "critic clip"),
        ({"plan": replace(PLAN, clip=CriticClip(0.5, 5))}, "accounts for 5 critics .* not for 6"),
        ({"rows": torch.zeros(4)}, "Rows must be a finite n×D float32 matrix"),
        ({"rows": torch.zeros(4, 2, dtype=torch.float64)}, "Rows must be"),
        ({"rows": torch.full((4, 2), math.nan)}, "Rows must be"),
        ({"rows": torch.full((4, 2), 2.0**21)}, "Rows must be"),
        ({"row_labels": torch.zeros(3).long()}, "Row labels must be 4 integers"),
        ({"row_labels": torch.tensor([0, 1, 2, 3])}, "Row labels must be below the 3 classes"),
        ({"fakes": torch.zeros(0, 2), "fake_labels": torch.zeros(0).long()}, "Rows must be"),
        ({"fakes": torch.full((5, 2), -math.inf)}, "Rows must be"),
        ({"fakes": torch.zeros(5, 3)}, "have 3 coordinates, the others 2"),
        ({"fake_labels": torch.zeros(5)}, "Row labels must be 5 integers"),
        ({"fake_labels": torch.tensor([-1, 0, 0, 0, 0])}, "Row labels must be below"),
        ({"share": 10**26, "fixed_point": GRID}, "the noise multiplier σ must be a number from"),
        (
            {
                "critics": replace(CRITICS, training=replace(CRITICS.training, history=1 << 14)),
                "fakes": torch.zeros(65, 2),
                "fake_labels": torch.zeros(65).long(),
            },
            f"rows to train against, where {MOST_FAKES}",
        ),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CriticRequest.from_record(make(**changes).to_record())


NO_NUMBERS: list[Any] = [True, None, "2", [2], {}, math.inf, math.nan, 2**40, 10**400]


@pytest.mark.parametrize(
    ("names", "values"),
    [
        ("critics steps warm warm_generator batch history", [-1, 1.5, *NO_NUMBERS]),
        ("critics batch history", [0]),
        ("lr penalty drift late mismatch", [-1e-9, *NO_NUMBERS]),
    ],
)
def test_hostile_training_is_refused(names: str, values: list[Any]) -> None:
    for name in names.split():
        for value in values:
            with pytest.raises(ValueError, match=r"."):
                CriticRequest.from_record(
                    with_fields(lambda f: f["critics"]["training"].update({name: value}))  # noqa: B023
                )


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("kind", ["forest", None, 3, ["perceptron"]]),
        ("classes", [0, 2, 2.5, "3", None, True]),
        ("hidden", [0, 2**15, 4.0, "4", None, 10**400]),
        ("scale", [0.0, -1.0, 2.0**21, math.inf, math.nan, "1", None, True, 10**400]),
        ("seed", [-1, 2**63, 0.5, "0", None]),
        ("training", [None, 3, {}, {"critics": 1, "more": 2}]),
    ],
)
def test_hostile_descriptions_are_refused(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=r"."):
            CriticRequest.from_record(with_fields(lambda f: f["critics"].update({name: value})))  # noqa: B023


@pytest.mark.parametrize("name", ["run", "share", "round", "plan", "critics", "view"])
def test_a_request_without_a_field_is_malformed(name: str) -> None:
    with pytest.raises(ValueError, match="Malformed critic request"):
        CriticRequest.from_record(with_fields(lambda fields: fields.pop(name)))
    for value in (None, 3.5, [[]], "\n"):
        with pytest.raises(ValueError, match=r"."):
            CriticRequest.from_record(with_fields(lambda f: f.update({name: value})))  # noqa: B023


@pytest.mark.parametrize("name", ["rows", "row_labels", "fakes", "fake_labels"])
def test_a_request_without_an_array_is_malformed(name: str) -> None:
    fields, arrays = unpack(make().to_record())
    del arrays[name]
    with pytest.raises(ValueError, match=f"Malformed critic request: '{name}'"):
        CriticRequest.from_record(pack(fields, arrays))


@given(st.dictionaries(
    st.sampled_from(["critics", "batch", "steps", "warm", "warm_generator"]), st.integers(0, 2**14)
))  # fmt: skip
def test_no_message_asks_for_more_work_than_is_allowed(counts: dict[str, int]) -> None:
    """The limits separate accepted from refused messages exactly."""
    training = {"critics": 1, "batch": 1, "steps": 1, "warm": 0, "warm_generator": 0} | counts
    steps, local = training["steps"], training["warm_generator"]
    each = steps + training["warm"] + local * (steps + 1)
    valid = min(training["critics"], training["batch"]) >= 1 and (steps > 0 or local == 0)
    valid = valid and training["critics"] * training["batch"] * each <= MOST_PAIRS
    try:
        Critics(CriticTraining(**training), 3)
    except ValueError:
        assert not valid
    else:
        assert valid


@given(
    st.sampled_from(["perceptron", "convolution"]),
    st.integers(1, 2**14), st.integers(1, 2**14), st.integers(1, 10**12), st.booleans(),
)  # fmt: skip
def test_weights_are_counted_before_anything_is_built(
    kind: str, critics: int, hidden: int, classes: int, warmed: bool
) -> None:
    """Otherwise a message of some kilobytes would ask for gigabytes."""
    view = DctView((1, 8, 8), 3)
    critics_of = {"perceptron": PerceptronCritic(view.dimension, classes, hidden),
                  "convolution": ConvolutionCritic(view, classes, hidden)}  # fmt: skip
    training = CriticTraining(critics, steps=1, warm=0, batch=1, warm_generator=int(warmed))
    wanted = Critics(training, classes, kind, hidden)
    local = LocalGenerator(view.dimension, classes).size if warmed else 0
    if critics * max(critics_of[kind].size, local) > MOST_WEIGHTS:
        with pytest.raises(ValueError, match="weights, where"):
            wanted.architecture(view)
    else:
        assert wanted.architecture(view).size == critics_of[kind].size


def test_the_architecture_is_the_one_that_was_described() -> None:
    flat, image = PixelView((2,)), DctView((1, 8, 8), 3)
    assert CRITICS.architecture(flat) == PerceptronCritic(2, 3, 4, 2.0)
    convolution = replace(CRITICS, kind="convolution")
    assert convolution.architecture(image) == ConvolutionCritic(image, 3, 4)
    with pytest.raises(ValueError, match="a critic of kind=convolution sees images"):
        convolution.architecture(flat)


def test_the_initial_weights_are_public() -> None:
    critic = CRITICS.architecture(PixelView((2,)))
    read = CriticRequest.from_record(make().to_record()).critics
    assert torch.equal(critic.initial(CRITICS.initial), critic.initial(read.initial))
    other = replace(CRITICS, seed=6)
    assert not torch.equal(critic.initial(CRITICS.initial), critic.initial(other.initial))
