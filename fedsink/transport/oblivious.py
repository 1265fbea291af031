"""The clipped sum of records with a fixed amount of work: nothing but values depends on records.

A gradient of sampled records hides who was sampled only if its running time, memory and errors
do so too. Here records fill a fixed number of places, and whatever decides the course of the
computation is public.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedsink.transport.record_clip import (
    check_field,
    matmul_keeps_the_bound,
    reduced,
    single_contribution,
    sum_by_matmul,
)


def oblivious_record_field(
    x: Tensor,
    y: Tensor,
    f: Tensor,
    lam: float,
    bound: float,
    *,
    mask: Tensor,
    radius: float,
) -> Tensor:
    """Return Σ_j min(1, Δ/‖g_j‖)·g_j as `clipped_record_field` does, shape (n, d), float64.

    g_j = (w_ij(x_i − y_j))_i with w_ij the softmax over the rows i that `mask` gives record j. A
    place of y without any row is empty and contributes zero. One matmul sums all places where
    public bounds show that its rounding is harmless; else every place is taken by itself.

    Rows of x that are not finite, or whose f is not, take no part and get zero. A record outside
    the ball of `radius`, or not finite, contributes zero.

    Guarantees:
        - Each record's contribution has L2 norm at most Δ, for any input.
          (test_each_place_contributes_at_most_the_bound)
        - No record changes another record's contribution, so filling or emptying a place moves
          the result by at most Δ, rounding included.
          (test_no_place_changes_another_ones_contribution)
        - The result is finite for any input. (test_the_oblivious_field_is_finite)
        - Which operations run, on what shapes, depends on x, f, λ, Δ, the radius and the number
          of places alone. (test_the_operations_do_not_depend_on_records_or_mask)

    Args:
        x: generated points, (n, d), public.
        y: private records in B places, (B, d), whatever stands in an empty place.
        f: potential on x, (n,), in units of cost, public.
        lam: λ > 0, in units of cost (that of ‖x − y‖²).
        bound: Δ > 0, in units of the points.
        mask: which rows a record may choose, (n, B) bool, private.
        radius: public bound on ‖y_j‖₂ of every honest record.

    Raises:
        ValueError: for shapes that disagree, λ ≤ 0 or Δ ≤ 0; never for values of x, y, f or mask.
    """
    check_field(x, y, f, lam, bound)
    if mask.shape != (len(x), len(y)) or mask.dtype != torch.bool:
        raise ValueError(
            f"The mask must be boolean of shape {(len(x), len(y))}, got {mask.dtype} of shape "
            f"{tuple(mask.shape)}."
        )
    with torch.no_grad():
        x64, y64, f64 = (values.detach().to(torch.float64) for values in (x, y, f))
        if x.shape[0] == 0 or y.shape[0] == 0:
            return torch.zeros_like(x64)
        rows = x64.isfinite().all(-1) & f64.isfinite()
        inside = y64.square().sum(-1) <= radius * radius  # false for NaN
        x64, f64 = x64.masked_fill(~rows.unsqueeze(-1), 0.0), f64.masked_fill(~rows, 0.0)
        y64 = y64.masked_fill(~inside.unsqueeze(-1), 0.0)
        mask = mask & rows.unsqueeze(-1) & inside
        clip = reduced(bound)
        reach = x64.square().sum(-1).amax() + radius * radius
        # A branch on public values: a hostile request is slow for every batch.
        if bool(matmul_keeps_the_bound(reach, f64, len(y64), x64.shape[1], lam, clip)):
            return sum_by_matmul(x64, y64, f64, lam, clip, mask)
        total = torch.zeros_like(x64)
        for place in range(len(y64)):
            total += single_contribution(x64, y64[place], f64, lam, clip, mask[:, place])
        return total
