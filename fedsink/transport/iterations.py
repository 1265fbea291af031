"""The Sinkhorn iteration, on potentials and on scalings.

On potentials: f_i = −λ·LSE_j(log b_j + (g_j − C_ij)/λ), then g from f in the same way (Peyré and
Cuturi 2019, eq. 4.43). It works for every λ.

On scalings of an absorbed kernel, two matrix-vector products each, it is faster: with potentials
(f⁰, g⁰) absorbed, K_ij = exp((f⁰_i + g⁰_j − C_ij)/λ), and u = exp((f − f⁰)/λ), v = exp((g − g⁰)/λ)
obey u_i = 1/Σ_j K_ij b_j v_j, v_j = 1/Σ_i K_ij a_i u_i. (f⁰, g⁰) is a pair of hard c-transforms, so
every row and every column of K has largest entry 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.transport.problem import Problem

# Iterations between two checks of the marginal error: a check costs about a fifth of one.
CHECK_EVERY = 3


@dataclass
class SinkhornState:
    """State of an iteration; all tensors have the leading batch dimension B."""

    f: Tensor  # potential, (B, n), in units of cost
    g: Tensor  # and (B, m)
    iterations: Tensor  # done by each problem, (B,)
    converged: Tensor  # which problems have met the tolerance, (B,)
    finished: bool = False  # no other loop has to continue from here

    @classmethod
    def begin(cls, problem: Problem | SoftMinimum) -> SinkhornState:
        batch = len(problem.log_a)
        return cls(
            f=torch.zeros_like(problem.log_a),
            g=torch.zeros_like(problem.log_b),
            iterations=problem.log_a.new_zeros(batch, dtype=torch.long),
            converged=problem.log_a.new_zeros(batch, dtype=torch.bool),
        )

    def update(
        self,
        f: Tensor,
        g: Tensor,
        iteration: int,
        met: Tensor | None = None,
        only: Tensor | None = None,
    ) -> None:
        """Sets the potentials of all problems that had not converged before, or `only` of some."""
        # A problem that has met the tolerance stays: its result does not depend on the others'.
        running = ~self.converged if only is None else ~self.converged & only
        if bool(running.all()):
            self.f, self.g = f, g
        else:
            self.f = torch.where(running.unsqueeze(-1), f, self.f)
            self.g = torch.where(running.unsqueeze(-1), g, self.g)
        self.iterations = self.iterations.masked_fill(running, iteration)
        if met is not None:
            self.converged = self.converged | met

    def resolved(self, lam: float, tolerance: float, largest: Tensor | None = None) -> Tensor:
        """Returns which problems have potentials fine enough to see the tolerance at λ, (B,).

        Potentials are rounded by up to ε·max(|f|, |g|, λ), ε that of their dtype: λ scales a
        logarithm of a sum near 1. Entries of a plan are rounded by that over λ, and the value by
        that over `largest`, max |C| (None: that of the potentials). Where rounding exceeds the
        tolerance, iterations that come to rest prove nothing.
        """
        potentials = torch.maximum(self.f.abs().amax(-1), self.g.abs().amax(-1))
        largest = potentials if largest is None else largest
        coarsest = potentials.clamp(min=lam)
        return torch.finfo(coarsest.dtype).eps * coarsest <= tolerance * largest.clamp(max=lam)


class SoftMinimum:
    """Half-iterations f_i = −λ·LSE_j(log b_j + (g_j − C_ij)/λ) without new n×m memory."""

    def __init__(self, problem: Problem) -> None:
        self.log_a, self.log_b, self.lam = problem.log_a, problem.log_b, problem.lam
        self._problem = problem
        self._buffer = torch.empty_like(problem.cost)  # that all half-iterations share

    def rows(self, g: Tensor, lam: float | Tensor) -> Tensor:
        """Returns f, (B, n), from g, (B, m); λ is a number or one per problem (B,)."""
        column = lam.unsqueeze(-1) if isinstance(lam, Tensor) else lam
        return -column * self._reduce((self.log_b + g / column).unsqueeze(-2), lam, -1)

    def columns(self, f: Tensor, lam: float | Tensor) -> Tensor:
        """Returns g, (B, m), from f, (B, n); λ is a number or one per problem (B,)."""
        column = lam.unsqueeze(-1) if isinstance(lam, Tensor) else lam
        return -column * self._reduce((self.log_a + f / column).unsqueeze(-1), lam, -2)

    def _reduce(self, h: Tensor, lam: float | Tensor, dim: int) -> Tensor:
        buffer, cost = self._buffer, self._problem.cost
        if isinstance(lam, Tensor):
            torch.mul(cost, -1.0 / lam.view(-1, 1, 1), out=buffer).add_(h)
        else:
            torch.add(h, cost, alpha=-1.0 / lam, out=buffer)
        largest = buffer.amax(dim, keepdim=True)
        buffer.sub_(largest)
        if self._problem.floor is not None:
            buffer.clamp_(min=self._problem.floor)
        total = buffer.exp_().sum(dim)
        return total.log_().add_(largest.squeeze(dim))


def iterate_potentials(
    softmin: SoftMinimum, state: SinkhornState, max_iterations: int, tolerance: float
) -> SinkhornState:
    """Alternates row and column updates until the row violation is within the tolerance."""
    # The column update comes last: columns hold exactly, and the row violation is the whole error.
    done = int(state.iterations.masked_fill(state.converged, 0).max())
    f, g = state.f, state.g
    fresh = True
    for iteration in range(done, max_iterations):
        updated = softmin.rows(g, softmin.lam)
        if not fresh and tolerance > 0.0 and (iteration - done) % CHECK_EVERY == 0:
            state.update(f, g, iteration, _violation(softmin, f, updated) <= tolerance)
            if bool(state.converged.all()):
                return state
        f, fresh = updated, False
        g = softmin.columns(f, softmin.lam)
    if not fresh:
        met = None
        if tolerance > 0.0:
            met = _violation(softmin, f, softmin.rows(g, softmin.lam)) <= tolerance
        state.update(f, g, max_iterations, met)
    return state


def iterate_symmetric(
    softmin: SoftMinimum, state: SinkhornState, max_iterations: int, tolerance: float
) -> SinkhornState:
    """Iterates f ← (f + softmin(f))/2 for clouds with themselves, g = f."""
    # Feydy et al. 2019, §3.1. The error halves each time, whatever λ is; alternating updates crawl
    # on such problems.
    for iteration in range(1, max_iterations + 1):
        updated = softmin.rows(state.f, softmin.lam)
        met = _violation(softmin, state.f, updated) <= tolerance if tolerance > 0.0 else None
        f = (state.f + updated) / 2
        state.update(f, f, iteration, met)
        if bool(state.converged.all()):
            break
    return state


def _violation(softmin: SoftMinimum, f: Tensor, updated: Tensor) -> Tensor:
    """Returns Σ_i |Σ_j P_ij − a_i|, (B,), from f and the next row update at the same g."""
    return (softmin.log_a.exp() * torch.expm1((f - updated) / softmin.lam).abs()).sum(-1)


@dataclass(frozen=True)
class _Limits:
    """Where K is cut off, and how far scalings may drift before an absorption."""

    # The floor keeps K positive, so that no sum is ever 0, or slow as subnormal numbers are. Plan
    # entries raised by it weigh at most growth²·e^floor ≤ 1e-10 of the plan.

    floor: float
    growth: float


_LIMITS = {torch.float32: _Limits(-60.0, 1e8), torch.float64: _Limits(-450.0, 1e80)}
# An absorption costs about two iterations in the log domain: after this many they are faster.
_MOST_ABSORPTIONS = 20


def iterate_scalings(
    problem: Problem, state: SinkhornState, max_iterations: int, tolerance: float
) -> SinkhornState:
    """Alternates row and column scalings until the row violation is within the tolerance."""
    # After too many absorptions the state is not `finished`, and its potentials are finite.
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
        kernel = self._kernel = torch.empty_like(problem.cost)
        # K and Kᵀ; a single problem takes the faster mv.
        self._matrices = (kernel[0], kernel[0].T) if len(kernel) == 1 else (kernel, kernel.mT)
        self._f, self._g = problem.log_a, problem.log_b

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

    def rows(self, v: Tensor, out: Tensor) -> None:
        """Returns K v, into `out`."""
        _multiply(self._matrices[0], v, out)

    def columns(self, u: Tensor, out: Tensor) -> None:
        """Returns Kᵀ u, into `out`."""
        _multiply(self._matrices[1], u, out)

    def scalings(self, g: Tensor) -> Tensor:
        """Returns v = exp((g − g⁰)/λ), which restores g, within the limits of growth."""
        drift = math.log(self._limits.growth)
        return ((g - self._g) / self._problem.lam).clamp_(-drift, drift).exp_()

    def potentials(self, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Returns f = f⁰ − λ log s and g = g⁰ − λ log t."""
        lam = self._problem.lam
        return torch.add(self._f, s.log(), alpha=-lam), torch.add(self._g, t.log(), alpha=-lam)


def _multiply(matrix: Tensor, v: Tensor, out: Tensor) -> None:
    if matrix.dim() == 2:
        torch.mv(matrix, v[0], out=out[0])
    else:
        torch.bmm(matrix, v.unsqueeze(-1), out=out.unsqueeze(-1))


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
