from __future__ import annotations

import math

import pytest
import torch
from fedsink_papers.evaluation.inception_score import inception_score, score_of_splits


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


def test_splits_have_the_mean_and_the_deviation_of_their_scores_in_a_drawn_order():
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(1003, 5, generator=generator).double()
    p = p / p.sum(dim=1, keepdim=True)
    order = torch.randperm(1003, generator=torch.Generator().manual_seed(7))
    mean, sd = score_of_splits(p, seed=7)
    parts = [inception_score(part) for part in p[order].tensor_split(10)]
    average = sum(parts) / 10
    assert mean == pytest.approx(average)
    assert sd == pytest.approx(math.sqrt(sum((part - average) ** 2 for part in parts) / 10))
    assert score_of_splits(p, seed=8) != (mean, sd)


def test_a_sample_in_order_of_its_classes_is_mixed_before_it_is_split():
    p = torch.eye(5).repeat_interleave(200, dim=0)
    mean, sd = score_of_splits(p, seed=0)
    assert mean == pytest.approx(5, rel=0.05)
    assert sd < 0.1
    assert score_of_splits(p, seed=0, splits=1) == (pytest.approx(inception_score(p)), 0)


@pytest.mark.parametrize("splits", [0, 11])
def test_refuses_more_parts_than_rows(splits):
    with pytest.raises(ValueError, match=f"{splits} splits need as many rows; received 10"):
        score_of_splits(torch.eye(10), seed=0, splits=splits)
