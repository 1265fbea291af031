"""Contract of `UnprotectedPlan`: a test for every sentence of its guarantees."""

from __future__ import annotations

import json
import math

import pytest
import torch

from fedsink.errors import PrivacyError
from fedsink.privacy import (
    BatchClip,
    ClassSchedule,
    JointSchedule,
    PrivacyPlan,
    RecordClip,
    Stream,
    UnprotectedPlan,
    plan_from_dict,
)
from fedsink.privacy.clips import shrunk

from ..support.oracles import clipped_record_field

PLAN = UnprotectedPlan(0.2, 30, "record", ClassSchedule(10), 40, 150)
BATCH = UnprotectedPlan(0.2, 30, "batch", JointSchedule())


def test_what_is_released_is_what_was_computed_without_noise() -> None:
    totals = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    released = PLAN.release(totals, Stream(b"k", "noise"))
    assert released.dtype == torch.float32
    assert torch.equal(released, totals.float())
    streams = [Stream(b"k", "noise", k) for k in range(3)]
    assert torch.equal(PLAN.release_each(totals, streams), totals.float())
    assert PLAN.noise_std == 0.0


def test_nothing_is_clipped_however_long() -> None:
    gradient = 1e6 * torch.ones(50, 784)
    assert torch.equal(BATCH.clip.apply(gradient), gradient)
    assert isinstance(PLAN.clip, RecordClip)
    assert isinstance(BATCH.clip, BatchClip)
    vectors = torch.tensor([[0.0], [1.0], [1e9]], dtype=torch.float64)
    assert torch.equal(shrunk(vectors, PLAN.clip.bound), vectors)


def test_the_unclipped_record_field_is_the_plain_sum() -> None:
    random = torch.Generator().manual_seed(1)
    x, y = torch.randn(6, 30, generator=random), 20 * torch.randn(9, 30, generator=random)
    f, lam = torch.randn(6, generator=random), 5.0
    x64, y64 = x.double(), y.double()
    weights = torch.softmax((f.double()[:, None] - torch.cdist(x64, y64) ** 2) / lam, 0)
    expected = weights.sum(1, keepdim=True) * x64 - weights @ y64
    field = clipped_record_field(x, y, f, lam, PLAN.clip.bound)
    torch.testing.assert_close(field, expected)
    clipped = clipped_record_field(x, y, f, lam, 8.0)
    assert float((clipped - expected).norm()) > 1.0  # the bound of a recipe does clip here


def test_epsilon_is_infinite_from_the_first_round_on() -> None:
    assert PLAN.epsilon() == PLAN.epsilon("rdp") == math.inf
    assert [PLAN.epsilon_after(t) for t in (0, 1, 30)] == [0.0, math.inf, math.inf]


def test_it_is_never_taken_for_a_plan_that_protects_nor_one_for_it() -> None:
    for plan in (PLAN, BATCH):
        written = json.loads(json.dumps(plan.to_dict()))
        assert plan_from_dict(written) == plan
        with pytest.raises(PrivacyError, match="missing or unknown"):
            PrivacyPlan.from_dict(written)
        assert not isinstance(plan, PrivacyPlan)
    protecting = PrivacyPlan(0.2, 1.0, 30, RecordClip(1.0), ClassSchedule(10), 1e-5)
    assert plan_from_dict(protecting.to_dict()) == protecting
    with pytest.raises(PrivacyError):
        plan_from_dict({**protecting.to_dict(), "noise_multiplier": 0.0})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rate": 0.0}, "rate must lie in"),
        ({"rounds": 0}, "rounds must be an integer"),
        ({"kind": "gradient"}, "kind is record or batch or critic or row, received 'gradient'"),
        ({"kind": "row"}, "clip=row has only rate=1, received rate=0.2"),
        ({"capacity": 0}, "capacity must be an integer"),
        ({"schedule": {"name": "other", "classes": 3}}, "missing or unknown"),
        ({"schedule": 3}, "missing or unknown"),
    ],
)
def test_values_out_of_range_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        plan_from_dict({**PLAN.to_dict(), **change})


def test_uses_follow_the_schedule() -> None:
    assert (PLAN.uses, BATCH.uses) == (3, 30)
