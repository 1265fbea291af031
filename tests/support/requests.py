"""Requests for a client's gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from flwr.app import RecordDict
from torch import Tensor

from fedsink.privacy import BatchClip, ClassSchedule, JointSchedule, PrivacyPlan, RecordClip
from fedsink.privacy.integer_gaussian import FixedPoint
from fedsink.protocol.dp_sinkhorn import GradientRequest, Objective, packed_requests
from fedsink.protocol.requests import UNNAMED, CentralRequest

from .tiny import CLASSES, SIZE

GRID = FixedPoint(granularity=2.0**-20, bits=40, radius=2.0**10)
"""Of requests whose noise is shared: wide, and fine enough not to matter."""

R = TypeVar("R", bound=CentralRequest)


def shared(request: R, clients: int) -> R:
    """Returns a request that spreads its noise over so many clients; 1: over none."""
    grid = None if clients == 1 else GRID
    return replace(request, share=clients, fixed_point=grid)  # type: ignore[type-var]


def plan_of(
    clip: str = "batch", schedule: str = "joint", bound: float = 0.5, **fields: Any
) -> PrivacyPlan:
    """Fifty rounds at rate 1 with noise multiplier 1; `fields` replace those of the plan."""
    values: dict[str, Any] = {
        "rate": 1.0,
        "noise_multiplier": 1.0,
        "rounds": 50,
        "clip": BatchClip(bound) if clip == "batch" else RecordClip(bound),
        "schedule": JointSchedule() if schedule == "joint" else ClassSchedule(CLASSES),
        "delta": 1e-5,
    }
    return PrivacyPlan(**values | fields)


def gradient_request(
    plan: PrivacyPlan,
    objective: Objective,
    *,
    round: int = 1,  # also the seed of all draws
    label: int | None = None,  # of the records, and of the rows unless `row_labels` are given
    rows: int | Tensor = 6,  # number to draw, or the rows themselves
    row_labels: Tensor | None = None,  # None: they take turns
    shape: Sequence[int] = (SIZE,),  # of a record, where rows are drawn
    run: str = UNNAMED,
) -> GradientRequest:
    """Returns a request for one round of a plan, equal for equal arguments."""
    random = torch.Generator().manual_seed(round)
    if isinstance(rows, int):
        rows = torch.randn(rows, math.prod(shape), generator=random)
    else:
        shape = rows.shape[1:]
    if row_labels is None:
        turns = torch.arange(len(rows)) % CLASSES
        row_labels = turns if label is None else torch.full((len(rows),), label)
    return GradientRequest(
        round=round,
        label=label,
        plan=plan,
        objective=objective,
        view={"name": "pixel", "shape": list(shape)},
        rows=rows,
        row_labels=row_labels,
        potentials=torch.randn(len(rows), generator=random) / 10,
        self_gradient=torch.randn(rows.shape, generator=random) / 10,
        run=run,
    )


def pack_requests(requests: Sequence[GradientRequest]) -> RecordDict:
    """One message that asks for these uses."""
    return packed_requests(requests).record()
