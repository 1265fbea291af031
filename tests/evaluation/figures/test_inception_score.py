from __future__ import annotations

import math

import pytest
import torch

from fedsink.evaluation.figures.inception_score import inception_score


def test_sure_and_balanced_is_the_number_of_classes():
    assert inception_score(torch.eye(7).repeat(3, 1)) == pytest.approx(7)


@pytest.mark.parametrize("row", [[1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.7, 0.2, 0.1]])
def test_the_same_answer_everywhere_is_one(row):
    assert inception_score(torch.tensor([row]).repeat(5, 1)) == pytest.approx(1)


def test_sure_but_unbalanced_is_the_exponential_of_the_entropy():
    p = torch.eye(2)[[0, 0, 0, 1]]
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert inception_score(p) == pytest.approx(math.exp(entropy))


def test_is_the_mutual_information_of_an_unsure_classifier():
    """Two rows (a, 1 − a) and (1 − a, a): log 2 minus the entropy of a."""
    a = 0.9
    p = torch.tensor([[a, 1 - a], [1 - a, a]])
    expected = math.log(2) + a * math.log(a) + (1 - a) * math.log(1 - a)
    assert inception_score(p) == pytest.approx(math.exp(expected), rel=1e-6)


@pytest.mark.parametrize(
    "p", [torch.zeros(0, 3), torch.ones(3), torch.ones(3, 2), torch.tensor([[1.5, -0.5]])]
)
def test_refuses_what_is_no_probability(p):
    with pytest.raises(ValueError, match="robabilities must"):
        inception_score(p)
