"""Who is in a batch of fixed capacity: the plan's Poisson sample, and nobody else."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fedsink.clients.dp_sinkhorn import client_total
from fedsink.clients.pool import Pool
from fedsink.clients.shard import Shard
from fedsink.models.critics import CriticTraining
from fedsink.privacy import CriticClip, JointSchedule, PrivacyPlan, Stream
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.gs_wgan import CriticRequest, Critics

Make = Callable[..., GradientRequest]


@pytest.mark.parametrize("schedule", ["joint", "class"])
@pytest.mark.parametrize("rate", [0.2, 0.5])
@pytest.mark.parametrize("fixed", [True, False])
def test_every_record_of_the_class_is_sampled_with_the_plans_rate(
    make_request: Make, schedule: str, rate: float, fixed: bool
) -> None:
    """Pitfall 3; 1.2 times the rate would be noticed with five standard deviations to spare."""
    label = 1 if schedule == "class" else None
    request, n = make_request(clip="record", schedule=schedule, rate=rate, label=label), 45_000
    shard = Shard(torch.zeros(n, 4), torch.arange(n) % 3)
    candidates = n if label is None else n // 3
    plan = replace(request.plan, capacity=n if fixed else None, nominal_records=n)
    requests, streams, pool = [replace(request, plan=plan)], [Stream(b"k", "sample")], Pool([shard])
    if fixed:
        size = int(pool.draw_at_most(requests, slice(0, 1), streams).present.sum())
    else:
        size = len(pool.draw(requests, slice(0, 1), streams).chosen)
    error = math.sqrt(rate * (1 - rate) * candidates)
    assert abs(size - rate * candidates) < 5 * error
    assert (1 - 1 / 1.2) * rate * candidates > 10 * error


def test_the_release_holds_the_sampled_records_and_no_others(make_request: Make) -> None:
    """Records far along one axis contribute Δ each: the total counts them."""
    n, rate = 9000, 0.2
    far = torch.zeros(n, 4)
    far[:, 0] = 50.0
    one = {"rows": torch.zeros(1, 4), "row_labels": torch.zeros(1, dtype=torch.int64)}
    request = make_request(clip="record", rate=rate, **one)
    plan = replace(request.plan, capacity=n, nominal_records=n)
    shard = Shard(far, torch.zeros(n, dtype=torch.int64))
    total = client_total(replace(request, plan=plan), shard, Stream(b"k", "sample"))
    size = -float(total[0, 0]) / plan.clip.bound
    assert abs(size - rate * n) < 5 * math.sqrt(rate * (1 - rate) * n)


def test_records_are_dealt_anew_for_another_unit_view_or_number_of_critics() -> None:
    """What was dealt for one request is kept, and is good for those that are dealt alike alone."""
    random = torch.Generator().manual_seed(0)
    n, shape = 24, (1, 4, 4)
    shard = Shard(
        torch.rand(n, *shape, generator=random), torch.arange(n) % 3, torch.arange(n) // 4,
        torch.arange(n) + 5,
    )  # fmt: skip
    views = {
        "pixel": {"name": "pixel", "shape": list(shape)},
        "dct": {"name": "dct", "shape": list(shape), "radius": 2.0},
        "narrow": {"name": "dct", "shape": list(shape), "radius": 1.5},
    }
    pool, alone = Pool([shard]), {}

    def asked(unit: str, view: str, critics: int, classes: int) -> CriticRequest:
        plan = PrivacyPlan(1.0, 1.0, 5, CriticClip(0.5, 8), JointSchedule(), 1e-5, unit)
        rows, labels = torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64)
        described = Critics(CriticTraining(critics), classes)
        return CriticRequest(1, plan, described, views[view], rows, labels, rows, labels)

    usual = ("add-remove", "pixel", 4, 3)
    others = [
        ("user", "pixel", 4, 3), ("add-remove", "dct", 4, 3), ("add-remove", "pixel", 6, 3),
        ("add-remove", "pixel", 4, 1), ("add-remove", "narrow", 4, 3),
    ]  # fmt: skip
    for one in (usual, *others):
        alone[one] = Pool([shard]).parts(asked(*one), slice(0, 1))
    for one in (usual, *(each for other in others for each in (other, usual, other))):
        parts = pool.parts(asked(*one), slice(0, 1))
        for name in ("records", "labels", "starts", "sizes", "holds"):
            assert torch.equal(getattr(parts, name), getattr(alone[one], name))
    by_user = alone["user", "pixel", 4, 3]
    users = by_user.starts.repeat_interleave(by_user.sizes)
    flat = 2.0 * shard.images.flatten(1) - 1.0
    owner = {int((flat == record).all(1).nonzero()): int(start)
             for record, start in zip(by_user.records[:-1], users, strict=True)}  # fmt: skip
    assert len({(int(shard.users[i]), start) for i, start in owner.items()}) == 6
    assert len({owner[i] for i in range(n)}) == 4
