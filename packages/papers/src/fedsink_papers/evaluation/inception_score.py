"""The Inception Score, by a classifier's probabilities."""

from __future__ import annotations

import statistics

import torch
from torch import Tensor

from fedsink.results.evaluation.sets import shuffled

SPLITS = 10
"""Parts of the published score."""


def inception_score(probabilities: Tensor) -> float:
    """Returns `exp(E_x KL(p(y|x) ‖ p(y)))`, p(y) the mean of p(y|x) over the sample.

    Between 1 and the number of classes (Salimans et al. 2016, section 4). The published name is
    kept although the classifier here is one trained on the real data, as in GS-WGAN (Chen et al.
    2020). It sees neither labels nor variation within a class: class means by themselves can reach
    the maximum.

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


def score_of_splits(
    probabilities: Tensor, *, seed: int, splits: int = SPLITS
) -> tuple[float, float]:
    """Returns mean and std, `√(Σ(s − s̄)²/splits)`, of the scores of a sample's parts.

    Inception Scores are published so (Salimans et al. 2016): over ten parts, each with its p(y).
    A part is smaller than the sample, so the mean lies below the score of one split.

    Args:
        probabilities: (N, classes), as in `inception_score`.
        seed: of the order in which the rows are dealt to the parts.
        splits: number of parts, at most N.

    Raises:
        ValueError: fewer rows than parts, or what `inception_score` refuses.
    """
    if not 1 <= splits <= len(probabilities):
        raise ValueError(f"{splits} splits need as many rows; received {len(probabilities)}.")
    mixed = probabilities[shuffled(len(probabilities), seed)]
    scores = [inception_score(part) for part in mixed.tensor_split(splits)]
    return statistics.fmean(scores), statistics.pstdev(scores)
