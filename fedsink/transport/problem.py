"""The interface of solvers, and the batch of problems that their loops work on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from fedsink.transport.solution import Solution

Points = tuple[Tensor, Tensor]
"""x (..., n, d) and y (..., m, d)."""
Weights = Tensor | None
"""Log-weights of points, (..., n), −∞ for padding; uniform if None."""

# Far below the resolution of a sum whose largest term is 1.
_FLOORS = {torch.float32: -60.0, torch.float64: -300.0}


class Solver(Protocol):
    """Anything that solves for potentials, given the cost matrix and the points behind it."""

    def __call__(
        self, cost: Tensor, lam: float, points: Points, log_a: Weights = None, log_b: Weights = None
    ) -> Solution:
        """Returns the solution of W(a, b) for a cost matrix C (..., n, m) and λ = lam."""
        ...


@dataclass(frozen=True)
class Problem:
    """Costs and weights with one leading batch dimension, as the loops of all solvers take them.

    Points of weight zero (padding) have zero cost and are left out by their weight. A measure
    without any point of positive weight is replaced by a uniform one, so that no loop meets
    0/0; its potentials are set to zero again by `solution`.

    Attributes:
        cost: C, (B, n, m), zero in padded rows and columns.
        lam: λ in units of cost.
        log_a, log_b: working log-weights, (B, n) and (B, m).
        real_rows, real_columns: which points are no padding, None if all are real.
        cost_range: max C − min C over the real entries of each problem, (B,), units of cost.
        largest: max |C| over them, or a bound on it, (B,).
        batch_shape: the caller's batch dimensions, which B flattens.
        given_log_a, given_log_b: the caller's log-weights, in its batch shape.
        floor: smallest exponent, where exponents are cut off (see `bounded`); else None.
    """

    cost: Tensor
    lam: float
    log_a: Tensor
    log_b: Tensor
    real_rows: Tensor | None
    real_columns: Tensor | None
    cost_range: Tensor
    largest: Tensor
    batch_shape: torch.Size
    given_log_a: Tensor
    given_log_b: Tensor
    floor: float | None = None

    def solution(
        self,
        f: Tensor,
        g: Tensor,
        iterations: Tensor,
        converged: Tensor,
        f_before: Tensor | None = None,
        g_before: Tensor | None = None,
    ) -> Solution:
        """Returns the result in the caller's batch shape, with zero potentials at padding."""
        shape, empty = self.batch_shape, self._empty()

        def potential(values: Tensor, real: Tensor | None) -> Tensor:
            values = values if real is None else values.masked_fill(~real, 0.0)
            values = values if empty is None else values.masked_fill(empty.unsqueeze(-1), 0.0)
            return values.reshape(*shape, values.shape[-1])

        if empty is not None:
            iterations = iterations.masked_fill(empty, 0)
            converged = converged & ~empty
        return Solution(
            f=potential(f, self.real_rows),
            g=potential(g, self.real_columns),
            cost_matrix=self.cost.reshape(*shape, *self.cost.shape[1:]),
            lam=self.lam,
            log_a=self.given_log_a,
            log_b=self.given_log_b,
            iterations=iterations.reshape(shape),
            converged=converged.reshape(shape),
            f_before=None if f_before is None else potential(f_before, self.real_rows),
            g_before=None if g_before is None else potential(g_before, self.real_columns),
            floor=self.floor,
        )

    def part(self, chosen: Tensor) -> Problem:
        """Returns some problems of the batch, by their numbers (k,), as a batch of their own."""
        log_a, log_b = self.log_a[chosen], self.log_b[chosen]
        return replace(
            self,
            cost=self.cost[chosen],
            log_a=log_a,
            log_b=log_b,
            real_rows=None if self.real_rows is None else self.real_rows[chosen],
            real_columns=None if self.real_columns is None else self.real_columns[chosen],
            cost_range=self.cost_range[chosen],
            largest=self.largest[chosen],
            batch_shape=torch.Size([len(chosen)]),
            given_log_a=log_a,
            given_log_b=log_b,
        )

    def _empty(self) -> Tensor | None:
        """Returns which problems have a measure without any real point, (B,)."""
        empty = None
        for real in (self.real_rows, self.real_columns):
            if real is not None:
                lacking = ~real.any(-1)
                empty = lacking if empty is None else empty | lacking
        return empty


