from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict

from fedsink.errors import ConfigError, PrivacyError
from fedsink.privacy import (
    BatchClip,
    ClassSchedule,
    CriticClip,
    JointSchedule,
    PrivacyPlan,
    RecordClip,
    Stream,
    UnprotectedPlan,
)
from fedsink.protocol.dp_sinkhorn import (
    MOST_ROUNDS,
    GradientRequest,
    Objective,
    unpack_requests,
)
from fedsink.protocol.packing import pack, unpack
from fedsink.protocol.requests import pack_replies, unpack_replies
from fedsink.transport import append_labels

from ..support.requests import GRID, pack_requests, shared

Make = Callable[..., GradientRequest]
RECORD = PrivacyPlan(0.25, 1.5, 7, RecordClip(0.5), JointSchedule(), 1e-5)
PLAN = replace(RECORD, clip=BatchClip(0.5))


def with_field(request: GradientRequest, **changes: Any) -> RecordDict:
    record = request.to_record()
    fields = json.loads(str(record.config_records["fields"]["json"])) | changes
    record["fields"] = ConfigRecord({"json": json.dumps(fields)})
    return record


@pytest.mark.parametrize("clip", [BatchClip(0.5), RecordClip(2.0)])
@pytest.mark.parametrize("label", [None, 1])
def test_a_request_round_trips(make_request: Make, clip: Any, label: int | None) -> None:
    schedule = JointSchedule() if label is None else ClassSchedule(3)
    plan = PrivacyPlan(0.1, 1.5, 7, clip, schedule, 1e-5)
    request = make_request(
        plan=plan, label=label, potentials=torch.arange(4.0), run="ward 7, first try"
    )
    request = shared(request, 5)
    read = GradientRequest.from_record(request.to_record())
    assert (read.round, read.label, read.plan) == (request.round, label, plan)
    assert (read.objective, read.view) == (request.objective, request.view)
    assert (read.run, read.share, read.fixed_point) == ("ward 7, first try", 5, GRID)
    assert read.own_plan.noise_std == pytest.approx(plan.noise_std / 5**0.5)
    for name in ("rows", "row_labels", "potentials", "self_gradient"):
        assert torch.equal(getattr(read, name), getattr(request, name))


def test_rows_that_require_gradients_are_sent_as_values(make_request: Make) -> None:
    rows = torch.ones(4, 2, requires_grad=True)
    read = GradientRequest.from_record(make_request(rows=rows).to_record())
    assert torch.equal(read.rows, rows.detach())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"round": 0}, r"Round 0 is not in the plan's 1\.\.7"),
        ({"round": 8}, r"Round 8 is not in the plan's 1\.\.7"),
        ({"rows": torch.zeros(4)}, "Rows must be a finite n×D float32 matrix"),
        ({"rows": torch.zeros(0, 2), "row_labels": torch.zeros(0).long()}, "Rows must be"),
        ({"rows": torch.zeros(4, 2, dtype=torch.int64)}, "not \\(4, 2\\) of torch.int64"),
        ({"rows": torch.zeros(4, 2, dtype=torch.float64)}, "Rows must be"),
        ({"rows": torch.full((4, 2), math.nan)}, "Rows must be a finite"),
        ({"rows": torch.full((4, 2), math.inf)}, "Rows must be a finite"),
        ({"rows": torch.full((4, 2), 2.0**21)}, "Rows must be a finite"),
        ({"row_labels": torch.zeros(3).long()}, "Row labels must be 4 integers"),
        ({"row_labels": torch.zeros(4)}, "Row labels must be 4 integers"),
        ({"row_labels": torch.tensor([0, 1, 2, 3])}, "Row labels must be below the 3 classes"),
        ({"row_labels": torch.tensor([0, 1, 2, -1])}, "Row labels must be below the 3 classes"),
        ({"plan": RECORD}, "Per-record clipping needs 4 potentials"),
        ({"plan": RECORD, "potentials": torch.zeros(3)}, "Per-record clipping needs 4 potentials"),
        ({"plan": RECORD, "potentials": torch.full((4,), math.nan)}, "needs 4 potentials"),
        ({"plan": RECORD, "potentials": torch.full((4,), 2.0**41)}, "needs 4 potentials"),
        ({"self_gradient": torch.zeros(3, 2)}, "finite float32 self gradient of the rows' shape"),
        ({"self_gradient": torch.zeros(4, 2).long()}, "finite float32 self gradient"),
        ({"self_gradient": torch.full((4, 2), math.nan)}, "finite float32 self gradient"),
        ({"self_gradient": torch.full((4, 2), 2.0**41)}, "finite float32 self gradient"),
    ],
)
def test_a_request_that_does_not_fit_together_is_refused(
    make_request: Make, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        GradientRequest.from_record(make_request(**changes).to_record())


def test_a_request_without_a_part_is_malformed(make_request: Make) -> None:
    """Without a share, too: silence must not be read as any share."""
    fields, arrays = unpack(make_request().to_record())
    assert fields["share"] == 1
    for name in [*fields, *arrays]:
        less = [{k: v for k, v in part.items() if k != name} for part in (fields, arrays)]
        with pytest.raises(ValueError, match=f"Malformed gradient request: '{name}'"):
            GradientRequest.from_record(pack(*less))


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": None}, {"rounds": [math.inf]}, {"rounds": ["two"]}, {"labels": [[]]},
        {"rounds": []}, {"labels": []}, {"labels": [None, None]}, {"rounds": [1, 2]},
        {"run": None}, {"run": ""}, {"run": "a" * 201}, {"run": "two\nlines"}, {"plan": None},
        {"plan": {}}, {"plan": {"rate": 0.1, "clip": 3}}, {"objective": None}, {"objective": {}},
        {"objective": {"lam": 1.0, "classes": 3, "surprise": 1}}, {"view": 3},
        {"objective": {"lam": "1", "classes": 3}},
        {"objective": {"lam": 1.0, "classes": 3, "m": []}},
        *({"plan": PLAN.to_dict() | change} for change in (
            {"noise_multiplier": 0.0}, {"rate": 0.0}, {"rate": 1.5}, {"delta": 1.0})),
    ],
    ids=str,
)  # fmt: skip
def test_a_request_with_malformed_fields_is_refused(
    make_request: Make, changes: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"."):
        GradientRequest.from_record(with_field(make_request(), **changes))


