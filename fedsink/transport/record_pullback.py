"""The record-separable transport gradient of a generator's weights, each record clipped there."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fedsink.privacy.mechanisms.clipping import shrunk
from fedsink.transport.record_clip import check_field, reduced, single_contribution


def clipped_pullback(
    x: Tensor,
    y: Tensor,
    f: Tensor,
    lam: float,
    bound: float,
    pull: Callable[[Tensor], Tensor],
    mask: Tensor | None = None,
) -> Tensor:
    """Return Σ_j clip(Jᵀg_j, Δ), (P,) float64, with g_j = (w_ij(x_i − y_j))_i.

    The g_j are those of `clipped_record_field`, w_ij = softmax_i((f_i − ‖x_i − y_j‖²)/λ), not
    clipped at the points; Jᵀ = `pull` carries each of them alone to P weights, where it is scaled
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
        mask: from which rows each record may choose, (n, m) bool; None: all.

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
            total += shrunk(pulled.unsqueeze(0), clip, slack=0.0).squeeze(0)
    return total
