"""The node's half of mean embeddings: what a server asks, and what a client answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedsink.clients import CentralAnswer, Neighbours, Policy, Shard, check_classes, check_view
from fedsink.data import DataSpec
from fedsink.privacy import Clipped, RecordClip
from fedsink.protocol import CentralRequest, check_matrix, table


@dataclass(frozen=True, kw_only=True)
class EmbeddingRequest(CentralRequest):
    """Asks one client for a noised sum of its records' features, class by class."""

    name = "mean_embedding"  # of the strategy, of the answer, and of the message train.NAME

    view: Annotated[dict[str, Any], table]  # coordinates of the records, as `View.to_dict()`
    classes: Annotated[int, int]  # C; 1 where labels play no part
    frequencies: Tensor  # ω, (F, D) float32

    @property
    def reply_shape(self) -> tuple[int, ...]:
        return self.classes, 2 * len(self.frequencies)

    def check(self) -> None:
        """Refuses what no node can answer, before any record is read: a ValueError."""
        super().check()
        check_matrix(self.frequencies)
        if not isinstance(self.plan.clip, RecordClip):
            raise ValueError("Mean embeddings are clipped record by record: clip=record.")


class MeanEmbeddingAnswer(CentralAnswer):
    """``train.mean_embedding``: sums of features over a Poisson sample, with the plan's noise.

    Guarantees:
        Totals of two samples that differ in one record differ by at most the plan's sensitivity.
    """

    Request = EmbeddingRequest
    name = EmbeddingRequest.name
    limits: ClassVar = {"maximum_frequencies": 4096}

    def check_policy(self, policy: Policy) -> None:
        """Refuses too many frequencies as well."""
        super().check_policy(policy)
        policy.check_limit("maximum_frequencies", len(self.requests[0].frequencies), "frequencies")

    def check_data(self, data: DataSpec) -> None:
        """Refuses a view and a class list that are not the data's as well."""
        super().check_data(data)
        [request] = self.requests
        check_view(request.view, request.frequencies.shape[1], data)
        check_classes(request.classes, data)

    def total(self, request: EmbeddingRequest, sample: Shard) -> Clipped:
        """Returns Σ_j clip(φ(y_j), Δ) over the sampled records of each class, (C, 2F)."""
        points = sample.coordinates(request.view).double()
        found = features(points, request.frequencies.to(points))
        labels = sample.labels if request.classes > 1 else torch.zeros_like(sample.labels)
        terms = found.new_zeros(len(found), request.classes, found.shape[1])
        terms[torch.arange(len(found)), labels] = found  # no record changes another one's term
        return RecordClip.expect(request.plan.clip).sum(terms)

    @classmethod
    def canaries(cls, plan: Any, records: int = 1) -> list[Neighbours]:
        """A record that is there or not, whose features turn from round to round: for audits."""
        cls.refuse_one_run(records)
        view, turns = {"name": "pixel", "shape": [1]}, torch.arange(1.0, plan.rounds + 1)
        requests = [
            EmbeddingRequest(round=t, plan=plan, view=view, classes=1, frequencies=turn.view(1, 1))
            for t, turn in enumerate(turns, start=1)
        ]
        present = Shard(torch.ones(1, 1), torch.zeros(1, dtype=torch.int64))
        return [Neighbours("one record", requests, present.part(torch.arange(0)), present)]


def features(points: Tensor, frequencies: Tensor) -> Tensor:
    """Returns φ(x) = (cos⟨ω_i, x⟩, sin⟨ω_i, x⟩)_i/√F of each point, (N, 2F), of norm 1.

    For ω ~ N(0, I/s²), E ⟨φ(x), φ(y)⟩ = exp(−‖x − y‖²/2s²) (Rahimi and Recht 2007).
    """
    angles = points @ frequencies.T
    return torch.cat([angles.cos(), angles.sin()], dim=1) / len(frequencies) ** 0.5
