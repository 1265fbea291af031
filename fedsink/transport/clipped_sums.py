"""The clipped sums of K clients' records: one batch, whose course depends on public numbers alone.

A gradient of sampled records hides who was sampled only if its running time, memory and errors
do so too. Here records fill a number of places, and whatever decides the course of the
computation is public. A client alone is K = 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedsink.transport.record_clip import (
    check_bounds,
    matmul_keeps_the_bound,
    reduced,
    single_contribution,
    sum_by_matmul,
)


def clipped_sums(
    x: Tensor,
    y: Tensor,
    f: Tensor,
    lam: float,
    bound: float,
    *,
    mask: Tensor,
    radius: float,
    unseen: bool = False,
) -> Tensor:
    """Return Σ_j min(1, Δ/‖g_kj‖)·g_kj for each of K problems, shape (K, n, d), float64.

    g_kj = (w_ij(x_ki − y_kj))_i with w_ij = softmax_i((f_ki − ‖x_ki − y_kj‖²)/λ) over the rows i
    that `mask` gives record j. A place of y without any row is empty and contributes zero. One
    matmul sums all places of a problem where public bounds show that its rounding is harmless;
    else every place is taken by itself.

    Rows of x that are not finite, or whose f is not, take no part and get zero. A record outside
    the ball of `radius`, or not finite, contributes zero.

    Guarantees:
        - Each record's contribution has L2 norm at most Δ, for any input.
          (test_each_place_contributes_at_most_the_bound)
        - No record changes another record's contribution, so filling or emptying a place moves
          its problem's result by at most Δ, rounding included, and no other problem's.
          (test_no_place_changes_another_ones_contribution)
        - The result is finite for any input. (test_the_oblivious_field_is_finite)
        - Which operations run, on what shapes, depends on x, f, λ, Δ, the radius and the number
          of places alone. (test_the_operations_do_not_depend_on_records_or_mask)

    Args:
        x: generated points, (K, n, d), public.
        y: private records in B places, (K, B, d), whatever stands in an empty place.
        f: potentials on x, (K, n), in units of cost, public.
        lam: λ > 0, in units of cost (that of ‖x − y‖²).
        bound: Δ > 0, in units of the points.
        mask: which rows a record may choose, (K, n, B) bool, private.
        radius: public bound on ‖y_kj‖₂ of every honest record.
        unseen: whether to look at no value from the host, as the recording of a CUDA graph needs.
            A problem whose places would be taken one by one then gets zero: see
            `summed_at_once` for whether there can be any.

    Raises:
        ValueError: for shapes that disagree, λ ≤ 0 or Δ ≤ 0; never for values of x, y, f or mask.
    """
    _check_shapes(x, y, f, mask)
    check_bounds(lam, bound)
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
        reach = x64.square().sum(-1).amax(-1) + radius * radius
        plain = matmul_keeps_the_bound(
            reach, f64.abs().amax(-1), y64.shape[1], x64.shape[-1], lam, clip
        )
        if unseen:
            sums = sum_by_matmul(x64, y64, f64, lam, clip, mask, squares)
            return torch.where(plain.reshape(-1, 1, 1), sums, 0.0)
        # A branch on public values: a hostile request is slow for every batch.
        if bool(plain.all()):
            return sum_by_matmul(x64, y64, f64, lam, clip, mask, squares)
        return torch.stack(
            [
                sum_by_matmul(x64[k], y64[k], f64[k], lam, clip, mask[k], squares[k])
                if bool(plain[k])
                else _one_by_one(x64[k], y64[k], f64[k], lam, clip, mask[k])
                for k in range(len(x64))
            ]
        )


def summed_at_once(places: int, dimension: int, lam: float, bound: float, radius: float) -> bool:
    """Whether one matmul sums all places for any rows in the ball of `radius`.

    The rows' potentials are centred, as those of `potential` are: at most the largest cost, (2r)².
    """
    reach = torch.tensor([2.0 * radius * radius], dtype=torch.float64)
    plain = matmul_keeps_the_bound(reach, 2.0 * reach, places, dimension, lam, reduced(bound))
    return bool(plain)


def _one_by_one(x: Tensor, y: Tensor, f: Tensor, lam: float, clip: float, mask: Tensor) -> Tensor:
    """The clipped sum of one problem, place by place."""
    total = torch.zeros_like(x)
    for place in range(len(y)):
        total += single_contribution(x, y[place], f, lam, clip, mask[:, place])
    return total


def _check_shapes(x: Tensor, y: Tensor, f: Tensor, mask: Tensor) -> None:
    fits = x.dim() == y.dim() == 3 and x.shape[::2] == y.shape[::2] and f.shape == x.shape[:2]
    if not fits:
        raise ValueError(
            "Points (K, n, d), records (K, B, d) and potentials (K, n) are needed, got shapes "
            f"{tuple(x.shape)}, {tuple(y.shape)} and {tuple(f.shape)}."
        )
    needed = (*x.shape[:2], y.shape[1])
    if mask.shape != needed or mask.dtype != torch.bool:
        raise ValueError(
            f"The mask must be boolean of shape {needed}, got {mask.dtype} of shape "
            f"{tuple(mask.shape)}."
        )
