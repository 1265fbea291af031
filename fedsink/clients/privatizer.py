"""Local mode, client side: records are privatized once, then only copied."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedsink.clients.shard import Shard
from fedsink.privacy import Stream
from fedsink.protocol import LocalPlan


def privatize(
    shard: Shard, plan: LocalPlan, stream: Callable[[str], Stream]
) -> tuple[Tensor, Tensor]:
    """Y = f(x) + noise and ỹ = RR(label) for every record, in a random order.

    Returns:
        Values (N, D) float32 and labels (N,) int64 (zeros where no label leaves).

    Guarantees:
        Each record is released once, with (ε_x + ε_l, δ) local differential privacy.
        The same stream gives the same bytes: asking again reveals nothing new.
        The order of the upload is independent of the order of the records.
    """
    with torch.no_grad():
        mapped = plan.map(shard.images)
    values = plan.image_mechanism.privatize(mapped, stream("image")).to(torch.float32)
    if plan.label_mechanism is None:
        labels = torch.zeros(len(shard), dtype=torch.int64)
    else:
        labels = plan.label_mechanism.privatize(shard.labels, stream("label"))
    order = stream("order").permutation(len(shard))
    return values[order], labels[order]
