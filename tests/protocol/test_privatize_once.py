from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from fedsink.data.maps import PixelRange, PointBall
from fedsink.errors import PrivacyError
from fedsink.privacy import Gaussian, Laplace, RandomizedResponse
from fedsink.privacy.domain import NOISE_MULTIPLIER
from fedsink.protocol.packing import pack, unpack
from fedsink.protocol.privatize_once import LocalPlan, PrivatizeReply, PrivatizeRequest

LAPLACE = LocalPlan("laplace", PointBall("l1", 1.0), 3.0)
GAUSSIAN = LocalPlan("gaussian", PointBall("l2", 1.0), 3.0, 1e-5)
LABELLED = LocalPlan("laplace", PointBall("l1", 1.0), 3.0, 0.0, 1.5, 4)
PLANS = [LAPLACE, GAUSSIAN, LABELLED, LocalPlan("laplace", PixelRange((1, 2, 3)), 9.0)]


def test_laplace_noise_has_the_scale_of_the_maps_diameter() -> None:
    """Pitfall 2: the sensitivity is asked from the map that is applied."""
    mechanism = LAPLACE.image_mechanism
    assert isinstance(mechanism, Laplace)
    assert mechanism.diameter == LAPLACE.map.sensitivity
    assert mechanism.scale == pytest.approx(2 * math.sqrt(2) / 3.0, rel=1e-5)
    assert mechanism.epsilon == 3.0


def test_gaussian_noise_is_calibrated_to_the_maps_diameter() -> None:
    """Pitfall 2: the sensitivity is that of the clip that is applied."""
    mechanism = GAUSSIAN.image_mechanism
    assert isinstance(mechanism, Gaussian)
    assert mechanism.diameter == GAUSSIAN.map.sensitivity
    assert (mechanism.epsilon, mechanism.delta) == (3.0, 1e-5)


def test_no_label_leaves_unless_it_has_an_epsilon() -> None:
    assert LAPLACE.label_mechanism is None
    assert LABELLED.label_mechanism == RandomizedResponse(4, 1.5)


def test_total_epsilon_is_the_sum_of_image_and_label() -> None:
    assert LABELLED.total_epsilon == pytest.approx(4.5)
    assert LAPLACE.total_epsilon == pytest.approx(3.0)
    assert LABELLED.product.epsilon == pytest.approx(4.5)
    with pytest.raises(PrivacyError, match="releases no label: it has no product mechanism"):
        _ = LAPLACE.product


def test_the_matched_cost_is_the_image_mechanisms() -> None:
    """Theorem 1: L1 with λ = σ, and squared L2 with λ = 2σ²."""
    assert LAPLACE.matched_cost.cost == "l1"
    assert LAPLACE.matched_cost.lam == LAPLACE.image_mechanism.scale
    assert GAUSSIAN.matched_cost.cost == "squared_l2"
    assert GAUSSIAN.matched_cost.lam == pytest.approx(2 * GAUSSIAN.image_mechanism.scale**2)


@pytest.mark.parametrize(
    ("mechanism", "norm", "needs", "bounds"),
    [("laplace", "l2", "L1", "L2"), ("gaussian", "l1", "L2", "L1")],
)
def test_a_map_that_bounds_the_wrong_norm_is_refused(
    mechanism: str, norm: Any, needs: str, bounds: str
) -> None:
    message = f"The {mechanism} mechanism needs a map with an {needs} sensitivity, and PointBall "
    with pytest.raises(PrivacyError, match=f"{message}bounds the {bounds} norm"):
        LocalPlan(mechanism, PointBall(norm), 1.0, 1e-5)


def test_a_plan_with_more_noise_than_a_release_can_prove_is_refused() -> None:
    limit = NOISE_MULTIPLIER.high
    LocalPlan("laplace", PointBall("l1"), 1.0 / (limit * (1 - 1e-5)))
    with pytest.raises(PrivacyError, match="the noise multiplier σ must be a number from"):
        LocalPlan("laplace", PointBall("l1"), 1.0 / (limit * (1 + 1e-5)))


def test_an_unknown_mechanism_is_refused() -> None:
    with pytest.raises(PrivacyError, match=r"mechanisms \['gaussian', 'laplace'\], not 'cauchy'"):
        LocalPlan("cauchy", PointBall(), 1.0)


