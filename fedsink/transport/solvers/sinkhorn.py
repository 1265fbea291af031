"""Sinkhorn's algorithm for entropic transport, batched and stopped by its marginal error."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from fedsink.transport.problem import Problem, prepare
from fedsink.transport.solution import Solution
from fedsink.transport.solvers import exp_domain, log_domain
from fedsink.transport.solvers.annealed import warm_start
from fedsink.transport.solvers.log_domain import CHECK_EVERY, Progress

Domain = Literal["auto", "log", "exp"]


def solve(
    cost_matrix: Tensor,
    lam: float,
    *,
    log_a: Tensor | None = None,
    log_b: Tensor | None = None,
    max_iterations: int = 1000,
    tolerance: float = 1e-3,
    start: Tensor | None = None,
    domain: Domain = "auto",
) -> Solution:
    """Return potentials of W(a, b) = min_π ⟨C, π⟩ + λ·KL(π ‖ a⊗b) for each problem.

    One iteration is f_i = −λ·LSE_j(log b_j + (g_j − C_ij)/λ), then the same for g, so that
    columns hold exactly and only rows are violated (Cuturi 2013; Peyré and Cuturi 2019,
    eq. 4.43). It stops once Σ_i |Σ_j P_ij − a_i| ≤ tolerance, or after max_iterations.
    Problems of one batch do not influence each other: each keeps the potentials at which it
    met the tolerance. No gradient is recorded; see `losses` for those of W.

    Resolution: potentials are rounded to the dtype, so marginal errors below ε·max|C|/λ with
    ε = 1.2e-7 (float32) or 2.2e-16 (float64) cannot be seen or corrected; for such λ use float64.

    Args:
        cost_matrix: C, (..., n, m), float32 or float64, finite.
        lam: λ > 0, in units of cost.
        log_a: log-weights (..., n) of the source points, −∞ for padding; uniform if None.
            Padding gives the result of the problem without it, and potentials 0.
        log_b: the same for the target points, (..., m).
        max_iterations: most iterations, ≥ 1.
        tolerance: on the L1 norm of the row violation; 0 runs exactly max_iterations.
        start: a potential g (..., m) to begin from, as of an earlier solution; 0 if None.
        domain: "exp" multiplies by a kernel (fast, for λ ≥ range of C / 1000; it continues in
            the log domain where it would lose precision), "log" works for every λ, and begins
            with an annealed schedule where λ is below that limit; "auto" chooses by λ.

    Raises:
        ValueError: for input as described that is invalid, with the value received.
    """
    if max_iterations < 1 or not tolerance >= 0.0:
        raise ValueError(
            f"At least 1 iteration and a tolerance ≥ 0 are needed, got max_iterations="
            f"{max_iterations} and tolerance={tolerance}."
        )
    if domain not in ("auto", "log", "exp"):
        raise ValueError(f'The domain must be "auto", "log" or "exp", got "{domain}".')
    problem = prepare(cost_matrix, lam, log_a, log_b)
    progress = Progress.begin(problem, _begin_at(start, problem))
    supported = exp_domain.supports(problem)
    if domain == "exp" or (domain == "auto" and supported):
        progress = exp_domain.iterate(problem, progress, max_iterations, tolerance, CHECK_EVERY)
        if progress.finished:
            return _solution(problem, progress)
    elif start is None and not supported:
        progress = warm_start(problem, max_iterations)
    progress = log_domain.iterate(problem, progress, max_iterations, tolerance, CHECK_EVERY)
    return _solution(problem, progress)


def _begin_at(start: Tensor | None, problem: Problem) -> Tensor | None:
    """Return the potential to begin from with one batch dimension, 0 where it is padding."""
    if start is None:
        return None
    shape = (*problem.batch_shape, problem.log_b.shape[-1])
    try:
        g = start.detach().to(problem.log_b).expand(shape).reshape(problem.log_b.shape)
    except RuntimeError:
        raise ValueError(
            f"The start must be a potential g of shape {shape}, got {tuple(start.shape)}."
        ) from None
    if problem.real_columns is not None:
        g = g.masked_fill(~problem.real_columns, 0.0)
    if not bool(g.isfinite().all()):
        raise ValueError("The start must be finite, got NaN or infinite values: use start=None.")
    return g


def _solution(problem: Problem, progress: Progress) -> Solution:
    return problem.solution(progress.f, progress.g, progress.iterations, progress.converged)