@pytest.mark.parametrize("share", [0, -1, 2.0, 1.5, True, None, "2", [2], math.inf, 10**400])
def test_a_share_of_the_noise_is_a_number_of_clients(make_request: Make, share: Any) -> None:
    with pytest.raises(ValueError, match=r"share|sigma|Malformed|number"):
        GradientRequest.from_record(with_field(make_request(), share=share))


def test_a_share_that_float32_cannot_hold_is_refused(make_request: Make) -> None:
    GradientRequest.from_record(shared(make_request(), 10**20).to_record())
    with pytest.raises(ValueError, match="the noise multiplier σ must be a number from"):
        GradientRequest.from_record(shared(make_request(), 10**26).to_record())


@pytest.mark.parametrize("name", ["granularity", "bits", "radius"])
@pytest.mark.parametrize(
    "value",
    [0, -1, -0.5, math.nan, math.inf, 1e308, 5e-324, 10**400, True, None, "8", [32], {}, 3.5, 15],
)
def test_a_hostile_fixed_point_is_malformed(make_request: Make, name: str, value: Any) -> None:
    """A granularity of 3.5 or 15 is no power of two, 15 and 3.5 bits are none; a radius may be."""
    stated = GRID.to_dict() | {name: value}
    record = with_field(shared(make_request(), 2), fixed_point=stated)
    if name == "radius" and value in (3.5, 15) and value is not True:
        assert GradientRequest.from_record(record).fixed_point is not None
        return
    with pytest.raises(ValueError, match=r"."):
        GradientRequest.from_record(record)


