"""The messages that a server of this project sends, of every type, and how to change them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import torch
from fedsink_papers.parameter_gradient.request import ParameterRequest, architecture_of
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsink.data.maps import L1Ball, PointBall
from fedsink.models import build
from fedsink.models.critics import CriticTraining
from fedsink.models.weights import flat_weights
from fedsink.privacy import CriticClip, JointSchedule, PrivacyPlan
from fedsink.protocol.dp_sinkhorn import GradientRequest, Objective
from fedsink.protocol.gs_wgan import CriticRequest, Critics
from fedsink.protocol.privatize_once import LocalPlan, PrivatizeRequest

from ..support.requests import gradient_request, pack_requests, plan_of
from ..support.tiny import CLASSES, NOMINAL

IDENTITY, GRADIENT = "query.identity", "train.dp_sinkhorn"
PARAMETERS, PRIVATIZE = "train.parameter_gradient", "train.privatize_once"
CRITIC = "train.gs_wgan"
KINDS = (IDENTITY, GRADIENT, PARAMETERS, PRIVATIZE, CRITIC)
CRITICS = 4  # of a client, the most that a policy allows
SHAPES: dict[str, tuple[int, ...]] = {"points": (4,), "images": (1, 4, 4)}

Kind = str
Sent = tuple[Kind, RecordDict]


@dataclass(frozen=True)
class Honest:
    """Messages that a server of this project would send to nodes with records of one shape."""

    shape: tuple[int, ...]

    @property
    def dimension(self) -> int:
        """Coordinates of a row in the pixel view."""
        return math.prod(self.shape)

    def gradient(
        self,
        round: int = 1,
        *,
        clip: str = "record",
        schedule: str = "joint",
        rows: int = 6,
        run: str = "run",
        objective: dict[str, Any] | None = None,
        **plan: Any,
    ) -> GradientRequest:
        """Returns one use, equal for equal arguments. `plan` replaces fields of the plan."""
        return gradient_request(
            plan_of(clip, schedule, **plan),
            Objective(**{"lam": 0.5, "classes": CLASSES, **(objective or {})}),
            round=round,
            label=round % CLASSES if schedule == "class" else None,
            rows=rows,
            shape=self.shape,
            run=run,
        )

    def parameters(
        self, round: int = 1, *, extra: int = 0, batch_norm: bool = False, **request: Any
    ) -> ParameterRequest:
        """Returns one use at a generator's weights; keywords are those of `gradient`."""
        asked = self.gradient(round, **request)
        generator = build(
            "mlp", self.shape, CLASSES, latent_dim=2, hidden=[3], batch_norm=batch_norm,
            output="linear" if len(self.shape) == 1 else "sigmoid",
        )  # fmt: skip
        random = torch.Generator().manual_seed(round)
        return ParameterRequest(
            asked,
            architecture_of(generator),
            flat_weights(generator).detach(),
            torch.rand(len(asked.rows) + extra, 2, generator=random),
            torch.arange(extra) % CLASSES,
            torch.randn(extra, self.dimension, generator=random),
        )

    def critic(
        self,
        round: int = 1,
        *,
        rows: int = 6,
        run: str = "run",
        critics: dict[str, Any] | None = None,
        **plan: Any,
    ) -> CriticRequest:
        """Returns one use at the client's critics; `critics` and `plan` replace their fields."""
        random = torch.Generator().manual_seed(round)
        x, fakes = (torch.randn(n, self.dimension, generator=random) for n in (rows, 6))
        clip = CriticClip(0.5, CRITICS)
        values = PrivacyPlan(1.0, 1.0, 50, clip, JointSchedule(), 1e-5).to_dict()
        described = Critics(CriticTraining(CRITICS, 1, 2, 2), CLASSES, hidden=4, scale=1.0, seed=15)
        return CriticRequest(
            round=round,
            plan=PrivacyPlan.from_dict(values | plan),
            critics=Critics.from_dict(described.to_dict() | (critics or {})),
            view={"name": "pixel", "shape": list(self.shape)},
            rows=x,
            row_labels=torch.arange(rows) % CLASSES,
            fakes=fakes,
            fake_labels=torch.arange(6) % CLASSES,
            run=run,
        )

    def upload(
        self, run: str = "run", chunk: int = 0, chunk_size: int = 20, label: float | None = 0.5
    ) -> PrivatizeRequest:
        """Returns one chunk; noise 80 times as wide as the records makes a release noise."""
        if len(self.shape) == 1:
            plan = LocalPlan("laplace", PointBall("l1", 1e-3, self.shape[0]), 0.05, 0.0, label, 3)
        else:
            plan = LocalPlan("laplace", L1Ball(self.shape, 1e-3), 0.025, 0.0, label, 3)
        return PrivatizeRequest(plan, chunk, chunk_size, run)

    def messages(self) -> list[Sent]:
        """At least one message of every type, with and without a capacity."""
        full = {"capacity": NOMINAL, "nominal_records": NOMINAL}
        weights = self.parameters(clip="record", extra=2, batch_norm=True)
        return [
            (IDENTITY, RecordDict()),
            (GRADIENT, self.gradient(clip="record").to_record()),
            (GRADIENT, self.gradient(clip="record", schedule="class", **full).to_record()),
            (GRADIENT, self.gradient(clip="batch", capacity=20).to_record()),
            (GRADIENT, pack_requests([self.gradient(t, clip="batch") for t in (1, 2)])),
            (PARAMETERS, weights.to_record()),
            (PARAMETERS, self.parameters(clip="batch", extra=2, **full).to_record()),
            (PRIVATIZE, self.upload().to_record()),
            (CRITIC, self.critic().to_record()),
        ]


def fields_of(content: RecordDict) -> dict[str, Any]:
    """The JSON fields of an honest message."""
    fields: dict[str, Any] = json.loads(str(content.config_records["fields"]["json"]))
    return fields


def with_fields(content: RecordDict, fields: Any) -> RecordDict:
    """Returns these arrays under other fields; a text is taken literally."""
    text = fields if isinstance(fields, str) else json.dumps(fields)
    arrays = ArrayRecord(dict(content.array_records["arrays"]))
    return RecordDict({"fields": ConfigRecord({"json": text}), "arrays": arrays})


def with_arrays(content: RecordDict, **arrays: Array) -> RecordDict:
    """Returns these fields with some arrays replaced."""
    kept = dict(content.array_records["arrays"]) | arrays
    return RecordDict({"fields": content.config_records["fields"], "arrays": ArrayRecord(kept)})


def changed(content: RecordDict, table: str, **entries: Any) -> RecordDict:
    """Returns this message with entries of one table of its fields replaced."""
    fields = fields_of(content)
    fields[table] |= entries
    return with_fields(content, fields)
