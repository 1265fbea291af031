"""A sample of private records in a fixed number of places, and its clipped gradient.

With a capacity, which operations answer a request, on what shapes and how many of them, depends
on the request alone once the places are filled. So the running time does not tell the size of the
sample, and the sample stays as secret as the amplification by sampling assumes.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.clients.shard import Shard
from fedsink.privacy import PoissonSampler, Stream
from fedsink.protocol import GradientRequest, Objective
from fedsink.transport import (
    append_labels,
    fixed_solver,
    oblivious_record_field,
    transport_gradient,
)

log = logging.getLogger("fedsink.clients")


@dataclass(frozen=True)
class PaddedBatch:
    """B places, each with a sampled record or empty.

    Attributes:
        records: coordinates, (B, D), zero in an empty place.
        labels: (B,) int64, zero in an empty place.
        present: which places hold a record, (B,) bool.
        radius: public bound on the norm of a record.
    """

    records: Tensor
    labels: Tensor
    present: Tensor
    radius: float

    @classmethod
    def draw(
        cls, request: GradientRequest, capacity: int, shard: Shard, stream: Stream
    ) -> PaddedBatch:
        """The Poisson sample of the request's class in `capacity` places.

        Of a larger sample a uniformly random part stays, whatever the records.
        """
        coordinates = shard.coordinates(request.view)
        radius = shard.norm_bound(request.view)
        candidates = shard.members(request.label)
        places, present = PoissonSampler(request.plan.rate).draw_at_most(
            len(candidates), capacity, stream
        )
        present = present.to(coordinates.device)
        if len(shard) == 0:
            records = coordinates.new_zeros(capacity, coordinates.shape[1])
            return cls(records, torch.zeros_like(places), present, radius)
        # An empty place reads some record too, and drops it.
        chosen = torch.cat((candidates, candidates.new_zeros(capacity)))[places]
        records = torch.where(present.unsqueeze(-1), coordinates[chosen], 0.0)
        labels = torch.where(present, shard.labels[chosen], 0)
        if request.objective.classes == 1:  # unconditional: every record is of the one class
            labels = torch.zeros_like(labels)
        return cls(records, labels, present, radius)

    def meets(self, row_labels: Tensor) -> Tensor:
        """Which records a row may meet, (n, B) bool: those that are there and of its class."""
        labels = row_labels.to(self.labels.device)
        return (labels.unsqueeze(-1) == self.labels) & self.present


def padded_record_total(request: GradientRequest, rows: Tensor, batch: PaddedBatch) -> Tensor:
    """Σ_j clip(g_j, Δ), (n, D) float64: every record meets only the rows of its own class."""
    return oblivious_record_field(
        rows,
        batch.records,
        request.potentials.to(rows.device),
        request.objective.lam,
        request.plan.clip.bound,
        mask=batch.meets(request.row_labels),
        radius=batch.radius,
    )


def padded_batch_gradient(request: GradientRequest, rows: Tensor, batch: PaddedBatch) -> Tensor:
    """∂_X 2Ŵ_λ(X, Y) plus the self gradient, (n, D), before the clip; without records the latter.

    Without records a problem of the same size is solved, and its result dropped.
    """
    objective = request.objective
    x, y, radius = rows, batch.records, batch.radius
    own = request.self_gradient.to(rows.device)
    classed = request.label is None and objective.label_weight > 0
    weight = objective.label_weight if classed else 0.0
    try:
        solver = fixed_solver(objective.solver, **_public_bounds(rows, radius, objective, weight))
        if classed:
            x = append_labels(x, request.row_labels.to(x.device), objective.classes, weight)
            y = append_labels(y, batch.labels, objective.classes, weight)
        total = (
            2.0
            * transport_gradient(
                x, y, objective.ground_cost, objective.lam, log_b=_log_weights(batch), solver=solver
            ).gradient
        )
    except (ValueError, RuntimeError, ArithmeticError):
        # Bounds beyond the range of floats or of λ: they are public, so every batch meets this.
        log.warning("a transport problem is out of range; its gradient counts as zero")
        return torch.zeros_like(own)
    # A select, not a branch.
    return torch.where(batch.present.any(), total[:, : rows.shape[1]] + own, own)


def _log_weights(batch: PaddedBatch) -> Tensor:
    """Uniform over the places with a record, (B,); over all of them where there is none."""
    counted = batch.present | ~batch.present.any()
    size = counted.sum().to(batch.records.dtype)
    return torch.where(counted, -torch.log(size), -math.inf)


def _public_bounds(
    rows: Tensor, radius: float, objective: Objective, label_weight: float
) -> dict[str, float]:
    """Bounds on the costs of rows with records in the ball of `radius`, and on any distance."""
    row_norm = float(torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).amax())
    # One-hot labels α_c·e_k are at most √2·α_c apart.
    labels = math.sqrt(2.0) * label_weight
    distance = math.hypot(row_norm + radius, labels)
    # ‖v‖₁ ≤ √D‖v‖₂ for the coordinates, and 2α_c for the labels.
    absolute = math.sqrt(rows.shape[1]) * (row_norm + radius) + 2.0 * label_weight
    return {
        "largest_cost": absolute
        if objective.cost == "l1"
        else distance * distance + objective.m * absolute,
        "diameter": math.hypot(2.0 * max(row_norm, radius), labels),
    }
