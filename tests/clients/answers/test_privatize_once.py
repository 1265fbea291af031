from __future__ import annotations

from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from scipy import stats

from fedsink.clients.answers.privatize_once import local_charge, privatize
from fedsink.clients.records.shard import Shard
from fedsink.data.maps import PointBall
from fedsink.privacy import Stream
from fedsink.protocol.privatize_once import LocalPlan

from ...support.streams import Streams, keyed


def shard_of(n: int) -> Shard:
    random = torch.Generator().manual_seed(1)
    labels = torch.arange(n) * 4 // max(1, n)  # stored class by class
    return Shard(torch.randn(n, 2, generator=random), labels)


def plan_of(mechanism: str = "laplace", epsilon: float = 3.0, **more: Any) -> LocalPlan:
    norm: Any = "l1" if mechanism == "laplace" else "l2"
    delta = 0.0 if mechanism == "laplace" else 1e-5
    return LocalPlan(mechanism, PointBall(norm), epsilon, delta, **more)


def in_stored_order(values: torch.Tensor, streams: Streams) -> torch.Tensor:
    order = streams("order").permutation(len(values))
    stored = torch.empty_like(values)
    stored[order] = values
    return stored


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_values_are_the_mapped_records_plus_noise_of_the_plans_scale(mechanism: str) -> None:
    """Power: two thirds and three halves of the scale are both rejected."""
    plan, shard = plan_of(mechanism), shard_of(4000)
    values, labels = privatize(shard, plan, keyed(b"k"))
    assert (values.dtype, labels.dtype) == (torch.float32, torch.int64)
    noise = (in_stored_order(values, keyed(b"k")) - plan.map(shard.images)).flatten().numpy()
    law = {"laplace": "laplace", "gaussian": "norm"}[mechanism]

    def pvalue(factor: float) -> float:
        args = (0.0, plan.image_mechanism.scale * factor)
        return float(stats.kstest(noise, law, args=args).pvalue)

    assert pvalue(1.0) > 1e-3
    assert pvalue(2 / 3) < 1e-9
    assert pvalue(3 / 2) < 1e-9


def test_labels_are_randomized_with_the_plans_epsilon() -> None:
    plan, shard = plan_of(label_epsilon=1.0, classes=4), shard_of(4000)
    _, labels = privatize(shard, plan, keyed(b"k"))
    kept = int((in_stored_order(labels, keyed(b"k")) == shard.labels).sum())
    keep = np.exp(1.0) / (np.exp(1.0) + 3)
    assert stats.binomtest(kept, 4000, keep).pvalue > 1e-3
    for epsilon in (2 / 3, 3 / 2):
        other = np.exp(epsilon) / (np.exp(epsilon) + 3)
        assert stats.binomtest(kept, 4000, other).pvalue < 1e-6


def test_no_label_leaves_without_a_label_epsilon() -> None:
    _, labels = privatize(shard_of(50), plan_of(), keyed(b"k"))
    assert not bool(labels.any())


def test_image_noise_and_label_noise_are_drawn_apart() -> None:
    with_labels, _ = privatize(shard_of(50), plan_of(label_epsilon=1.0, classes=4), keyed(b"k"))
    without, _ = privatize(shard_of(50), plan_of(), keyed(b"k"))
    assert torch.equal(with_labels, without)
    purposes: list[str] = []

    def stream(purpose: str) -> Stream:
        purposes.append(purpose)
        return keyed(b"k")(purpose)

    privatize(shard_of(50), plan_of(label_epsilon=1.0, classes=4), stream)
    assert sorted(purposes) == ["image", "label", "order"]


def test_the_same_stream_gives_the_same_bytes() -> None:
    """Pitfall 9: privatized once means the same bytes again, or a refusal."""
    plan = plan_of(label_epsilon=1.0, classes=4)
    one, again = (privatize(shard_of(30), plan, keyed(b"k")) for _ in range(2))
    assert torch.equal(one[0], again[0])
    assert torch.equal(one[1], again[1])
    assert not torch.equal(one[0], privatize(shard_of(30), plan, keyed(b"other"))[0])


def test_the_order_of_the_upload_is_independent_of_the_order_of_the_records() -> None:
    """Pitfall 18: records are stored class by class."""
    plan = plan_of(epsilon=1e6, label_epsilon=20.0, classes=4)  # labels arrive as they are
    shard, first = shard_of(40), []
    for i in range(300):
        labels = privatize(shard, plan, keyed(b"%d" % i))[1]
        assert labels.bincount().tolist() == [10] * 4
        first.append(int(labels[0]))
    counts = np.bincount(first, minlength=4)
    assert stats.chisquare(counts).pvalue > 1e-3
    assert stats.chisquare([300, 0, 0, 0]).pvalue < 1e-9  # stored order would be caught


def test_image_and_label_of_a_record_travel_together() -> None:
    plan = plan_of(epsilon=1e6, label_epsilon=20.0, classes=4)
    shard = shard_of(40)
    values, labels = privatize(shard, plan, keyed(b"k"))
    for value, label in zip(values, labels, strict=True):
        nearest = (plan.map(shard.images) - value).norm(dim=1).argmin()
        assert int(shard.labels[nearest]) == int(label)


def test_hostile_records_are_released_as_finite_values() -> None:
    """Pitfall 4: values that are not finite become zero before the noise."""
    images = torch.tensor([[float("nan"), 1.0], [float("inf"), 0.0], [3e38, -3e38]])
    values, _ = privatize(Shard(images, torch.zeros(3).long()), plan_of(), keyed(b"k"))
    assert bool(values.isfinite().all())


def test_a_shard_without_records_uploads_none() -> None:
    values, labels = privatize(shard_of(0), plan_of(), keyed(b"k"))
    assert values.shape == (0, 2)
    assert labels.shape == (0,)


@pytest.mark.parametrize("label_epsilon", [None, 1.0])
def test_a_local_charge_holds_image_and_label(label_epsilon: float | None) -> None:
    label = {} if label_epsilon is None else {"label_epsilon": label_epsilon, "classes": 3}
    plan = LocalPlan("gaussian", PointBall("l2", 1.0, 4), 3.0, 1e-6, **label)
    charge = local_charge(plan)
    assert charge.adjacency == "replace-one"
    assert (charge.rounds, charge.uses, charge.delta) == (1, 1, 1e-6)
    assert charge.epsilon() == 3.0 + (label_epsilon or 0.0)
    parts = getattr(charge.event, "events", [charge.event])
    kinds = [dp_accounting.GaussianDpEvent, dp_accounting.RandomizedResponseDpEvent]
    assert [type(part) for part in parts] == kinds[: 1 if label_epsilon is None else 2]
