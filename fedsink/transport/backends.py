"""The annealed transport gradient by three libraries behind one signature, with the same answers.

`native` is this package: the n×m cost in memory, no factor d. `geomloss` runs GeomLoss' loop on the
same costs and backpropagates, as a second opinion. `keops` never holds n×m numbers either, for
problems beyond the memory of a GPU; it generates and compiles code at the first call.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor

from fedsink.errors import ConfigError
from fedsink.transport.annealed import bounding_diameter, epsilon_schedule
from fedsink.transport.costs import L1, Cost, Mixed, SquaredEuclidean
from fedsink.transport.losses import transport_gradient
from fedsink.transport.solvers import AnnealedSolver


class Backend(Protocol):
    """A way to compute W_{c,λ} and its gradient with the schedule of `annealed`."""

    def __call__(
        self,
        x: Tensor,
        y: Tensor,
        cost: Cost,
        lam: float,
        *,
        scaling: float = 0.5,
        log_a: Tensor | None = None,
        log_b: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return W (a scalar) and ∂W/∂x, (n, d), for x (n, d), y (m, d) and λ in units of cost.

        `log_a` (n,) and `log_b` (m,) are log-weights, −∞ for padding; uniform if None.
        """
        ...


def native(
    x: Tensor,
    y: Tensor,
    cost: Cost,
    lam: float,
    *,
    scaling: float = 0.5,
    log_a: Tensor | None = None,
    log_b: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`transport_gradient` with `AnnealedSolver`."""
    solver = AnnealedSolver(scaling)
    result = transport_gradient(x, y, cost, lam, log_a=log_a, log_b=log_b, solver=solver)
    return result.value, result.gradient


def geomloss(
    x: Tensor,
    y: Tensor,
    cost: Cost,
    lam: float,
    *,
    scaling: float = 0.5,
    log_a: Tensor | None = None,
    log_b: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """GeomLoss' SamplesLoss (p = 1, blur = λ), with the gradient by its own backpropagation."""
    from geomloss import SamplesLoss

    def matrix(first: Tensor, second: Tensor) -> Tensor:
        values: Tensor = _Differentiable.apply(first, second, cost)
        return values

    loss = SamplesLoss(
        "sinkhorn",
        p=1,
        blur=lam,
        scaling=scaling,
        diameter=float(bounding_diameter(x, y, log_a, log_b)),
        debias=False,
        cost=matrix,
        backend="tensorized",
    )
    a, b = _log_weights(x, log_a).exp(), _log_weights(y, log_b).exp()
    with torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        value = loss(a, leaf, b, y.detach())
        (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


def keops(
    x: Tensor,
    y: Tensor,
    cost: Cost,
    lam: float,
    *,
    scaling: float = 0.5,
    log_a: Tensor | None = None,
    log_b: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """KeOps reductions over symbolic costs: O((n + m)·d) memory, for the costs of this package.

    Raises:
        ConfigError: for a cost without a symbolic form.
    """
    x, y = x.detach(), y.detach()
    log_a, log_b = _log_weights(x, log_a), _log_weights(y, log_b)

    def softmin(points: Tensor, others: Tensor, weights: Tensor, g: Tensor, eps: float) -> Tensor:
        scores = _symbolic((weights + g / eps).unsqueeze(-1), 0)
        scores = scores - _cost(points, others, cost) / eps
        reduced: Tensor = scores.logsumexp(dim=1)
        return -eps * reduced.squeeze(-1)

    start = float(bounding_diameter(x, y, log_a, log_b))
    schedule = epsilon_schedule(start, lam, scaling)
    f = softmin(x, y, log_b, torch.zeros_like(log_b), schedule[0])
    g = softmin(y, x, log_a, torch.zeros_like(log_a), schedule[0])
    for eps in schedule:
        f, g = (
            0.5 * (f + softmin(x, y, log_b, g, eps)),
            0.5 * (g + softmin(y, x, log_a, f, eps)),
        )
    g_before = g
    f, g = softmin(x, y, log_b, g, lam), softmin(y, x, log_a, f, lam)
    rows = _symbolic((f + lam * log_a).unsqueeze(-1), 1)
    columns = _symbolic((g_before + lam * log_b).unsqueeze(-1), 0)
    plan = ((rows + columns - _cost(x, y, cost)) / lam).exp()
    gradient: Tensor = (plan * _derivative(x, y, cost)).sum(dim=1)
    return (log_a.exp() * f).sum() + (log_b.exp() * g).sum(), gradient


def backend_named(name: str) -> Backend:
    """Return the backend called "native", "geomloss" or "keops"; ConfigError for another name."""
    backends: dict[str, Backend] = {"native": native, "geomloss": geomloss, "keops": keops}
    if name not in backends:
        raise ConfigError(f'Unknown backend "{name}": choose one of {", ".join(backends)}.')
    return backends[name]


class _Differentiable(torch.autograd.Function):
    """A cost matrix whose backward pass is the cost's own gradient, at both points."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, cost: Cost) -> Tensor:
        ctx.save_for_backward(x, y)
        ctx.cost = cost
        return cost(x.detach(), y.detach())

    @staticmethod
    def backward(ctx: Any, *plans: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, y = ctx.saved_tensors
        (plan,) = plans
        at_x, at_y = ctx.needs_input_grad[:2]
        return (
            ctx.cost.gradient(x, y, plan) if at_x else None,
            ctx.cost.gradient(y, x, plan.transpose(-1, -2)) if at_y else None,
            None,
        )


def _log_weights(points: Tensor, given: Tensor | None) -> Tensor:
    if given is None:
        return points.new_full((len(points),), -math.log(len(points)))
    # −∞ would become NaN in KeOps' running maximum; this is as good as −∞ in either type.
    return given.detach().to(points).clamp(min=-1e18)


def _symbolic(values: Tensor, axis: int) -> Any:
    from pykeops.torch import LazyTensor

    return LazyTensor(values.unsqueeze(axis).contiguous())


def _parts(cost: Cost) -> tuple[float, float]:
    """Return (q, m) of q‖x − y‖₂² + m‖x − y‖₁."""
    if isinstance(cost, L1):
        return 0.0, 1.0
    if isinstance(cost, SquaredEuclidean):
        return 1.0, 0.0
    if isinstance(cost, Mixed):
        return 1.0, cost.m
    raise ConfigError(f"The keops backend has no symbolic form of {cost}: use native or geomloss.")


def _cost(x: Tensor, y: Tensor, cost: Cost) -> Any:
    q, m = _parts(cost)
    difference = _symbolic(x, 1) - _symbolic(y, 0)
    if q == 0.0:
        return difference.abs().sum(-1)
    squared = (difference**2).sum(-1)
    return squared if m == 0.0 else squared + m * difference.abs().sum(-1)


def _derivative(x: Tensor, y: Tensor, cost: Cost) -> Any:
    q, m = _parts(cost)
    difference = _symbolic(x, 1) - _symbolic(y, 0)
    if q == 0.0:
        return difference.sign()
    return 2.0 * difference if m == 0.0 else 2.0 * difference + m * difference.sign()
