"""Ground costs c(x, y) and their gradients; a solver sees only the matrix C_ij = c(x_i, y_j)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedsink.errors import ConfigError
from fedsink.transport.pairwise import (
    absolute_distances,
    centred,
    mixed_distances,
    sign_field,
    sparse_field,
    squared_distances,
)


class GroundCost(Protocol):
    """A non-negative, symmetric cost between points, with its gradient under a fixed plan."""

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns C_ij = c(x_i, y_j), shape (..., n, m), for x (..., n, d) and y (..., m, d)."""
        ...

    def gradient(self, x: Tensor, y: Tensor, plan: Tensor, *, sparse: bool = False) -> Tensor:
        """Returns Σ_j P_ij ∂ₓc(x_i, y_j), shape (..., n, d), for a plan P (..., n, m).

        With `sparse` the work may depend on the number of entries of P that are not zero.
        """
        ...


@dataclass(frozen=True)
class SquaredEuclidean:
    """c(x, y) = ‖x − y‖₂², the cost matched to Gaussian noise when λ = 2σ².

    GeomLoss' p = 2 cost is half of this one.
    """

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns ‖x_i‖² + ‖y_j‖² − 2⟨x_i, y_j⟩ (one matmul), never negative."""
        _check_points(x, y)
        return squared_distances(x, y)

    def gradient(self, x: Tensor, y: Tensor, plan: Tensor, *, sparse: bool = False) -> Tensor:
        """Returns Σ_j P_ij·2(x_i − y_j) = 2(x_i Σ_j P_ij − (P y)_i), one matmul."""
        _check_plan(x, y, plan)
        x, y = centred(x, y)
        return 2.0 * (x * plan.sum(-1, keepdim=True) - plan @ y)


@dataclass(frozen=True)
class L1:
    """c(x, y) = ‖x − y‖₁ = Σ_k |x_k − y_k|, the cost matched to Laplace noise when λ = σ."""

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns Σ_k |x_ik − y_jk|, with O(n·m + block) memory."""
        _check_points(x, y)
        return absolute_distances(x, y)

    def gradient(self, x: Tensor, y: Tensor, plan: Tensor, *, sparse: bool = False) -> Tensor:
        """Returns Σ_j P_ij sign(x_i − y_j), with sign(0) = 0 and O(n·m + block) memory."""
        _check_plan(x, y, plan)
        if sparse and (field := sparse_field(x, y, plan, quadratic=0.0, absolute=1.0)) is not None:
            return field
        return sign_field(x, y, plan)


@dataclass(frozen=True)
class Mixed:
    """c_m(x, y) = ‖x − y‖₂² + m‖x − y‖₁, DP-Sinkhorn's cost (Cao et al. 2021).

    m = 0 is exactly SquaredEuclidean and takes its matmul path.

    Attributes:
        m: weight of the L1 part.
    """

    m: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.m < float("inf"):
            raise ConfigError(
                f"The weight m of the L1 part must be a finite number ≥ 0, got {self.m}: "
                "use m=0 for the purely quadratic cost."
            )

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns ‖x_i − y_j‖₂² + m‖x_i − y_j‖₁."""
        if self.m == 0.0:
            return SquaredEuclidean()(x, y)
        _check_points(x, y)
        return mixed_distances(x, y, self.m)

    def gradient(self, x: Tensor, y: Tensor, plan: Tensor, *, sparse: bool = False) -> Tensor:
        """Returns Σ_j P_ij [2(x_i − y_j) + m sign(x_i − y_j)]."""
        if self.m == 0.0:
            return SquaredEuclidean().gradient(x, y, plan)
        _check_plan(x, y, plan)
        if sparse:
            field = sparse_field(x, y, plan, quadratic=1.0, absolute=self.m)
            if field is not None:
                return field
        quadratic = SquaredEuclidean().gradient(x, y, plan)
        return quadratic.add_(sign_field(x, y, plan), alpha=self.m)


def cost_named(name: str, m: float = 1.0) -> GroundCost:
    """Returns the cost called "l1", "squared_l2" or "mixed" (only that one reads m).

    Raises ConfigError for any other name.
    """
    if name == "l1":
        return L1()
    if name == "squared_l2":
        return SquaredEuclidean()
    if name == "mixed":
        return Mixed(m)
    raise ConfigError(f'Unknown cost "{name}": choose one of l1, squared_l2, mixed.')


def append_labels(
    x: Tensor, labels: Tensor, classes: int, weight: float, *, check: bool = True
) -> Tensor:
    """Returns [x, α_c·onehot(label)], shape (n, d + classes), for x (n, d) and labels (n,).

    With `weight` α_c, a label mismatch adds 2α_c² to ‖x − y‖₂² and 2α_c to ‖x − y‖₁, so
    2α_c² + 2mα_c to c_m (Cao et al. 2021, where α_c = 15). Without `check` the host reads no label.

    Raises ValueError if a label is not in 0..classes−1 or the two lengths differ.
    """
    if labels.shape != x.shape[:-1]:
        raise ValueError(
            f"One label per point is needed: got labels of shape {tuple(labels.shape)} for "
            f"points of shape {tuple(x.shape)}."
        )
    if check and labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(
            f"Labels must lie in 0..{classes - 1}, got values from {int(labels.min())} to "
            f"{int(labels.max())}: set the number of classes to match."
        )
    one_hot = torch.nn.functional.one_hot(labels.long(), classes).to(x.dtype)
    return torch.cat((x, weight * one_hot), dim=-1)


def _check_points(x: Tensor, y: Tensor) -> None:
    if x.dim() < 2 or y.dim() < 2 or x.shape[-1] != y.shape[-1]:
        raise ValueError(
            "Points must have shapes (..., n, d) and (..., m, d) with the same d, got "
            f"{tuple(x.shape)} and {tuple(y.shape)}: flatten images first."
        )
    if x.dtype != y.dtype or not x.is_floating_point():
        raise ValueError(
            f"Points must share one floating type, got {x.dtype} and {y.dtype}: convert one."
        )


def _check_plan(x: Tensor, y: Tensor, plan: Tensor) -> None:
    _check_points(x, y)
    if plan.shape[-2:] != (x.shape[-2], y.shape[-2]):
        raise ValueError(
            f"The plan must have shape (..., {x.shape[-2]}, {y.shape[-2]}) to match the points, "
            f"got {tuple(plan.shape)}."
        )