@pytest.mark.parametrize(
    ("share", "stated"),
    [(1, GRID.to_dict()), (2, None), (2, {}), (2, []), (2, "x"), (2, GRID.to_dict() | {"more": 1})],
)
def test_shared_noise_goes_with_a_fixed_point_and_whole_noise_without(
    make_request: Make, share: int, stated: Any
) -> None:
    with pytest.raises(ValueError, match=r"integers|Malformed"):
        GradientRequest.from_record(with_field(make_request(), share=share, fixed_point=stated))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lam": 0.0}, "strategy.lam must be a positive number, not 0.0"),
        ({"lam": -1.0}, "strategy.lam must be a positive number"),
        ({"lam": math.nan}, "strategy.lam must be a positive number"),
        ({"lam": math.inf}, "strategy.lam must be a positive number"),
        ({"lam": "1"}, "strategy.lam must be a positive number, not '1'"),
        ({"m": -0.1}, "strategy.m must be a number of at least 0, not -0.1"),
        ({"label_weight": -1.0}, "strategy.label_weight must be a number of at least 0, not -1.0"),
        ({"label_weight": math.inf}, "strategy.label_weight must be"),
        ({"label_weight": True}, "strategy.label_weight must be a number"),
        ({"classes": 0}, "The number of classes must be a whole number of at least 1, not 0"),
        ({"classes": 2.5}, "The number of classes must be a whole number of at least 1, not 2.5"),
        ({"solver": "fast"}, 'Unknown solver "fast"'),
        ({"cost": "l2"}, r"cost is mixed or l1, not 'l2'"),
    ],
)
def test_an_impossible_objective_cannot_exist(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Objective(**{"lam": 1.0, "classes": 2, **changes})


def uses(make: Make, *rounds: int, label: int | None = None) -> list[GradientRequest]:
    rows = [torch.full((4, 2), float(number)) for number in rounds]
    return [make(round=t, label=label, rows=x) for t, x in zip(rounds, rows, strict=True)]


def test_several_uses_travel_in_one_message(make_request: Make) -> None:
    plan = PrivacyPlan(0.25, 1.5, 7, BatchClip(0.5), ClassSchedule(3), 1e-5)
    asked = [
        make_request(plan=plan, round=t, label=t % 3, rows=torch.full((4, 2), float(t)))
        for t in (2, 3, 5)
    ]
    read = unpack_requests(pack_requests(asked))
    assert [(r.round, r.label) for r in read] == [(2, 2), (3, 0), (5, 2)]
    for ours, theirs in zip(asked, read, strict=True):
        for name in ("plan", "objective", "view"):
            assert getattr(ours, name) == getattr(theirs, name)
        for name in ("rows", "row_labels", "potentials", "self_gradient"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name))


@pytest.mark.parametrize("rounds", [(2, 2), (3, 2)])
def test_a_use_cannot_be_asked_for_twice_in_one_message(
    make_request: Make, rounds: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="rounds that increase"):
        unpack_requests(pack_requests(uses(make_request, *rounds)))


def test_every_use_of_a_message_is_checked(make_request: Make) -> None:
    with pytest.raises(ValueError, match=r"Round 8 is not in the plan's 1\.\.7"):
        unpack_requests(pack_requests(uses(make_request, 6, 7, 8)))


@pytest.mark.parametrize("name", ["rows", "row_labels", "potentials", "self_gradient"])
def test_every_use_of_a_message_has_every_array(make_request: Make, name: str) -> None:
    fields, arrays = unpack(pack_requests(uses(make_request, 1, 2, 3)))
    for fewer in (arrays[name][:2], torch.tensor(1.0)):
        with pytest.raises(ValueError, match=f"asks for 3 rounds, but its {name} do not"):
            unpack_requests(pack(fields, arrays | {name: fewer}))