def prepare(cost_matrix: Tensor, lam: float, log_a: Weights, log_b: Weights) -> Problem:
    """Returns a solver's input, validated, with one batch dimension.

    Raises ValueError for a cost matrix that is not finite, float32 or float64, (..., n, m) with
    n, m ≥ 1, for λ that is not a positive finite number, for log-weights of another shape or
    that are NaN, and for weights that do not sum to one (except those of an all-padded measure).
    """
    if (
        cost_matrix.dim() < 2
        or cost_matrix.numel() == 0
        or cost_matrix.dtype not in (torch.float32, torch.float64)
    ):
        raise ValueError(
            "The cost matrix must have shape (..., n, m) with n, m ≥ 1 in float32 or float64, got "
            f"shape {tuple(cost_matrix.shape)} of {cost_matrix.dtype}."
        )
    if not (math.isfinite(lam) and lam > 0.0):
        raise ValueError(
            f"The regularisation λ must be a positive finite number in units of cost, got {lam}."
        )
    shape = cost_matrix.shape[:-2]
    n, m = cost_matrix.shape[-2:]
    cost = cost_matrix.detach().reshape(-1, n, m)
    given_a, rows, real_rows = _weights(log_a, n, "log_a", cost, shape)
    given_b, columns, real_columns = _weights(log_b, m, "log_b", cost, shape)
    if real_rows is None and real_columns is None:
        low, high = torch.aminmax(cost.flatten(1), dim=1)
    else:
        real = torch.ones_like(cost, dtype=torch.bool)
        real = real if real_rows is None else real & real_rows.unsqueeze(-1)
        real = real if real_columns is None else real & real_columns.unsqueeze(-2)
        cost = cost.masked_fill(~real, 0.0)
        low, high = _range(cost, real)
    lowest, highest = float(low.amin()), float(high.amax())
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        raise ValueError(
            f"The cost matrix must be finite, got values from {lowest} to {highest}: check the "
            "points."
        )
    largest = max(abs(lowest), abs(highest))
    if largest / lam > math.sqrt(torch.finfo(cost.dtype).max):
        raise ValueError(
            f"λ = {lam} is too small for costs up to {largest:g} in {cost.dtype}: raise λ or "
            "rescale the points."
        )
    return Problem(
        cost=cost,
        lam=float(lam),
        log_a=rows,
        log_b=columns,
        real_rows=real_rows,
        real_columns=real_columns,
        cost_range=high - low,
        largest=torch.maximum(low.abs(), high.abs()),
        batch_shape=shape,
        given_log_a=given_a,
        given_log_b=given_b,
    )


def bounded(
    cost_matrix: Tensor, lam: float, log_a: Weights, log_b: Weights, largest_cost: float
) -> Problem:
    """Returns a solver's input with one batch dimension, without reading a cost or a weight.

    Which loops run, how long they run and whether this raises depends only on λ and
    `largest_cost`, a public bound on C. Padding is left out by its weight; its costs must be
    finite. Both measures need a point of positive weight. Wrong costs or weights give a wrong
    result.

    Exponents are cut off where they no longer matter, padding included: exp takes many times longer
    where its result underflows, so the time would depend on the costs.

    Raises:
        ValueError: for λ outside 1e-30..1e30, or below what `largest_cost` admits.
    """
    if not 1e-30 <= lam <= 1e30:
        raise ValueError(f"λ must lie in 1e-30..1e30 for a fixed amount of work, got {lam}.")
    if not largest_cost / lam <= math.sqrt(torch.finfo(cost_matrix.dtype).max):
        raise ValueError(
            f"λ = {lam} is too small for costs up to {largest_cost:g} in {cost_matrix.dtype}: "
            "raise λ or rescale the points."
        )
    shape = cost_matrix.shape[:-2]
    n, m = cost_matrix.shape[-2:]
    cost = cost_matrix.detach().reshape(-1, n, m)

    def weights(given: Tensor | None, points: int) -> Tensor:
        uniform = cost.new_full((), -math.log(points))
        return (uniform if given is None else given.detach().to(cost)).expand(*shape, points)

    rows, columns = weights(log_a, n), weights(log_b, m)
    return Problem(
        cost=cost,
        lam=float(lam),
        log_a=rows.reshape(-1, n),
        log_b=columns.reshape(-1, m),
        real_rows=None,
        real_columns=None,
        cost_range=cost.new_full(cost.shape[:1], largest_cost),
        largest=cost.new_full(cost.shape[:1], largest_cost),
        batch_shape=shape,
        given_log_a=rows,
        given_log_b=columns,
        floor=_FLOORS[cost.dtype],
    )


def _weights(
    given: Tensor | None, points: int, name: str, cost: Tensor, shape: torch.Size
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns the weights as the caller sees them, as the loops use them, and what is real."""
    if given is None:
        uniform = cost.new_full((cost.shape[0], points), -math.log(points))
        return uniform.reshape(*shape, points), uniform, None
    try:
        full = given.detach().to(cost).expand(*shape, points)
    except RuntimeError:
        raise ValueError(
            f"{name} must have a shape that expands to {(*shape, points)}, got "
            f"{tuple(given.shape)}."
        ) from None
    log_weights = full.reshape(-1, points)
    mass = log_weights.exp()
    real = mass > 0.0
    has_padding = not bool(real.all())
    total = mass.sum(-1)
    wrong = ~((total - 1.0).abs() <= 1e-3)
    if has_padding:
        wrong &= real.any(-1) | log_weights.isnan().any(-1)
    if bool(wrong.any()):
        raise ValueError(
            f"The weights exp({name}) must sum to 1 in each problem, got a sum of "
            f"{float(total[wrong][0]):g}: subtract their logsumexp."
        )
    if not has_padding:
        return full, log_weights, None
    # A measure of nothing but padding gets uniform weights; its potentials are erased at the end.
    empty = ~real.any(-1, keepdim=True)
    working = log_weights.masked_fill(~real, -math.inf).masked_fill(empty, -math.log(points))
    return full, working, real


def _range(cost: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the smallest and largest real entry of each problem, 0 where there is none."""
    low = cost.masked_fill(~real, math.inf).amin((-1, -2))
    high = cost.masked_fill(~real, -math.inf).amax((-1, -2))
    lacking = ~real.any(-1).any(-1)
    return low.masked_fill(lacking, 0.0), high.masked_fill(lacking, 0.0)
