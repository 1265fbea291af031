"""The Sinkhorn iteration on scalings of an absorbed kernel: two matrix-vector products each.

With potentials (f⁰, g⁰) absorbed, K_ij = exp((f⁰_i + g⁰_j − C_ij)/λ), and the scalings
u = exp((f − f⁰)/λ), v = exp((g − g⁰)/λ) obey u_i = 1/Σ_j K_ij b_j v_j, v_j = 1/Σ_i K_ij a_i u_i.
(f⁰, g⁰) is a pair of hard c-transforms, so every row and every column of K has largest entry 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.transport.log_domain import CHECK_EVERY, SinkhornState
from fedsink.transport.problem import Problem


@dataclass(frozen=True)
class _Limits:
    """The exponent at which K is cut off, and how far scalings may drift before an absorption.

    The floor keeps K positive, so that no sum is ever 0 (or slow, as subnormal numbers are).
    Plan entries raised by the floor weigh at most growth²·e^floor ≤ 1e-10 of the plan.
    """

    floor: float
    growth: float


_LIMITS = {torch.float32: _Limits(-60.0, 1e8), torch.float64: _Limits(-450.0, 1e80)}
# An absorption costs about two iterations in the log domain: after this many they are faster.
_MOST_ABSORPTIONS = 20


def supports(lam: float, cost_range: float) -> bool:
    """Returns whether λ is so large against a problem's cost range that scalings pay.

    Below range/1000 nearly every iteration would have to absorb.
    """
    return lam * 1000.0 >= cost_range


def iterate(
    problem: Problem, state: SinkhornState, max_iterations: int, tolerance: float
) -> SinkhornState:
    """Alternates row and column scalings until the row violation is within the tolerance.

    If scalings have to be absorbed too often, the returned state has finished=False and finite
    potentials, from which `log_domain.iterate` continues.
    """
    limits = _LIMITS[problem.cost.dtype]
    a, b = problem.log_a.exp(), problem.log_b.exp()
    kernel = _Kernel(problem, limits)
    s, s_next, u = (torch.empty_like(a) for _ in range(3))
    t, v = torch.empty_like(b), torch.empty_like(b)
    iteration = int(state.iterations.max())
    g: Tensor | None = None
    for _ in range(_MOST_ABSORPTIONS):
        # s = K(b∘v) and u = a/s, t = Kᵀ(a∘u) and v = b/t: the weights live in u and v here.
        kernel.absorb(g)
        torch.mul(b, 1.0 if g is None else kernel.scalings(g), out=v)
        kernel.rows(v, s)
        while True:
            torch.div(a, s, out=u)
            kernel.columns(u, t)
            torch.div(b, t, out=v)
            iteration += 1
            last = iteration >= max_iterations
            if not last and iteration % CHECK_EVERY:
                kernel.rows(v, s)
                continue
            within = _bounded(s, t, limits.growth)
            kernel.rows(v, s_next)
            met = None
            if tolerance > 0.0:
                # Row sums of the plan are a∘(s_next/s).
                error = torch.div(s_next, s).sub_(1.0).abs_().mul_(a).sum(-1)
                met = (error <= tolerance) & within
            if not bool((within | state.converged).all()):
                if met is not None:  # no problem waits for another one's absorption
                    state.update(*kernel.potentials(s, t), iteration, met, only=met)
                break
            if last or (met is not None and bool(met.any())):
                state.update(*kernel.potentials(s, t), iteration, met)
            if last or bool(state.converged.all()):
                state.finished = True
                return state
            s, s_next = s_next, s
        f, g = kernel.potentials(s, t)
        finite = torch.isfinite(f.sum(-1) + g.sum(-1))
        if not bool((finite | state.converged).all()):
            return state
        state.update(f, g, iteration)
        g = state.g
        if iteration >= max_iterations:
            break
    return state


class _Kernel:
    """K with the potentials it has absorbed, and its products with vectors."""

    def __init__(self, problem: Problem, limits: _Limits) -> None:
        self._problem, self._limits = problem, limits
        self._kernel = torch.empty_like(problem.cost)
        self._f, self._g = problem.log_a, problem.log_b
        self.rows: Callable[[Tensor, Tensor], None]
        self.columns: Callable[[Tensor, Tensor], None]
        self.rows, self.columns = _products(self._kernel)

    def absorb(self, g: Tensor | None) -> None:
        """Builds K around hard c-transforms of g, or of 0 if None."""
        problem, kernel = self._problem, self._kernel
        real_rows, real_columns = problem.real_rows, problem.real_columns
        # f⁰_i = min_j C_ij − g_j, then g⁰_j = min_i C_ij − f⁰_i ≥ g_j, over real points.
        shifted = (
            problem.cost if g is None else torch.sub(problem.cost, g.unsqueeze(-2), out=kernel)
        )
        self._f = _smallest(shifted, real_columns, -1)
        torch.sub(problem.cost, self._f.unsqueeze(-1), out=kernel)
        self._g = _smallest(kernel, real_rows, -2)
        kernel.sub_(self._g.unsqueeze(-2)).mul_(-1.0 / problem.lam)
        kernel.clamp_(min=self._limits.floor, max=0.0).exp_()

    def scalings(self, g: Tensor) -> Tensor:
        """Returns v = exp((g − g⁰)/λ), which restores g, within the limits of growth."""
        drift = math.log(self._limits.growth)
        return ((g - self._g) / self._problem.lam).clamp_(-drift, drift).exp_()

    def potentials(self, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Returns f = f⁰ − λ log s and g = g⁰ − λ log t."""
        lam = self._problem.lam
        return torch.add(self._f, s.log(), alpha=-lam), torch.add(self._g, t.log(), alpha=-lam)


def _products(
    kernel: Tensor,
) -> tuple[Callable[[Tensor, Tensor], None], Callable[[Tensor, Tensor], None]]:
    """Returns in-place v ↦ K v and u ↦ Kᵀ u; a single problem takes the faster mv."""
    transposed = kernel.transpose(-1, -2)
    if kernel.shape[0] == 1:
        matrix, transposed_matrix = kernel[0], transposed[0]

        def rows(v: Tensor, out: Tensor) -> None:
            torch.mv(matrix, v[0], out=out[0])

        def columns(u: Tensor, out: Tensor) -> None:
            torch.mv(transposed_matrix, u[0], out=out[0])

    else:

        def rows(v: Tensor, out: Tensor) -> None:
            torch.bmm(kernel, v.unsqueeze(-1), out=out.unsqueeze(-1))

        def columns(u: Tensor, out: Tensor) -> None:
            torch.bmm(transposed, u.unsqueeze(-1), out=out.unsqueeze(-1))

    return rows, columns


def _smallest(values: Tensor, real: Tensor | None, dim: int) -> Tensor:
    """Returns the minimum over `dim` among real points, 0 where there are none."""
    if real is None:
        return values.amin(dim)
    values = values.masked_fill(~real.unsqueeze(-2 if dim == -1 else -1), math.inf)
    return values.amin(dim).nan_to_num_(posinf=0.0)


def _bounded(s: Tensor, t: Tensor, growth: float) -> Tensor:
    """Returns which problems have sums between 1/growth and growth, (B,)."""
    ranges = (torch.aminmax(sums, dim=-1) for sums in (s, t))
    low_s, high_s, low_t, high_t = (end for ends in ranges for end in ends)
    low, high = torch.minimum(low_s, low_t), torch.maximum(high_s, high_t)
    return (low * growth >= 1.0) & (high <= growth)
