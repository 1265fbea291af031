"""The annealed transport gradient by three libraries behind one interface, with the same answers.

`native` is this package: the n×m cost in memory, no factor d. `geomloss` runs GeomLoss' loop on the
same costs and backpropagates, as a second opinion. `keops` never holds n×m numbers either, for
problems beyond the memory of a GPU; it generates and compiles code at the first call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedsink.errors import ConfigError
from fedsink.transport.costs import Cost
from fedsink.transport.losses import transport_gradient
from fedsink.transport.solvers.annealed_problem import AnnealedProblem
from fedsink.transport.solvers.keops import keops
from fedsink.transport.solvers.solver import AnnealedSolver

Backend = Callable[[AnnealedProblem], tuple[Tensor, Tensor]]
"""Returns W (a scalar, in units of cost) and ∂W/∂x, (n, d)."""


def native(problem: AnnealedProblem) -> tuple[Tensor, Tensor]:
    """`transport_gradient` with `AnnealedSolver`."""
    result = transport_gradient(
        problem.x,
        problem.y,
        problem.cost,
        problem.lam,
        log_a=problem.log_a,
        log_b=problem.log_b,
        solver=AnnealedSolver(problem.scaling),
    )
    return result.value, result.gradient


def geomloss(problem: AnnealedProblem) -> tuple[Tensor, Tensor]:
    """GeomLoss' SamplesLoss (p = 1, blur = λ), with the gradient by its own backpropagation."""
    from geomloss import SamplesLoss

    def matrix(first: Tensor, second: Tensor) -> Tensor:
        values: Tensor = _Differentiable.apply(first, second, problem.cost)
        return values

    loss = SamplesLoss(
        "sinkhorn",
        p=1,
        blur=problem.lam,
        scaling=problem.scaling,
        diameter=problem.diameter,
        debias=False,
        cost=matrix,
        backend="tensorized",
    )
    log_a, log_b = problem.log_weights
    with torch.enable_grad():
        leaf = problem.x.detach().clone().requires_grad_()
        value = loss(log_a.exp(), leaf, log_b.exp(), problem.y.detach()).reshape(())
        (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


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
