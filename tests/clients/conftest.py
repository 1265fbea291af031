from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedsink.clients.settings import NodeSettings
from fedsink.data.partition import Iid
from fedsink.data.spec import DataSpec
from fedsink.privacy import (
    BatchClip,
    ClassSchedule,
    JointSchedule,
    PrivacyPlan,
    RecordClip,
    SecretKey,
    Stream,
)
from fedsink.protocol import GradientRequest, Objective
from fedsink.simulation.identity import become

SIZE = 4
CLASSES = 3
RECORDS = 61


def _tiny(spec: DataSpec, split: str) -> tuple[Tensor, Tensor]:
    """61 points of three classes, stored class by class."""
    random = torch.Generator().manual_seed(5)
    labels = (torch.arange(RECORDS) * CLASSES // RECORDS).to(torch.int64)
    return torch.randn(RECORDS, SIZE, generator=random) / 4 + labels.unsqueeze(1), labels


@pytest.fixture(autouse=True)
def _tiny_data(install_source: Callable[..., None]) -> None:
    install_source(_tiny)
    become(1, 1)


@pytest.fixture
def settings() -> NodeSettings:
    """Three clients with reproducible noise."""
    spec = DataSpec("tiny", (SIZE,), tuple("abc"), RECORDS)
    return NodeSettings(spec, Iid(), 3, seed=7)


@pytest.fixture
def secret(settings: NodeSettings, tmp_path: Path) -> NodeSettings:
    """The same clients with a secret key and a ledger."""
    key_file = tmp_path / "run.key"
    SecretKey.create(key_file, "tiny/1")
    return replace(settings, seed=None, key_file=key_file, ledger=tmp_path / "run.sqlite")


@pytest.fixture
def policy_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes the policy of a node that holds all of the tiny data."""

    def write(
        *, backend: str = "fast", epsilon: float = 1e6, lineage: str = "ward", more: str = ""
    ) -> Path:
        path = tmp_path / "node" / "policy.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f"""
            [data]
            lineage = "{lineage}"
            name = "tiny"
            shape = [{SIZE}]
            classes = ["a", "b", "c"]
            nominal_records = {RECORDS + 3}
            {more}
            [state]
            folder = "state"
            [noise]
            backend = "{backend}"
            [budget.add-remove]
            epsilon = {epsilon}
            delta = 1e-4
            [budget.replace-one]
            epsilon = {epsilon}
            delta = 0.0
            [allow]
            mechanisms = ["clipped-gaussian", "laplace", "randomized-response"]
            minimum_noise_multiplier = 0.5
            maximum_clip_bound = 0.5
            maximum_images = 12
            """
        )
        return path

    return write


@pytest.fixture
def make_request() -> Callable[..., GradientRequest]:
    """A request for six rows of the tiny data: keywords are of the request, plan or objective."""

    def make(
        *, clip: str = "batch", schedule: str = "joint", rate: float = 1.0, sigma: float = 1.0,
        bound: float = 0.5, rows: Tensor | None = None, row_labels: Tensor | None = None,
        round: int = 1, label: int | None = None, **objective: Any,
    ) -> GradientRequest:  # fmt: skip
        random = torch.Generator().manual_seed(round)
        if rows is None:
            rows = torch.randn(6, SIZE, generator=random)
        if row_labels is None:
            joint = torch.arange(len(rows)) % CLASSES
            row_labels = joint if label is None else torch.full((len(rows),), label)
        plan = PrivacyPlan(
            rate,
            sigma,
            50,
            BatchClip(bound) if clip == "batch" else RecordClip(bound),
            JointSchedule() if schedule == "joint" else ClassSchedule(CLASSES),
            1e-5,
        )
        return GradientRequest(
            round,
            label,
            plan,
            Objective(**{"lam": 0.5, "classes": CLASSES, **objective}),
            {"name": "pixel", "shape": [rows.shape[1]]},
            rows,
            row_labels,
            torch.randn(len(rows), generator=random) / 10,
            torch.randn(rows.shape, generator=random) / 10,
        )

    return make


class _Silent(Stream):
    """Draws like any stream, but its normals are zero."""

    def normal(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64)


@pytest.fixture
def silent() -> Callable[[str], Stream]:
    """Streams under which a release holds no noise."""

    def stream(purpose: str) -> Stream:
        return _Silent(b"test", purpose)

    return stream
