"""Records of one answer, and the labels that may stand behind it."""

from __future__ import annotations

import pytest
import torch

from fedsink.privacy import RandomizedResponse, Stream
from fedsink.strategies.privatize_once.strata import LabelStrata


def randomized(prior: torch.Tensor, n: int, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.multinomial(prior, n, True, generator=torch.Generator().manual_seed(1))
    return labels, RandomizedResponse(3, epsilon).privatize(labels, Stream(b"answers"))


def test_a_stratum_has_records_of_one_answer_and_all_of_them_in_time() -> None:
    prior = torch.ones(3) / 3
    _, answers = randomized(prior, 60, 1.0)
    strata = LabelStrata(answers, prior, RandomizedResponse(3, 1.0))
    seen = set()
    for step in range(60):
        records, labels = strata.draw(30, Stream(b"s", "train", step))
        assert records.shape == labels.shape == (3, 10)
        assert bool((answers[records] == answers[records][:, :1]).all())
        seen |= set(records.flatten().tolist())
    assert seen == set(range(60))


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_labels_follow_their_law_given_the_answer(epsilon: float) -> None:
    """P(l | ỹ) by counting, from unbalanced labels that really went through the channel."""
    prior = torch.tensor([0.6, 0.3, 0.1])
    labels, answers = randomized(prior, 200_000, epsilon)
    strata = LabelStrata(answers, prior, RandomizedResponse(3, epsilon))
    records, drawn = strata.draw(300_000, Stream(b"s"))
    for row, chosen in zip(records, drawn, strict=True):
        behind = labels[answers == answers[row[0]]]
        expected = torch.bincount(behind, minlength=3) / len(behind)
        found = torch.bincount(chosen, minlength=3) / len(chosen)
        assert torch.allclose(found, expected, atol=0.02)  # eight standard deviations


def test_a_batch_has_the_classes_in_the_proportions_of_the_prior() -> None:
    prior = torch.tensor([0.6, 0.3, 0.1])
    _, answers = randomized(prior, 20_000, 2.0)
    strata = LabelStrata(answers, prior, RandomizedResponse(3, 2.0))
    draws = [strata.draw(30, Stream(b"s", "train", step)) for step in range(2000)]
    mix = torch.bincount(torch.cat([labels.flatten() for _, labels in draws]), minlength=3)
    assert torch.allclose(mix / mix.sum(), prior, atol=0.02)
    found = torch.bincount(answers[torch.cat([r.flatten() for r, _ in draws])]) / mix.sum()
    assert torch.allclose(found, torch.bincount(answers) / len(answers), atol=0.02)


def test_an_answer_that_nobody_gave_is_no_stratum() -> None:
    prior = torch.tensor([0.5, 0.5, 0.0])
    answers = torch.tensor([0, 1, 0, 1, 0])
    strata = LabelStrata(answers, prior, RandomizedResponse(3, 2.0))
    for step in range(50):
        records, labels = strata.draw(9, Stream(b"s", "train", step))
        assert int(records.max()) < 5
        assert int(labels.max()) < 2


def test_without_labels_there_is_one_stratum() -> None:
    strata = LabelStrata(torch.zeros(7, dtype=torch.int64), torch.ones(1), None)
    records, labels = strata.draw(100, Stream(b"s"))
    assert records.shape == (1, 100)
    assert set(records.flatten().tolist()) == set(range(7))
    assert not bool(labels.any())
