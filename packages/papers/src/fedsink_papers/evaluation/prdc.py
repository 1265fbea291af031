"""Precision, recall, density and coverage by nearest neighbours."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsink.results.evaluation.neighbours import distance_blocks, nearest

NEIGHBOURS = 5


def prdc(real: Tensor, fake: Tensor, *, k: int = NEIGHBOURS) -> dict[str, float]:
    """Returns the fraction of `fake` that looks real, and that of `real` that `fake` reaches.

    B(z) is the closed ball around z whose radius is the distance to z's k-th nearest neighbour
    in its own sample, z itself excluded. Over N real points x and M fake points y:

    - precision: fraction of y in some B(x); recall: fraction of x in some B(y)
      (Kynkäänniemi et al. 2019, eqs. 1 and 2);
    - density: `1/(kM) Σ_y Σ_x 1[y ∈ B(x)]`, 1 in expectation for equal laws, may exceed 1;
    - coverage: fraction of x with some y in B(x) (Naeem et al. 2020, eqs. 4 and 5).

    Args:
        real: features (N, d), N > k.
        fake: features (M, d), M > k.
        k: 5, as in Naeem et al. (Kynkäänniemi et al. take 3).

    Raises:
        ValueError: too few points, or different d.
    """
    real, fake = real.double(), fake.double()
    if min(len(real), len(fake)) <= k:
        raise ValueError(
            f"Precision and recall need more than k={k} points on each side; "
            f"received {len(real)} and {len(fake)}."
        )
    real_radius = nearest(real, real, k=k, same=True)[0][:, -1]
    fake_radius = nearest(fake, fake, k=k, same=True)[0][:, -1]
    around_real = torch.zeros(len(fake), dtype=torch.int64)
    reached = torch.zeros(len(real), dtype=torch.bool)
    recalled = torch.zeros(len(real), dtype=torch.bool)
    for rows, squared in distance_blocks(fake, real):
        distance = squared.sqrt_()
        inside = distance <= real_radius
        around_real[rows] = inside.sum(dim=1)
        reached |= inside.any(dim=0)
        recalled |= (distance <= fake_radius[rows].unsqueeze(1)).any(dim=0)
    return {
        "precision": float((around_real > 0).double().mean()),
        "recall": float(recalled.double().mean()),
        "density": float(around_real.double().mean()) / k,
        "coverage": float(reached.double().mean()),
    }
