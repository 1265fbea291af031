from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from fedsink.clients.node_settings import NodeSettings
from fedsink.flower_internals import become
from fedsink.privacy import Stream
from fedsink.protocol.dp_sinkhorn import GradientRequest, Objective

from ..support import streams
from ..support.policies import limits, policy
from ..support.requests import gradient_request, plan_of
from ..support.tiny import CLASSES, points, tiny_clients, with_secret_key


@pytest.fixture(autouse=True)
def _tiny_points(install_source: Callable[..., None]) -> None:
    install_source(points)
    become(1, 1)


@pytest.fixture
def settings() -> NodeSettings:
    """Three clients with reproducible noise."""
    return tiny_clients()


@pytest.fixture
def secret(settings: NodeSettings, tmp_path: Path) -> NodeSettings:
    """Returns these clients with a secret key and a ledger."""
    return with_secret_key(settings, tmp_path)


@pytest.fixture
def policy_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes the policy of a node that holds all of the tiny data; see `policy`."""

    def write(
        *, epsilon: float = 1e6, budget: Mapping[str, Any] | None = None, **options: Any
    ) -> Path:
        path = tmp_path / "node" / "policy.toml"
        path.parent.mkdir(exist_ok=True)
        usual = {"add-remove": limits(epsilon), "replace-one": limits(epsilon, 0.0)}
        path.write_text(policy(budget=budget or usual, **options))
        return path

    return write


@pytest.fixture
def make_request() -> Callable[..., GradientRequest]:
    """A request for six rows of the tiny data: keywords are of the request, plan or objective."""

    def make(
        *, clip: str = "batch", schedule: str = "joint", rate: float = 1.0, sigma: float = 1.0,
        bound: float = 0.5, rows: Tensor | int = 6, row_labels: Tensor | None = None,
        round: int = 1, label: int | None = None, **objective: Any,
    ) -> GradientRequest:  # fmt: skip
        return gradient_request(
            plan_of(clip, schedule, bound, rate=rate, noise_multiplier=sigma),
            Objective(**{"lam": 0.5, "classes": CLASSES, **objective}),
            round=round,
            label=label,
            rows=rows,
            row_labels=row_labels,
        )

    return make


@pytest.fixture
def silent() -> Callable[[str], Stream]:
    """Streams under which a release holds no noise."""
    return streams.silent
