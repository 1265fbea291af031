from __future__ import annotations

import math

import dp_accounting
import pytest
import torch
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

LABEL = RandomizedResponse(10, 5.0)


@pytest.mark.parametrize(
    ("image", "eps", "delta"),
    [(LaplaceMechanism(2.0, 30.0), 35.0, 0.0), (GaussianMechanism(2.0, 20.0, 1e-4), 25.0, 1e-4)],
)
def test_epsilon_is_the_sum_and_delta_the_images(image, eps, delta):
    product = ProductMechanism(image, LABEL)
    assert product.epsilon == pytest.approx(eps)
    assert product.delta == delta
    assert product.adjacency == "replace-one"
    described = product.describe()
    assert described["epsilon"] == product.epsilon
    assert described["label"]["epsilon"] == 5.0


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
    assert product.sensitivity == image.sensitivity
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
    assert product.matched_cost == product.image.matched_cost


def test_a_label_for_each_image_is_required():
    product = ProductMechanism(LaplaceMechanism(1.0, 1.0), LABEL)
    with pytest.raises(PrivacyError, match="one label per record is needed, received 3 records"):
        product.privatize(torch.zeros(3, 2), torch.zeros(4, dtype=torch.int64), Stream(b"key"))
