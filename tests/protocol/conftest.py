from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedsink.privacy import BatchClip, JointSchedule, PrivacyPlan
from fedsink.protocol.dp_sinkhorn import GradientRequest, Objective


@pytest.fixture
def make_request() -> Callable[..., GradientRequest]:
    """A valid request for four rows of two coordinates; keywords replace its fields."""

    def make(**changes: Any) -> GradientRequest:
        fields: dict[str, Any] = {
            "round": 2,
            "label": None,
            "plan": PrivacyPlan(0.25, 1.5, 7, BatchClip(0.5), JointSchedule(), 1e-5),
            "objective": Objective(lam=0.1, classes=3, m=0.3, label_weight=2.0),
            "view": {"name": "pixel", "shape": [2]},
            "rows": torch.arange(8.0).reshape(4, 2),
            "row_labels": torch.tensor([0, 0, 1, 2]),
            "self_gradient": torch.ones(4, 2),
        }
        return GradientRequest(**{**fields, **changes})

    return make
