"""A transport gradient that is a sum over records, each clipped to a bound Δ.

In the Sinkhorn gradient Σ_j P_ij (x_i − y_j) the plan couples all records. Here the potential f
comes from generated points only (`losses.potential`), and each record chooses its rows by a soft
c-transform (the semi-dual of Genevay et al. 2016, eq. 7): w_ij = softmax_i((f_i − c(x_i, y_j))/λ).

`clipped_sums` clips at the points, for many clients at once; `clipped_pullback` clips at the
weights of a generator. A sum over sampled records hides who was sampled only if its running time,
memory and errors do so too: in `clipped_sums` records fill a number of places, and all that
decides the course of the computation is public.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fedsink.privacy.clips import clip_to_norm

# Room for rounding: contributions are clipped to Δ(1 − 2⁻¹⁶), so that what all roundings of a sum
# can move (less than Δ·2⁻¹⁶, see matmul_keeps_the_bound) still fits below Δ.
_SLACK = 2.0**-16
_UNIT = 2.0**-53
# Below this bound, squares of numbers that matter would vanish in a norm.
_SMALLEST_PLAIN = 1e-140
_FLOOR = -300.0  # of exponents; the square of its exp does not underflow either


def clipped_sums(
    x: Tensor, y: Tensor, f: Tensor, lam: float, bound: float, *, mask: Tensor, radius: float
) -> Tensor:
    """Returns Σ_j min(1, Δ/‖g_kj‖)·g_kj for each of K problems, shape (K, n, d), float64.

    g_kj = (w_ij(x_ki − y_kj))_i with w_ij = softmax_i((f_ki − ‖x_ki − y_kj‖²)/λ) over the rows i
    that `mask` gives record j. A place of y without any row is empty and contributes zero. One
    matmul sums all places of a problem where public bounds show that its rounding is harmless;
    otherwise every place is computed separately. A single client is K = 1.

    Rows of x that are not finite, or whose f is not, take no part and get zero. A record outside
    the ball of `radius`, or not finite, contributes zero.

    Guarantees:
        - Each record's contribution has L2 norm at most Δ, for any input.
          (test_each_place_contributes_at_most_the_bound)
        - No record changes another record's contribution, so filling or emptying a place moves
          its problem's result by at most Δ, rounding included, and no other problem's.
          (test_no_place_changes_another_ones_contribution)
        - The result is finite for any input. (test_the_oblivious_field_is_finite)
        - Which operations run, on which shapes, depends only on x, f, λ, Δ, the radius and the
          number of places. (test_the_operations_do_not_depend_on_records_or_mask)

    Args:
        x: generated points, (K, n, d), public.
        y: private records in B places, (K, B, d); an empty place may hold any values.
        f: potentials on x, (K, n), in units of cost, public.
        lam: λ > 0, in units of cost (that of ‖x − y‖²).
        bound: Δ > 0, in units of the points.
        mask: which rows a record may choose, (K, n, B) bool, private.
        radius: public bound on ‖y_kj‖₂ of every honest record.

    Raises:
        ValueError: for shapes that disagree, λ ≤ 0 or Δ ≤ 0; never for values of x, y, f or mask.
    """
    if x.dim() != 3 or y.dim() != 3 or x.shape[::2] != y.shape[::2] or f.shape != x.shape[:2]:
        raise ValueError(
            "Points (K, n, d), records (K, B, d) and potentials (K, n) are needed, got shapes "
            f"{tuple(x.shape)}, {tuple(y.shape)} and {tuple(f.shape)}."
        )
    if mask.shape != (*x.shape[:2], y.shape[1]) or mask.dtype != torch.bool:
        raise ValueError(
            f"The mask must be boolean of shape {(*x.shape[:2], y.shape[1])}, got {mask.dtype} of "
            f"shape {tuple(mask.shape)}."
        )
    _check_scales(lam, bound)
    with torch.no_grad():
        x64, f64 = (values.detach().to(torch.float64) for values in (x, f))
        y64 = y.detach().to(torch.float64, copy=True)
        if min(*x.shape[:2], y.shape[1]) == 0:
            return torch.zeros_like(x64)
        rows = x64.isfinite().all(-1) & f64.isfinite()
        squares = torch.einsum("kbd,kbd->kb", y64, y64)  # without a temporary of y's size
        inside = squares <= radius * radius  # false for NaN
        x64, f64 = x64.masked_fill(~rows.unsqueeze(-1), 0.0), f64.masked_fill(~rows, 0.0)
        y64.masked_fill_(~inside.unsqueeze(-1), 0.0)
        squares.masked_fill_(~inside, 0.0)
        mask = mask & rows.unsqueeze(-1) & inside.unsqueeze(-2)
        clip = reduced(bound)
        # From the radius, not from the records: the choice between the two sums must be public.
        reach = x64.square().sum(-1).amax(-1) + radius * radius
        plain = matmul_keeps_the_bound(
            reach, f64.abs().amax(-1), y64.shape[1], x64.shape[-1], lam, clip
        )
        # A branch on public values: a hostile request is slow for every batch.
        if bool(plain.all()):
            return sum_by_matmul(x64, y64, f64, lam, clip, mask, squares)
        sums = torch.zeros_like(x64)
        for k in range(len(x64)):
            if bool(plain[k]):
                sums[k] = sum_by_matmul(x64[k], y64[k], f64[k], lam, clip, mask[k], squares[k])
                continue
            for record, column in zip(y64[k], mask[k].T, strict=True):
                sums[k] += single_contribution(x64[k], record, f64[k], lam, clip, column)
        return sums


def clipped_pullback(
    x: Tensor,
    y: Tensor,
    f: Tensor,
    lam: float,
    bound: float,
    pull: Callable[[Tensor], Tensor],
    mask: Tensor | None = None,
) -> Tensor:
    """Returns Σ_j clip(Jᵀg_j, Δ), (P,) float64, with g_j = (w_ij(x_i − y_j))_i.

    The g_j are those of `clipped_sums`, w_ij = softmax_i((f_i − ‖x_i − y_j‖²)/λ), not clipped at
    the points. Jᵀ = `pull` carries each g_j separately to P weights, where it is scaled
    by min(1, Δ/‖Jᵀg_j‖): the per-sample gradients of DP-SGD (Abadi et al. 2016, Algorithm 1).

    Guarantees:
        - Each record's contribution has L2 norm at most Δ, whatever x, y, f, λ and J are.
        - No record changes another record's contribution, not in its last bit.
        - A record whose contribution is not finite contributes zero.
        - A record that may choose from no row contributes zero.

    Args:
        x: generated points, (n, d), fixed without looking at the private records.
        y: private records, (m, d); m = 0 gives zero.
        f: potential on x, (n,), in units of cost, fixed like x.
        lam: λ > 0, in units of cost (that of ‖x − y‖²).
        bound: Δ > 0, in units of the weights' gradient.
        pull: v ↦ Jᵀv from (n, d) to (P,), linear, fixed like x.
        mask: the rows from which each record may choose, (n, m) bool; None: all.

    Raises:
        ValueError: for shapes that disagree, λ ≤ 0 or Δ ≤ 0; never for values of x, y or f.
    """
    check_field(x, y, f, lam, bound)
    with torch.no_grad():
        x64, y64, f64 = (values.detach().to(torch.float64) for values in (x, y, f))
        total = torch.zeros_like(pull(torch.zeros_like(x)), dtype=torch.float64)
        clip = reduced(bound)  # leaves room for the rounding of the sum
        # One by one: in a batch a record's place could change the rounding of its gradient.
        for number, record in enumerate(y64):
            rows = None if mask is None else mask[:, number]
            pulled = pull(single_contribution(x64, record, f64, lam, math.inf, rows))
            total += clip_to_norm(pulled.unsqueeze(0), clip, slack=0.0).squeeze(0)
    return total


def row_weights(f: Tensor, cost_matrix: Tensor, lam: float, mask: Tensor | None = None) -> Tensor:
    """Returns w_ij = exp((f_i − C_ij)/λ) / Σ_k exp((f_k − C_kj)/λ), shape (..., n, m)."""
    # f has shape (..., n) and C (..., n, m). Each column sums to one, and depends on record j only.
    # With a `mask` (..., n, m) k runs over the rows where it is true, in float64; other rows get
    # weight exactly 0, and a column without any row is zero. The time does not depend on the
    # values: weights below e^−300 of a column's largest are raised to that, as underflows are slow.
    scores = (f.unsqueeze(-1) - cost_matrix) / lam
    if mask is None:
        return torch.softmax(scores, dim=-2)
    scores = scores.to(torch.float64)
    largest = scores.masked_fill(~mask, -math.inf).amax(-2, keepdim=True)
    raised = (scores - largest).clamp_(min=_FLOOR, max=0.0).exp_().masked_fill_(~mask, 0.0)
    # The largest term is 1, so the minimum matters only for columns without any row.
    return raised.div_(raised.sum(-2, keepdim=True).clamp_(min=1.0))


def record_field(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """Returns Σ_j w_ij (x_i − y_j), (..., n, d), by one matmul: the unclipped contributions."""
    # Half the gradient of −λ Σ_j log Σ_i exp((f_i − ‖x_i − y_j‖²)/λ) at x.
    return x * w.sum(-1, keepdim=True) - w @ y


def reduced(bound: float) -> float:
    """Returns the length that contributions are clipped to: rounding still fits below Δ."""
    return bound * (1.0 - _SLACK)


def matmul_keeps_the_bound(
    reach: Tensor, largest_f: Tensor, n_records: int, dimension: int, lam: float, clip: float
) -> Tensor:
    """Returns for each R² in `reach` whether such records may be summed by matmul.

    `largest_f` is max|f| of each problem, or of all of them.

    A matmul may round one record's terms differently when another record comes or goes, and a
    record may change paths then, because the answer depends on the number of records. So both
    paths must agree: three bounds keep what a change can do to the sum of the *other* records
    below Δ·2⁻¹⁸ each (γ_k = k·u bounds the rounding of an inner product of length k, Higham
    2002, §3.1; R² = ‖x_i‖² + ‖y_j‖²; each is counted for both sums that are compared):

    - adding m records' terms moves the sum by at most 8u(m + 2)·m·R;
    - distances move by at most 8u(d + 4)·R², so weights by a factor 1 ± 2δ with
      δ = 8u((d + 4)·R² + max|f|)/λ, and clipped contributions by at most 4δΔ each;
    - the upper bound on ‖g_j‖² exceeds it by at most 16u(d + 4)·R², so clipped contributions
      are shorter than need be by at most 16u(d + 4)·R²/Δ each.
    """
    allowance = _SLACK / 4.0
    summing = 8.0 * _UNIT * (n_records + 2) * n_records * reach.sqrt()
    distance = 8.0 * _UNIT * (dimension + 4) * reach
    exponent = (distance + 8.0 * _UNIT * largest_f) / lam
    if clip < _SMALLEST_PLAIN:
        return torch.zeros_like(reach, dtype=torch.bool)
    # NaN and infinite reach compare false: such records are computed separately.
    return (
        (summing <= allowance * clip)
        & (4.0 * n_records * exponent <= allowance)
        & (2.0 * n_records * distance <= allowance * clip * clip)
    )


def sum_by_matmul(
    x: Tensor,
    y: Tensor,
    f: Tensor,
    lam: float,
    clip: float,
    mask: Tensor | None = None,
    squares: Tensor | None = None,  # ‖y_j‖², (m,), where they are known
) -> Tensor:
    """Returns the clipped sum of records where `matmul_keeps_the_bound`, (n, d) or (B, n, d)."""
    squares = y.square().sum(-1) if squares is None else squares
    reach = x.square().sum(-1, keepdim=True) + squares.unsqueeze(-2)
    product = torch.addmm if x.dim() == 2 else torch.baddbmm
    distances = product(reach, x, y.mT, alpha=-2.0).clamp_(min=0.0)
    w = row_weights(f, distances, lam, mask)
    # Cancellation may make a distance too small; a bound on its error keeps the norm an upper one.
    upper = distances.add_(reach, alpha=8.0 * _UNIT * (x.shape[-1] + 4))
    norms = (w.square() * upper).sum(-2).sqrt()  # ‖g_j‖² = Σ_i w_ij² ‖x_i − y_j‖²
    scales = torch.where(norms > clip, clip / norms, torch.ones_like(norms))
    return record_field(x, y, w.mul_(scales.unsqueeze(-2)))


def single_contribution(
    x: Tensor, record: Tensor, f: Tensor, lam: float, clip: float, mask: Tensor | None = None
) -> Tensor:
    """Returns min(1, Δ/‖g_j‖)·g_j of one record, (n, d), whatever the values; zero if undefined."""
    # `mask` (n,) names the rows it may choose from; `clip` is a `reduced` Δ, or infinite.
    difference = x - record
    column = None if mask is None else mask.unsqueeze(-1)
    w = row_weights(f, difference.square().sum(-1, keepdim=True), lam, column)
    contribution = w * difference
    if column is not None:  # 0·∞ in a row left out
        contribution = contribution.masked_fill(~column, 0.0)
    return clip_to_norm(contribution.reshape(1, -1), clip, slack=0.0).reshape(contribution.shape)


def check_field(x: Tensor, y: Tensor, f: Tensor, lam: float, bound: float) -> None:
    """Raises ValueError for shapes of one problem that disagree, λ ≤ 0 or Δ ≤ 0."""
    if x.dim() != 2 or y.dim() != 2 or x.shape[1] != y.shape[1] or f.shape != x.shape[:1]:
        raise ValueError(
            "Points (n, d), records (m, d) and a potential (n,) are needed, got shapes "
            f"{tuple(x.shape)}, {tuple(y.shape)} and {tuple(f.shape)}."
        )
    _check_scales(lam, bound)


def _check_scales(lam: float, bound: float) -> None:
    if not (math.isfinite(lam) and lam > 0.0):
        raise ValueError(f"The regularisation λ must be a positive finite number, got {lam}.")
    if not (math.isfinite(bound) and bound > 0.0):
        raise ValueError(f"The clip bound Δ must be a positive finite number, got {bound}.")
