"""Minibatches of privatized records that share an answer of the randomized response."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsink.privacy import RandomizedResponse, Stream


class LabelStrata:
    """Privatized records by their randomized label ỹ, and the law of the true label l given ỹ.

    Given ỹ = c, the labels follow P(l | c) ∝ Q(c | l)·π_l, and the image's channel is what it
    was: so Theorem 1 (Reshetova et al. 2024) holds within every stratum, and the minimiser of
    Σ_c P(ỹ = c) W_{c,λ}(P_{f(G) | c}, P_{Y | c}) is the labelled distribution before both
    channels. It needs Q to be invertible and the prior π. A step of b records in C strata solves C
    problems of b/C points instead of one of b: the points of a class lie as densely as in C
    times the batch, at the same cost in pairs of b/√C.

    Without labels there is one stratum.

    A step has C strata, drawn systematically with probabilities P(ỹ = c): of balanced labels
    every one comes about once a step, and a batch has the classes in the proportions of π.

    Args:
        labels: randomized labels ỹ, int64 (N,), N > 0.
        prior: π, (C,).
        mechanism: Q; None where no label left.
    """

    def __init__(self, labels: Tensor, prior: Tensor, mechanism: RandomizedResponse | None) -> None:
        self.number = len(prior)
        self._counts = torch.bincount(labels, minlength=self.number)
        self._starts = self._counts.cumsum(0) - self._counts
        self._order = labels.argsort(stable=True)
        likelihood = torch.ones(1, 1) if mechanism is None else mechanism.log_likelihood().exp()
        posterior = likelihood.to(prior) * prior
        self._cumulated = (posterior / posterior.sum(1, keepdim=True)).cumsum(1)

    def draw(self, batch: int, stream: Stream) -> tuple[Tensor, Tensor]:
        """Draw a step's records, and labels of the law of theirs for the generator.

        Args:
            batch: b, of which every stratum gets ⌊b/C⌋, at least 2.
            stream: public randomness.

        Returns:
            Places of records, int64 (C, n), and labels, int64 (C, n).
        """
        n = max(2, batch // self.number)
        shares = self._counts.cumsum(0) / len(self._order)
        places = (torch.arange(self.number) + stream.uniform(1)) / self.number
        answers = torch.searchsorted(shares, places.to(shares), right=True)
        answers = answers.clamp(max=int(self._counts.nonzero().max()))  # a place may round up to 1
        counts = self._counts[answers].unsqueeze(1)
        steps = torch.minimum((stream.uniform(self.number, n) * counts).long(), counts - 1)
        records = self._order[self._starts[answers].unsqueeze(1) + steps]
        labels = torch.searchsorted(
            self._cumulated[answers], stream.uniform(self.number, n).to(self._cumulated)
        )
        return records, labels.clamp(max=self.number - 1)
