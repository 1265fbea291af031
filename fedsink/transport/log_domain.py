"""The Sinkhorn iteration on potentials.

f_i = −λ·LSE_j(log b_j + (g_j − C_ij)/λ), then g from f in the same way (Peyré and Cuturi 2019,
eq. 4.43). It is slower than the iteration on scalings (`exp_domain`), and works for every λ.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.transport.problem import Problem

# Iterations between two checks of the marginal error: a check costs about a fifth of one.
CHECK_EVERY = 3


@dataclass
class SinkhornState:
    """State of an iteration; all tensors have the leading batch dimension B.

    Attributes:
        f, g: potentials, (B, n) and (B, m), in units of cost.
        iterations: iterations done by each problem, (B,).
        converged: which problems have met the tolerance, (B,).
        finished: no other loop has to continue from here.
    """

    f: Tensor
    g: Tensor
    iterations: Tensor
    converged: Tensor
    finished: bool = False

    @classmethod
    def begin(cls, problem: Problem | SoftMinimum) -> SinkhornState:
        """Returns zero potentials and no iterations."""
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
        """Sets the potentials of all problems that had not converged before, or `only` of some.

        A problem that has met the tolerance is never touched again: its result does not
        depend on the other problems in its batch.
        """
        running = ~self.converged if only is None else ~self.converged & only
        if bool(running.all()):
            self.f, self.g = f, g
        else:
            self.f = torch.where(running.unsqueeze(-1), f, self.f)
            self.g = torch.where(running.unsqueeze(-1), g, self.g)
        self.iterations = self.iterations.masked_fill(running, iteration)
        if met is not None:
            self.converged = self.converged | met

    def set_part(self, chosen: Tensor, part: SinkhornState) -> None:
        """Sets the results of some problems, by their numbers (k,)."""
        for name in ("f", "g", "iterations", "converged"):
            getattr(self, name)[chosen] = getattr(part, name)

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
    """Half-iterations f_i = −λ·LSE_j(log b_j + (g_j − C_ij)/λ) without new n×m memory.

    Attributes:
        log_a, log_b: log-weights of the B problems, (B, n) and (B, m).
        lam: the λ of the problems, where their iterations end.
    """

    def __init__(self, problem: Problem) -> None:
        """Allocates the one n×m buffer that all half-iterations share."""
        self.log_a, self.log_b, self.lam = problem.log_a, problem.log_b, problem.lam
        self._problem = problem
        self._buffer = torch.empty_like(problem.cost)

    def rows(self, g: Tensor, lam: float | Tensor) -> Tensor:
        """Returns f, (B, n), from g, (B, m); λ is a number or one per problem (B,)."""
        h = self.log_b + g / _column(lam)
        return -_column(lam) * self._reduce(h.unsqueeze(-2), lam, -1)

    def columns(self, f: Tensor, lam: float | Tensor) -> Tensor:
        """Returns g, (B, m), from f, (B, n); λ is a number or one per problem (B,)."""
        h = self.log_a + f / _column(lam)
        return -_column(lam) * self._reduce(h.unsqueeze(-1), lam, -2)

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


def iterate(
    softmin: SoftMinimum, state: SinkhornState, max_iterations: int, tolerance: float
) -> SinkhornState:
    """Alternates row and column updates until the row violation is within the tolerance.

    The column update comes last, so columns hold exactly and the row violation is the whole
    marginal error. The next row update gives it, every `CHECK_EVERY` iterations.
    """
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


def _violation(softmin: SoftMinimum, f: Tensor, updated: Tensor) -> Tensor:
    """Returns Σ_i |Σ_j P_ij − a_i|, (B,), from f and the next row update at the same g."""
    return (softmin.log_a.exp() * torch.expm1((f - updated) / softmin.lam).abs()).sum(-1)


def _column(lam: float | Tensor) -> float | Tensor:
    return lam.unsqueeze(-1) if isinstance(lam, Tensor) else lam
