"""The clipped sums of records of many clients at shared points, in one call."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsink.transport.record_clip import (
    check_field,
    clipped_record_field,
    clipped_weights,
    matmul_keeps_the_bound,
    reduced,
)
from fedsink.transport.semidual import record_field


def clipped_record_fields(
    x: Tensor, y: Tensor, f: Tensor, lam: float, bound: float, *, present: Tensor | None = None
) -> Tensor:
    """Return Σ_j min(1, Δ/‖g_kj‖)·g_kj for each client k, shape (K, n, d), float64.

    Client k's part is what `clipped_record_field` returns for its records alone, up to rounding
    within the slack that its clip leaves. All clients share one matmul for the distances where
    public and private values are far from the limits of floats, as they are for images; else
    the clients are taken one by one.

    Guarantees:
        - Each record's contribution has L2 norm at most Δ, for any input.
          (test_each_contribution_in_a_cohort_has_norm_at_most_the_bound)
        - No record moves the result of a client other than its own by more than rounding, which
          the slack of the clip covers, nor its own client's by more than Δ.
          (test_no_record_changes_another_clients_field)

    Args:
        x: generated points, (n, d), public and shared.
        y: private records in m places at each client, (K, m, d).
        f: potential on x, (n,), in units of cost.
        lam: λ > 0, in units of cost (that of ‖x − y‖²).
        bound: Δ > 0, in units of the points.
        present: which places hold a record, (K, m) bool; all if None.

    Raises:
        ValueError: for shapes that disagree, λ ≤ 0 or Δ ≤ 0; never for values of x, y or f.
    """
    if y.dim() != 3:
        raise ValueError(f"Records (K, m, d) are needed, got shape {tuple(y.shape)}.")
    check_field(x, y.flatten(0, 1), f, lam, bound)
    if present is not None and (present.shape != y.shape[:2] or present.dtype != torch.bool):
        raise ValueError(
            f"`present` must be boolean of shape {tuple(y.shape[:2])}, got {present.dtype} of "
            f"shape {tuple(present.shape)}."
        )
    with torch.no_grad():
        x64, y64, f64 = (values.detach().to(torch.float64) for values in (x, y, f))
        if present is not None:
            y64 = y64.masked_fill(~present.unsqueeze(-1), 0.0)
        if min(len(x), *y.shape[:2]) == 0:
            return x64.new_zeros((len(y), *x.shape))
        clip = reduced(bound)
        reach = y64.square().sum(-1) + x64.square().sum(-1).amax()
        plain = matmul_keeps_the_bound(reach, f64, y.shape[1], x.shape[1], lam, clip)
        if not bool(plain.all()):
            return torch.stack(
                [
                    clipped_record_field(x, of_client[places], f, lam, bound)
                    for of_client, places in zip(
                        y, [slice(None)] * len(y) if present is None else present, strict=True
                    )
                ]
            )
        mask = None if present is None else present.flatten().expand(len(x), -1)
        weights = clipped_weights(x64, y64.flatten(0, 1), f64, lam, clip, mask)
        by_client = weights.unflatten(-1, y.shape[:2]).movedim(1, 0)
        return record_field(x64, y64, by_client)
