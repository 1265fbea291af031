"""Members of a batch of fixed capacity: exactly the plan's Poisson sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fedsink.clients.answers.dp_sinkhorn import client_total
from fedsink.clients.records.pool import Pool, Sample
from fedsink.clients.records.shard import Shard
from fedsink.privacy import Stream
from fedsink.protocol.dp_sinkhorn import GradientRequest

Make = Callable[..., GradientRequest]

ONE = [torch.zeros(1, dtype=torch.int64)]  # the pool's one client


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
        size = int(pool.draw_at_most(requests, ONE, streams).present.sum())
    else:
        size = len(pool.draw(requests, ONE, streams).indices)
    error = math.sqrt(rate * (1 - rate) * candidates)
    assert abs(size - rate * candidates) < 5 * error
    assert (1 - 1 / 1.2) * rate * candidates > 10 * error


def test_a_bucket_is_less_than_a_fifth_empty() -> None:
    """Above 64 places; below, widths are powers of two from 16."""
    for size in (*range(1, 700), 4096, 4097, 100_000):
        sample = Sample(torch.arange(size), torch.zeros(size, dtype=torch.int64), 1)
        [layout] = sample.in_buckets()
        width = layout.present.shape[1]
        assert int(layout.present.sum()) == size
        power = max(16, 2 ** math.ceil(math.log2(size)))
        assert width == power if size <= 64 else width - size < width / 5


@pytest.mark.medium
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
