"""Exact distance to which a server that knows two neighbours can drive their totals apart."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from fedsink_papers.parameter_gradient.request import ParameterRequest

from fedsink.clients.records.shard import Shard
from fedsink.privacy import BatchClip, Clipped, PrivacyPlan, RecordClip, Stream, domain
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.failure_codes import MALFORMED
from fedsink.protocol.packing import unpack

from ..support.exact import squared_distance
from .besieged import many
from .honest import GRADIENT, PARAMETERS, SHAPES, Honest, changed
from .oracles import Request, total_of
from .siege import Siege

HONEST = Honest(SHAPES["points"])
FAR = [
    torch.full((1, 4), 100.0),
    torch.full((1, 4), -100.0),
    torch.tensor([[1.0, -7.0, 30.0, 2.0]]),
]
CAPACITIES = pytest.mark.parametrize("capacity", [None, 12])
KINDS = pytest.mark.parametrize("kind", [GRADIENT, PARAMETERS])


def shards() -> list[Shard]:
    """Shards that share no record, from empty to 61 records."""
    zero = torch.zeros(1, dtype=torch.int64)
    empty = Shard(torch.zeros(0, 4), zero[:0])
    return [empty, Shard(*many((4,))), *(Shard(record, zero) for record in FAR)]


def asked(kind: str, clip: BatchClip | RecordClip, capacity: int | None, **request: Any) -> Request:
    """Returns a request of either type with a clip that bypasses every check."""
    nominal = None if capacity is None else 64
    options: dict[str, Any] = {
        "clip": clip.name, "rows": 1, "capacity": capacity, "nominal_records": nominal, **request,
    }  # fmt: skip
    made = HONEST.gradient(**options) if kind == GRADIENT else HONEST.parameters(**options)
    gradient = made if isinstance(made, GradientRequest) else made.gradient
    object.__setattr__(gradient.plan, "clip", clip)
    return made


def ratio(request: Request) -> float:
    """The largest distance of two shards' totals, in units of the sensitivity S."""
    gradient = request if isinstance(request, GradientRequest) else request.gradient
    assert isinstance(gradient.plan, PrivacyPlan)
    sensitivity = Fraction(gradient.plan.sensitivity)
    totals = [total_of(request, shard) for shard in shards()]
    largest = max(squared_distance(a, b) for a in totals for b in totals) / sensitivity**2
    assert largest <= 1
    return math.sqrt(float(largest))


def beyond_the_domain(request: Request, m: float) -> Request:
    """Returns this request with a cost weight that no objective may have any more."""
    gradient = request if isinstance(request, GradientRequest) else request.gradient
    object.__setattr__(gradient.objective, "m", m)
    return request


@CAPACITIES
@KINDS
@pytest.mark.parametrize("m", [0.0, 1.0, 1e10, 1e30, 1e37])
def test_a_tiny_bound_and_a_huge_cost_weight_keep_the_distance(
    kind: str, m: float, capacity: int | None
) -> None:
    """Δ/‖G‖ was below 2⁻¹²⁶ here, and float32 rounded it up to twice as much."""
    for factor in (0.51, 0.6, 0.75, 1.0, 1.51):
        length = max(1.0, m) * 2.0  # of a gradient of four coordinates under the L1 cost
        bound = length * factor * 2.0**-149
        request = beyond_the_domain(asked(kind, BatchClip(bound), capacity), m)
        ratio(request)


@pytest.mark.medium
@CAPACITIES
def test_huge_latents_keep_the_distance(capacity: int | None) -> None:
    for latents in (2.0**20, 1e30, 1e37):
        for bound in (1e-40, latents * 0.51 * 2.0**-149, 0.5):
            request = asked(PARAMETERS, BatchClip(bound), capacity)
            assert isinstance(request, ParameterRequest)
            ratio(replace(request, latents=torch.full_like(request.latents, latents)))


@CAPACITIES
@KINDS
@pytest.mark.parametrize("power", [-40, -20, 0, 40])
def test_the_ends_of_the_public_domain_keep_the_distance(
    kind: str, power: int, capacity: int | None
) -> None:
    """There the clip still lets through almost the whole bound."""
    objective = {"m": domain.COST_WEIGHT.high, "lam": domain.REGULARISATION.high}
    bound = 2.0**power
    request = asked(kind, BatchClip(bound), capacity, objective=objective)
    reached = ratio(request)
    if kind == GRADIENT and power < 20:
        assert reached > 0.9


@pytest.mark.medium
@pytest.mark.parametrize("clip", ["batch", "record"])
@CAPACITIES
@KINDS
@pytest.mark.parametrize("noise", ["fast", "keyed"])
def test_the_handlers_refuse_numbers_beyond_the_domain(
    kind: str,
    clip: str,
    noise: str,
    capacity: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    siege = Siege(tmp_path, monkeypatch, noise)
    full = None if capacity is None else 64  # at rate 1 a smaller one would overflow
    options: dict[str, Any] = {"clip": clip, "capacity": full, "nominal_records": 64}
    usual = HONEST.gradient(**options) if kind == GRADIENT else HONEST.parameters(**options)
    content = usual.to_record()
    tiny = {"clip": {"name": clip, "bound": 0.51 * 2.0**-149}}
    for message in (
        changed(content, "objective", m=1e37),
        changed(content, "plan", **tiny),
        changed(changed(content, "objective", m=1e37), "plan", **tiny),
    ):
        assert siege.send(kind, message).error.code == MALFORMED
    if isinstance(usual, ParameterRequest):
        huge = replace(usual, latents=torch.full_like(usual.latents, 1e30))
        assert siege.send(kind, huge.to_record()).error.code == MALFORMED
    assert not siege.send(kind, content).has_error()


@KINDS
def test_noise_is_added_in_float64_before_the_one_cast_to_float32(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply is fl32(total + std·noise), and no part of the sum was rounded before."""
    siege = Siege(tmp_path, monkeypatch)
    normal, drawn, wanted = Stream.normal, [], []
    release = PrivacyPlan.release

    def drawing(self: Stream, *shape: int) -> torch.Tensor:
        drawn.append(normal(self, *shape))
        return drawn[-1]

    def releasing(self: PrivacyPlan, total: Clipped, stream: Stream) -> torch.Tensor:
        released = release(self, total, stream)
        wanted.append((total.total.double() + self.noise_std * drawn[-1]).to(torch.float32))
        return released

    monkeypatch.setattr(Stream, "normal", drawing)
    monkeypatch.setattr(PrivacyPlan, "release", releasing)
    usual = HONEST.gradient() if kind == GRADIENT else HONEST.parameters()
    for node in siege.nodes:
        siege.looked_at = node
        reply = unpack(node.ask(kind, usual.to_record()).content)[1]["gradient"]
        assert drawn[-1].dtype == torch.float64
        assert torch.equal(reply.reshape(wanted[-1].shape), wanted[-1])
        assert not torch.equal(reply.reshape(wanted[-1].shape), drawn[-1].to(torch.float32))
