from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsink.errors import PrivacyError
from fedsink.privacy import (
    GaussianMechanism,
    LaplaceMechanism,
    ProductMechanism,
    RandomizedResponse,
    Stream,
    epsilon,
)
from fedsink.privacy.mechanisms.labels import _onto_simplex

LABEL = RandomizedResponse(10, 5.0)


def test_labels_are_kept_and_others_answered_with_the_stated_probabilities():
    response, n = RandomizedResponse(5, 1.5), 30_000
    for label in (0, 4):
        answers = response.privatize(torch.full((n,), label), Stream(b"key", label))
        kept = int((answers == label).sum())
        assert stats.binomtest(kept, n, response.keep_probability).pvalue > 0.001
        for wrong in (2 / 3, 3 / 2):
            wrong_keep = RandomizedResponse(5, 1.5 * wrong).keep_probability
            assert stats.binomtest(kept, n, wrong_keep).pvalue < 1e-9
        others = np.delete(np.bincount(answers.numpy(), minlength=5), label)
        assert stats.chisquare(others).pvalue > 0.001
        assert response.other_probability * 4 + response.keep_probability == pytest.approx(1)


def test_records_are_randomized_independently():
    response = RandomizedResponse(2, 0.5)
    changed = response.privatize(torch.zeros(20_000, dtype=torch.int64), Stream(b"key")).double()
    assert stats.pearsonr(changed[:-1].numpy(), changed[1:].numpy()).pvalue > 1e-4


@given(st.integers(2, 1000), st.floats(0.01, 20))
def test_the_likelihood_ratio_of_any_answer_is_at_most_e_to_the_epsilon(classes, eps):
    matrix = RandomizedResponse(classes, eps).log_likelihood()
    assert matrix.shape == (classes, classes)
    assert float((matrix.max(1).values - matrix.min(1).values).max()) <= eps + 1e-12
    torch.testing.assert_close(matrix.exp().sum(0), torch.ones(classes, dtype=torch.float64))


def test_the_likelihood_matches_the_probabilities():
    response = RandomizedResponse(4, 2.0)
    matrix = response.log_likelihood().exp()
    assert float(matrix[1, 1]) == pytest.approx(response.keep_probability)
    assert float(matrix[1, 2]) == pytest.approx(response.other_probability)
    assert response.keep_probability == pytest.approx(math.exp(2) / (math.exp(2) + 3))


def test_the_prior_is_recovered_from_the_answers_alone():
    prior = np.array([0.6, 0.25, 0.1, 0.05])
    labels = torch.from_numpy(np.repeat(np.arange(4), (prior * 40_000).astype(int)))
    response = RandomizedResponse(4, 1.0)
    answers = response.privatize(labels, Stream(b"key"))
    estimate = response.estimate_prior(answers).numpy()
    raw = np.bincount(answers.numpy(), minlength=4) / 40_000
    assert np.abs(estimate - prior).max() < 0.02
    assert np.abs(raw - prior).max() > 0.2  # the answers themselves are far off


def test_the_estimated_prior_lies_on_the_simplex():
    estimate = RandomizedResponse(4, 1.0).estimate_prior(torch.tensor([0, 0, 0]))
    assert estimate.tolist() == [1.0, 0.0, 0.0, 0.0]


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=8))
def test_the_projection_is_the_nearest_point_of_the_simplex(values):
    point = torch.tensor(values, dtype=torch.float64)
    nearest = _onto_simplex(point)
    assert float(nearest.sum()) == pytest.approx(1)
    assert float(nearest.min()) >= 0
    # Optimality: no vertex of the simplex lies ahead in the direction of the residual.
    assert float(((point - nearest) @ (torch.eye(len(values)).double() - nearest).T).max()) < 1e-9


@pytest.mark.parametrize(("classes", "eps"), [(2, 1.0), (10, 5.0), (100, 8.0)])
def test_under_replace_one_the_event_costs_epsilon_and_no_other_adjacency_bounds_it(classes, eps):
    response = RandomizedResponse(classes, eps)
    cost = epsilon(response.event, 1e-9, adjacency=response.adjacency)
    assert eps * (1 - 1e-6) <= cost <= eps + 1e-3
    for other in ("add-remove", "client"):
        with pytest.raises(PrivacyError, match="cannot bound RandomizedResponseDpEvent"):
            epsilon(response.event, 1e-9, adjacency=other)


def test_what_it_protects():
    response = RandomizedResponse(np.int64(10), 5.0)
    assert type(response.classes) is int
    assert (response.delta, response.adjacency, response.unit) == (0.0, "replace-one", "record")