@pytest.mark.parametrize(
    ("plan", "changes"),
    [
        (LAPLACE, {"epsilon": 0.0}),
        (LAPLACE, {"epsilon": math.nan}),
        (GAUSSIAN, {"delta": 0.0}),
        (LABELLED, {"label_epsilon": -1.0}),
        (LABELLED, {"classes": 1}),
    ],
)
def test_a_plan_that_cannot_be_carried_out_cannot_exist(
    plan: LocalPlan, changes: dict[str, Any]
) -> None:
    """A client claims the plan's place in its ledger before it carries it out."""
    with pytest.raises(PrivacyError):
        LocalPlan.from_dict(plan.to_dict() | changes)


@pytest.mark.parametrize("delta", [-1e-5, 1e-9, math.nan, True, "0", None])
def test_laplace_noise_has_no_delta(delta: Any) -> None:
    """δ is charged: a negative δ would pay for other charges."""
    with pytest.raises(PrivacyError, match="The laplace mechanism has δ = 0, received"):
        LocalPlan.from_dict(LAPLACE.to_dict() | {"delta": delta})


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_plan_survives_json(plan: LocalPlan) -> None:
    assert LocalPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_request_round_trips(plan: LocalPlan) -> None:
    request = PrivatizeRequest(plan, 3, 128, "ward 7")
    assert PrivatizeRequest.from_record(request.to_record()) == request


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chunk": -1}, "No chunk -1 of size 5"),
        ({"chunk_size": 0}, "No chunk 0 of size 0"),
        ({"chunk": math.inf}, "Malformed privatize request"),
        ({"chunk": None}, "Malformed privatize request"),
        ({"plan": None}, "Malformed privatize request"),
        ({"run": ""}, "A run's name must be 1 to 200 printable characters, not ''"),
        ({"run": "a" * 201}, "A run's name must be 1 to 200 printable"),
        ({"run": "a\x00b"}, "A run's name must be 1 to 200 printable"),
        ({"run": 7}, "A run's name must be 1 to 200 printable characters, not '7'"),
        ({"plan": {"mechanism": "laplace"}}, "Malformed privatize request: 'map'"),
        *(
            (
                {"plan": {**LAPLACE.to_dict(), "map": value}},
                f"a map is described by a name and options, not by a {type(value).__name__}",
            )
            for value in (None, 3, 0.5, "point_ball", ["point_ball"], [["name", "point_ball"]])
        ),
    ],
)
def test_a_malformed_request_is_refused(changes: dict[str, Any], message: str) -> None:
    fields, _ = unpack(PrivatizeRequest(LAPLACE, 0, 5).to_record())
    with pytest.raises(ValueError, match=message):
        PrivatizeRequest.from_record(pack(fields | changes, {}))


def test_a_reply_round_trips() -> None:
    reply = PrivatizeReply(torch.arange(6.0).reshape(3, 2), torch.tensor([2, 0, 1]), 4)
    read = PrivatizeReply.from_record(reply.to_record())
    assert torch.equal(read.values, reply.values)
    assert torch.equal(read.labels, reply.labels)
    assert read.chunks == 4


def test_a_reply_holds_values_labels_and_the_number_of_chunks() -> None:
    """Pitfall 1: a reply tells nothing of a batch's size."""
    record = PrivatizeReply(torch.zeros(3, 2), torch.zeros(3).long(), 4).to_record()
    fields, arrays = unpack(record)
    assert fields == {"chunks": 4}
    assert sorted(arrays) == ["labels", "values"]


@pytest.mark.parametrize(
    "message", [PrivatizeRequest(LAPLACE, 0, 5), PrivatizeReply(torch.zeros(2), torch.zeros(2), 1)]
)
def test_a_message_that_lacks_a_part_is_malformed(message: Any) -> None:
    fields, arrays = unpack(message.to_record())
    for name in [*fields, *arrays]:
        less = [{k: v for k, v in part.items() if k != name} for part in (fields, arrays)]
        with pytest.raises(ValueError, match=f"Malformed {message.kind}: '{name}'"):
            type(message).from_record(pack(*less))
