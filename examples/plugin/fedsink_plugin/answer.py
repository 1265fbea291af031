"""The node's half of mean embeddings: what a server asks, and what a client answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import torch
from torch import Tensor

from fedsink.clients.answer import Neighbours, Task, check_classes
from fedsink.clients.central import CentralAnswer
from fedsink.clients.policy import Policy
from fedsink.clients.shard import Shard
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError
from fedsink.privacy import CentralPlan, Clipped, RecordClip, Stream, plan_from_dict
from fedsink.privacy.domain import ROWS
from fedsink.privacy.integer_gaussian import FixedPoint
from fedsink.protocol.dp_sinkhorn import GradientReply
from fedsink.protocol.requests import CentralRequest, is_float32, run_name, table

if TYPE_CHECKING:
    from flwr.app import RecordDict


@dataclass(frozen=True)
class EmbeddingRequest(CentralRequest):
    """Asks one client for one noised sum of its records' features.

    Attributes:
        round, plan, share, fixed_point: see `CentralRequest`.
        view: public linear coordinates of the records, as `View.to_dict()`.
        classes: C, number of public classes; 1 where labels play no part.
        rows: frequencies ω, (F, D) float32.
        run: public name of the run that asks.
    """

    kind = "embedding request"
    label: ClassVar[None] = None  # records of every class take part

    round: Annotated[int, int]
    plan: Annotated[CentralPlan, plan_from_dict]
    view: Annotated[dict[str, Any], table]
    classes: int
    rows: Tensor
    run: Annotated[str, run_name]
    share: int = 1
    fixed_point: Annotated[FixedPoint | None, FixedPoint.from_dict] = None

    @classmethod
    def from_record(cls, record: RecordDict) -> Self:
        """Reads and checks a message; raises ValueError where it is malformed."""
        request = super().from_record(record)
        request.check_use()
        if request.rows.ndim != 2 or not request.rows.numel() or not is_float32(request.rows, ROWS):
            raise ValueError("Malformed embedding request: its frequencies are no finite matrix.")
        if not isinstance(request.plan.clip, RecordClip) or request.plan.capacity is not None:
            raise ValueError("A mean embedding has clip=record and no capacity.")
        return request


class MeanEmbeddingAnswer(CentralAnswer):
    """``train.mean_embedding``: `feature_sums` of a Poisson sample, with the plan's noise.

    Guarantees:
        - Totals of two shards that differ in one record differ by at most the plan's sensitivity.
        - The reply depends on private data only through the total that is noised.
    """

    name = "mean_embedding"
    limits: ClassVar = {**CentralAnswer.limits, "maximum_frequencies": 4096}

    def __init__(self, requests: Sequence[EmbeddingRequest]) -> None:
        [self.request] = requests
        self.values = 2 * len(self.request.rows) * self.request.classes
        super().__init__(requests, images=0, size=self.values)

    @classmethod
    def read(cls, record: RecordDict, policy: Policy | None) -> Self:
        """The message's one use."""
        return cls([EmbeddingRequest.from_record(record)])

    def check_policy(self, policy: Policy) -> None:
        """Refuses too many frequencies as well."""
        super().check_policy(policy)
        policy.check_limit("maximum_frequencies", len(self.request.rows), "frequencies")

    def check_data(self, data: DataSpec) -> None:
        """Refuses a class list that is not the data's as well."""
        super().check_data(data)
        if self.request.classes != 1:
            check_classes(self.request.classes, data)

    def compute(self, task: Task) -> list[Tensor]:
        """The noised sums, (C, 2F) float32."""
        sample, noise = (task.stream(use, self.request.round) for use in ("sample", "noise"))
        total = feature_sums(self.request, task.shard, sample)
        return [self.request.release(total, noise)]

    def record(self, reply: Mapping[str, Tensor]) -> RecordDict:
        """The sums, and nothing else."""
        return GradientReply(reply[self.parts[0]]).to_record()

    @classmethod
    def canaries(cls, plan: CentralPlan, records: int = 1) -> list[Neighbours]:
        """A record that is there or not, for `fedsink audit`: any one has features of norm 1.

        A frequency turns them from round to round, so that noise used twice would show.
        """
        if records > 1:
            raise ConfigError(f"train.{cls.name} has no canaries of one run: leave canaries out.")
        view = {"name": "pixel", "shape": [1]}
        requests = [
            EmbeddingRequest(round, plan, view, 1, torch.full((1, 1), float(round)), "audit")
            for round in range(1, plan.rounds + 1)
        ]
        present = Shard(torch.ones(1, 1), torch.zeros(1, dtype=torch.int64))
        return [
            Neighbours(
                "one record", requests, Shard(present.images[:0], present.labels[:0]), present
            )
        ]


def features(points: Tensor, frequencies: Tensor) -> Tensor:
    """Returns φ(x) = (cos⟨ω_i, x⟩, sin⟨ω_i, x⟩)_i/√F of each point, (N, 2F), of norm 1.

    With ω ~ N(0, I/s²) the mean of ⟨φ(x), φ(y)⟩ is the Gaussian kernel exp(−‖x − y‖²/2s²)
    (Rahimi and Recht 2007).
    """
    angles = points @ frequencies.T
    return torch.cat([angles.cos(), angles.sin()], dim=1) / len(frequencies) ** 0.5


def feature_sums(request: EmbeddingRequest, shard: Shard, sample: Stream) -> Clipped:
    """Returns Σ_j clip(φ(y_j), Δ) over the sampled records of each class, (C, 2F).

    A record's term depends on no other record, so that adding or removing one moves the sum by at
    most Δ.
    """
    chosen = request.plan.sampler.draw(len(shard), sample).to(shard.labels.device)
    points = shard.coordinates(request.view)[chosen].double()
    found = features(points, request.rows.to(points))
    labels = shard.labels[chosen] if request.classes > 1 else torch.zeros_like(chosen)
    terms = found.new_zeros(len(found), request.classes, found.shape[1])
    terms[torch.arange(len(found)), labels] = found  # a record's class holds its features
    return RecordClip.expect(request.plan.clip).sum(terms)
