"""Central mode with the generator at the clients: its weights go out, their noised gradient back.

The ablation of Cao et al. 2021 (Table 2) that perturbs the generator's parameter gradient, as
DP-SGD would, where DP-Sinkhorn perturbs the gradient of the generated images.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedsink.data.views import view_from_dict
from fedsink.errors import ModelError
from fedsink.models import Generator, build, parameter_count
from fedsink.models.weights import Pullback, pullback
from fedsink.privacy import domain
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.requests import Packable, is_float32, table
from fedsink.values import read_json

if TYPE_CHECKING:
    from flwr.app import RecordDict

_DESCRIPTION = {"name", "shape", "classes", "options"}


def architecture_of(generator: Generator) -> dict[str, Any]:
    """Returns the description of a generator without its weights, as JSON values.

    Raises:
        ModelError: the generator has a state outside its parameters, which would not travel.
    """
    if set(generator.state_dict()) != {name for name, _ in generator.named_parameters()}:
        raise ModelError(
            f"generator={generator.name} has a state beside its parameters, which strategy="
            "parameter_gradient does not send: choose another."
        )
    return {
        "name": generator.name,
        "shape": list(generator.shape),
        "classes": generator.classes,
        "options": generator.options,
    }


@dataclass(frozen=True)
class ParameterRequest(Packable):
    """Asks one client for one round of the mechanism, in the coordinates of the weights.

    Attributes:
        gradient: the request at the generated rows X: plan, objective and the rows
            themselves. The clip bound Δ is in units of the weights' gradient.
        architecture: name, shape, classes and options of the generator, as `architecture_of`.
        weights: θ, every parameter in the module's order, (P,) float32.
        latents: z of the rows X and then of every other row of their batch, (R, latent_dim)
            float32. The others matter where the generator has BatchNorm, or where the self term
            has its own rows.
        extra_labels: labels of the other rows, (R − n,) int64.
        extra_gradient: data-independent gradient at the other rows, (R − n, D); (0, 0) for none.
    """

    name: ClassVar[str] = "parameter_gradient"
    kind = "parameter request"

    gradient: GradientRequest
    architecture: Annotated[dict[str, Any], table]
    weights: Tensor
    latents: Tensor
    extra_labels: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    extra_gradient: Tensor = field(default_factory=lambda: torch.zeros(0, 0))

    @property
    def run(self) -> str:
        """Public name of the run that asks."""
        return self.gradient.run

    @classmethod
    def from_record(cls, record: RecordDict) -> ParameterRequest:
        """Reads a message; `check` builds its generator, once the policy allows that.

        Raises:
            ValueError: it is malformed.
        """
        request = super().from_record(record)
        if request.latents.ndim != 2:
            raise ValueError("Malformed parameter request: its latents are no matrix.")
        return request

    def check(self) -> None:
        """Refuses a request whose generator is unknown, or whose parts do not fit together.

        Raises:
            ValueError: names the part that does not fit.
        """
        gradient_request = self.gradient
        self._check_size()
        generator, n = self.generator, len(gradient_request.rows)
        view = view_from_dict(gradient_request.view)
        if gradient_request.rows.shape[1] != view.dimension:
            raise ValueError(
                f"The rows have {gradient_request.rows.shape[1]} coordinates, the view "
                f"{view.dimension}."
            )
        extra = len(self.latents) - n
        if (
            extra < 0
            or self.latents.shape[1] != generator.latent_dim
            or not is_float32(self.latents, domain.LATENTS)
        ):
            raise ValueError(
                f"Latents must be at least {n}×{generator.latent_dim} finite float32 numbers "
                f"within ±{domain.LATENTS.high:.4g}, not {tuple(self.latents.shape)} of "
                f"{self.latents.dtype}."
            )
        labels = self.extra_labels
        if labels.shape != (extra,) or labels.dtype != torch.int64:
            raise ValueError(f"The labels of the other rows must be {extra} integers.")
        if not bool(((labels >= 0) & (labels < generator.classes)).all()):
            raise ValueError(f"The labels of the other rows must be below {generator.classes}.")
        if self.extra_gradient.shape not in ((0, 0), (extra, view.dimension)) or not (
            is_float32(self.extra_gradient, domain.GRADIENTS)
        ):
            raise ValueError(
                f"The gradient of the other rows must be {extra}×{view.dimension} finite float32 "
                f"numbers within ±{domain.GRADIENTS.high:.4g} or empty, not "
                f"{tuple(self.extra_gradient.shape)}."
            )

    def _check_size(self) -> None:
        """Compares what the message declares with what it holds, before anything is built."""
        request, described = self.gradient, self.architecture
        if unknown := sorted(set(described) - _DESCRIPTION):
            raise ValueError(f"The generator's description has an unknown entry {unknown[0]!r}.")
        try:
            name, shape = described["name"], tuple(described["shape"])
            classes, options = described["classes"], described["options"]
            of_view = tuple(request.view["shape"])
            fits = shape == of_view
            size = parameter_count(name, shape, classes, **options) if fits else 0
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"The request's generator cannot be built: {error}.") from error
        if not fits:
            raise ValueError(
                f"The generator's records {shape} are not those of the view, {of_view}."
            )
        if self.weights.shape != (size,) or not is_float32(self.weights, domain.WEIGHTS):
            raise ValueError(
                f"The generator's weights must be {size} finite float32 numbers within "
                f"±{domain.WEIGHTS.high:.4g}, not {tuple(self.weights.shape)} of "
                f"{self.weights.dtype}."
            )
        if classes != request.objective.classes:
            raise ValueError(
                f"The generator has {classes} classes, the request {request.objective.classes}."
            )

    @property
    def generator(self) -> Generator:
        """A generator of the architecture, with arbitrary weights; do not change it.

        Raises:
            ValueError: it cannot be built.
        """
        try:
            return _built(json.dumps(self.architecture, sort_keys=True))
        except (KeyError, TypeError, ValueError, RuntimeError, MemoryError) as error:
            raise ValueError(f"The request's generator cannot be built: {error}.") from error

    def pullback(self, device: torch.device | str = "cpu") -> Pullback:
        """The map v ↦ Jᵀv with J = ∂X/∂θ at all R rows of the batch, from (R, D) to (P,)."""
        labels = torch.cat([self.gradient.row_labels, self.extra_labels])
        weights, z, labels = (v.to(device) for v in (self.weights, self.latents, labels))
        view = view_from_dict(self.gradient.view)
        return pullback(self.generator.to(device), weights, z, labels, view)

    def padded(self, gradient: Tensor) -> Tensor:
        """A gradient at the rows X, (n, D), with zeros at the other rows of the batch, (R, D)."""
        others = len(self.latents) - len(self.gradient.rows)
        return torch.cat([gradient, gradient.new_zeros(others, gradient.shape[1])])


@dataclass(frozen=True)
class ParameterReply(Packable):
    """The noised gradient of the weights, (P,) float32, and nothing else."""

    kind = "parameter reply"

    gradient: Tensor

    @classmethod
    def from_record(cls, record: RecordDict) -> ParameterReply:
        """Reads a reply.

        Raises:
            ValueError: it holds no gradient.
        """
        reply = super().from_record(record)
        if reply.gradient.ndim != 1:
            raise ValueError("Malformed parameter reply: it holds no vector of gradients.")
        return reply


@lru_cache(maxsize=2)
def _built(architecture: str) -> Generator:
    described = read_json(architecture)
    name, shape, classes = (described[key] for key in ("name", "shape", "classes"))
    return build(name, tuple(shape), classes, **described["options"]).requires_grad_(False)
