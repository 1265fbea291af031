"""Inception Score, of any classifier's probabilities."""

from __future__ import annotations

import torch
from torch import Tensor


def inception_score(probabilities: Tensor) -> float:
    """Return `exp(E_x KL(p(y|x) ‖ p(y)))`, p(y) the mean of p(y|x) over the sample.

    Between 1 and the number of classes (Salimans et al. 2016, section 4). The published name is
    kept although the classifier here is one trained on the real data, as in GS-WGAN (Chen et al.
    2020). One split: its spread is over runs. It sees neither labels nor variation within a
    class: the class means alone can reach the maximum.

    Args:
        probabilities: (N, classes), non-negative rows that sum to 1.

    Raises:
        ValueError: anything else.
    """
    if probabilities.ndim != 2 or len(probabilities) == 0:
        raise ValueError(
            f"Probabilities must have shape (N, classes); received {tuple(probabilities.shape)}."
        )
    p = probabilities.double()
    if not bool((p >= 0).all() and ((p.sum(dim=1) - 1).abs() < 1e-4).all()):
        raise ValueError("Every row of probabilities must be non-negative and sum to 1.")
    marginal = p.mean(dim=0, keepdim=True)
    divergence = (torch.xlogy(p, p) - torch.xlogy(p, marginal)).sum(dim=1)
    return float(divergence.mean().exp())
