"""Keys whose noise is less than it should be, and plans of ε ≤ 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from fedsink.privacy import JointSchedule, PrivacyPlan, ReproducibleKey, Stream
from fedsink.privacy.clips import CLIPS


class _Weakened(Stream):
    """Adds `factor` times the noise it is asked for."""

    factor: float

    def add_gaussian(self, values: Tensor, std: float) -> Tensor:
        return super().add_gaussian(values, self.factor * std)

    def integers(self, size: int, scale: float) -> Tensor:
        return (self.factor * super().integers(size, scale)).round().to(torch.int64)

    def add_laplace(self, values: Tensor, scale: float) -> Tensor:
        return super().add_laplace(values, self.factor * scale)


@dataclass(frozen=True)
class WeakKey:
    """Noise times `factor`, in one round only or in all of them."""

    factor: float
    only_round: int | None = None
    kind: str = "reproducible"
    repeatable: bool = True

    def stream(self, purpose: str, *, client: int, round: int, request: bytes = b"") -> Stream:
        stream = _Weakened(b"weak", purpose, client, round)
        stream.factor = self.factor if self.only_round in (None, round) else 1.0
        return stream


@dataclass(frozen=True)
class RoundlessKey(ReproducibleKey):
    """Forgets in which round it is: every round gets the same noise."""

    def stream(self, purpose: str, *, client: int, round: int, request: bytes = b"") -> Stream:
        return super().stream(purpose, client=client, round=1, request=request)


@pytest.fixture
def plan() -> Callable[..., PrivacyPlan]:
    """A plan of ε ≤ 1."""

    def solve(clip: str = "record", **change: Any) -> PrivacyPlan:
        options = {"rate": 1.0, "eps": 1.0, "rounds": 2, "delta": 1e-5, **change}
        return PrivacyPlan.solve(clip=CLIPS[clip](1.0), schedule=JointSchedule(), **options)

    return solve