@pytest.mark.parametrize("labels", [[0, 10], [-1, 0], [0.0, 1.0]])
def test_bad_labels_are_refused_without_showing_them(labels):
    for method in (
        lambda x: RandomizedResponse(10, 1.0).privatize(x, Stream(b"key")),
        RandomizedResponse(10, 1.0).estimate_prior,
    ):
        with pytest.raises(PrivacyError, match=r"labels must be integers in 0, \.\.\., 9: check"):
            method(torch.tensor(labels))


def test_bad_values_are_refused():
    with pytest.raises(PrivacyError, match="classes must be an integer ≥ 2, received 1"):
        RandomizedResponse(1, 1.0)
    with pytest.raises(PrivacyError, match="epsilon must be a finite number > 0, received 0"):
        RandomizedResponse(10, 0)
    with pytest.raises(PrivacyError, match=r"at epsilon=20\.5 changes labels too rarely"):
        RandomizedResponse(10, 20.5)
    with pytest.raises(PrivacyError, match="at least one privatized label"):
        RandomizedResponse(10, 1.0).estimate_prior(torch.zeros(0, dtype=torch.int64))


@pytest.mark.parametrize(
    ("image", "eps", "delta"),
    [(LaplaceMechanism(2.0, 30.0), 35.0, 0.0), (GaussianMechanism(2.0, 20.0, 1e-4), 25.0, 1e-4)],
)
def test_epsilon_is_the_sum_and_delta_the_images(image, eps, delta):
    product = ProductMechanism(image, LABEL)
    assert product.epsilon == pytest.approx(eps)
    assert product.delta == delta
    assert product.adjacency == "replace-one"


def test_the_labels_share_is_the_replace_one_figure_not_an_accountants_replace_special():
    product = ProductMechanism(LaplaceMechanism(2.0, 3.0), LABEL)
    relation = dp_accounting.NeighboringRelation
    printed = {}
    for name in (relation.REPLACE_ONE, relation.REPLACE_SPECIAL):
        ledger = dp_accounting.pld.PLDAccountant(name)
        ledger.compose(LABEL.event)
        printed[name] = ledger.get_epsilon(1e-9)
    share = product.epsilon - product.image.epsilon
    assert share == pytest.approx(printed[relation.REPLACE_ONE], rel=1e-4)
    assert printed[relation.REPLACE_SPECIAL] == pytest.approx(2.76, abs=0.01)


@pytest.mark.parametrize("image", [LaplaceMechanism(2.0, 3.0), GaussianMechanism(2.0, 3.0, 1e-4)])
def test_the_event_composes_both_and_costs_no_more_than_the_sum(image):
    product = ProductMechanism(image, LABEL)
    assert product.event.events == [image.event, LABEL.event]
    cost = epsilon(product.event, product.delta or 1e-9, adjacency=product.adjacency)
    assert LABEL.epsilon < cost <= product.epsilon * (1 + 1e-4)


def test_image_noise_and_label_noise_are_independent():
    product = ProductMechanism(LaplaceMechanism(1.0, 1.0), RandomizedResponse(2, 0.5))
    n = 20_000
    values, labels = product.privatize(
        torch.zeros(n, 1), torch.zeros(n, dtype=torch.int64), Stream(b"key")
    )
    changed = labels.double().numpy()
    for statistic in (values.flatten(), values.flatten().abs()):
        assert stats.pearsonr(statistic.numpy(), changed).pvalue > 1e-4
    assert math.isclose(float(changed.mean()), 1 / (1 + math.exp(0.5)), abs_tol=0.02)


def test_both_parts_are_privatized_as_by_their_mechanisms():
    product = ProductMechanism(GaussianMechanism(1.0, 1.0, 1e-3), LABEL)
    values, labels = torch.rand(6, 3), torch.arange(6)
    private_values, private_labels = product.privatize(values, labels, Stream(b"key"))
    assert (private_values.dtype, private_labels.dtype) == (torch.float32, torch.int64)
    image_stream = Stream(b"key").child("image")
    assert torch.equal(private_values, product.image.privatize(values, image_stream))


def test_a_label_for_each_image_is_required():
    product = ProductMechanism(LaplaceMechanism(1.0, 1.0), LABEL)
    with pytest.raises(PrivacyError, match="one label per record is needed, received 3 records"):
        product.privatize(torch.zeros(3, 2), torch.zeros(4, dtype=torch.int64), Stream(b"key"))