@pytest.mark.parametrize(
    "changes",
    [
        {"plan": RECORD, "potentials": torch.zeros(4)},
        {"objective": Objective(lam=0.2, classes=3)},
        {"view": {"name": "pixel", "shape": [2], "other": 1}},
        {"run": "another"},
        {"share": 2, "fixed_point": GRID},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_uses_of_a_message_share_what_is_public(
    make_request: Make, changes: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="share plan, objective, view and run"):
        pack_requests([make_request(round=1), make_request(round=2, **changes)])


def test_a_message_asks_for_something(make_request: Make) -> None:
    with pytest.raises(ValueError, match="at least one round"):
        pack_requests([])
    with pytest.raises(ValueError, match="one round, received one with 2"):
        GradientRequest.from_record(pack_requests(uses(make_request, 1, 2)))


def test_a_total_that_no_clip_made_is_refused_whatever_the_noise(make_request: Make) -> None:
    open_plan = UnprotectedPlan(0.25, 7, "batch", JointSchedule())
    requests = make_request(), shared(make_request(plan=RECORD), 4), make_request(plan=open_plan)
    for request in requests:
        with pytest.raises(PrivacyError, match="only a Clipped is released, received Tensor"):
            request.release(torch.ones(4, 2), Stream(b"noise"))  # type: ignore[arg-type]


def test_replies_round_trip_in_order() -> None:
    gradients = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(unpack_replies(pack_replies(list(gradients))), gradients)
    for other in ({"loss": torch.zeros(1)}, {"gradient": torch.tensor(1.0)}):
        with pytest.raises(ValueError, match="it holds no values"):
            unpack_replies(pack({}, other))


def test_a_reply_holds_one_array_and_no_field() -> None:
    """Pitfall 1: a reply tells nothing of a batch's size."""
    record = pack_replies([torch.zeros(3, 2)])
    assert dict(record.config_records["fields"]) == {"json": '{"protocol": 5}'}
    assert list(record.array_records["arrays"]) == ["gradient"]
    assert len(record) == 2
    assert not record.metric_records


@pytest.mark.parametrize("more", [0, 1, 10**5])
def test_a_message_asks_for_so_many_uses_and_no_more(make_request: Make, more: int) -> None:
    """Each costs some time before any of them can be refused."""
    count = MOST_ROUNDS + more
    record = make_request(plan=replace(make_request().plan, rounds=count)).to_record()
    fields, arrays = unpack(record)
    fields |= {"rounds": [*range(1, count + 1)], "labels": [None] * count}
    many = {name: array.expand(MOST_ROUNDS, *array.shape[1:]) for name, array in arrays.items()}
    if more == 0:
        assert len(unpack_requests(pack(fields, many))) == MOST_ROUNDS
        return
    with pytest.raises(ValueError, match=r"at most 2000 rounds|Malformed message"):
        unpack_requests(pack(fields, many))


def test_more_classes_than_an_integer_can_hold_are_compared_all_the_same(
    make_request: Make,
) -> None:
    objective = replace(make_request().objective, classes=10**30)
    request = GradientRequest.from_record(make_request(objective=objective).to_record())
    assert request.objective.classes == 10**30


def test_a_plan_of_critics_is_no_plan_of_a_transport_gradient(make_request: Make) -> None:
    plan = PrivacyPlan(1.0, 1.5, 7, CriticClip(1.0), JointSchedule(), 1e-5)
    with pytest.raises(
        ValueError, match="the critic clip samples no records: choose the record or"
    ):
        make_request(plan=plan).check()


# The ground cost of the transport problem, in public terms

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
Y = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))


def test_the_cost_is_that_of_its_name() -> None:
    difference = X[:, None] - Y[None]
    squared, absolute = difference.square().sum(-1), difference.abs().sum(-1)
    for options, expected in (
        ({}, squared),
        ({"m": 3.0}, squared + 3.0 * absolute),
        ({"cost": "l1", "m": 3.0}, absolute),
    ):
        objective = Objective(1.0, 3, **options)
        torch.testing.assert_close(objective.ground_cost(X, Y), expected)
        assert objective.is_quadratic == (not options)
        assert Objective(**asdict(objective)) == objective


def test_a_label_mismatch_adds_two_alpha_to_the_absolute_cost() -> None:
    cost = Objective(1.0, 2, cost="l1").ground_cost
    labels = torch.tensor([0, 0, 1, 1])
    labelled = append_labels(X, labels, 2, 15.0)
    more = cost(labelled, labelled) - cost(X, X)
    torch.testing.assert_close(more, 30.0 * (labels[:, None] != labels[None]).float())


@pytest.mark.parametrize(
    ("name", "values"),
    [("lam", (2.0**-41, 2.0**41)), ("m", (2.0**21,)), ("label_weight", (2.0**21,))],
)
def test_no_problem_lives_at_the_edge_of_the_floats(name: str, values: tuple[float, ...]) -> None:
    for value in values:
        with pytest.raises(PrivacyError, match="far from the limits of floats"):
            Objective(**{"lam": 1.0, "classes": 3, name: value})


def test_the_diameter_is_the_largest_distance_in_a_ball() -> None:
    objective, ends = Objective(1.0, 2), torch.tensor([[-4.0, 0.0], [4.0, 0.0]])
    assert objective.diameter(4.0, labels=False) == 8.0
    labelled = append_labels(ends, torch.tensor([0, 1]), 2, objective.label_weight)
    distance = float((labelled[0] - labelled[1]).norm())
    assert objective.diameter(4.0, labels=True) == pytest.approx(distance)
