from __future__ import annotations

import pytest
import torch

from fedsink.errors import DataError
from fedsink.evaluation.classifiers.class_means import class_mean_set
from fedsink.evaluation.figures.within_class import variance_ratio, within_class_variance
from fedsink.evaluation.sets import TrainingSet

from ...support.clouds import blobs


def wrap(images: torch.Tensor, labels: torch.Tensor) -> TrainingSet:
    return TrainingSet.of((images, labels), classes=3, origin="synthetic")


def test_is_the_trace_of_each_class_covariance():
    import numpy as np

    data = wrap(*blobs(60, 0))
    for label, variance in within_class_variance(data).items():
        rows = data.images[data.labels == label].flatten(1).double().numpy()
        assert variance == pytest.approx(np.trace(np.cov(rows.T)))


def test_one_for_the_same_law_zero_for_means_four_for_twice_the_deviation():
    real = wrap(*blobs(600, 0))
    assert variance_ratio(wrap(*blobs(600, 1)), real) == pytest.approx(1, abs=0.05)
    assert variance_ratio(class_mean_set(real, 60), real) == pytest.approx(0, abs=1e-9)
    centre = class_mean_set(real, 600).images
    assert variance_ratio(wrap(centre + 2 * (real.images - centre), real.labels), real) == (
        pytest.approx(4, rel=1e-4)
    )


def test_the_share_of_the_classes_does_not_matter():
    real = wrap(*blobs(600, 0))
    many_of_one = torch.cat([torch.arange(600), torch.arange(0, 600, 3).repeat(4)])
    skewed = wrap(real.images[many_of_one], real.labels[many_of_one])
    assert variance_ratio(skewed, real) == pytest.approx(1, abs=0.01)


def test_classes_without_two_images_are_left_out():
    images, labels = blobs(30, 0)
    keep = torch.cat([torch.arange(0, 30, 3), torch.tensor([1])])
    one = wrap(images[keep], labels[keep])
    assert set(within_class_variance(one)) == {0}
    assert variance_ratio(one, wrap(images, labels)) == pytest.approx(1)
    assert variance_ratio(wrap(images, labels), one) == pytest.approx(1)


def test_refuses_when_nothing_can_be_compared():
    images, _ = blobs(30, 0)
    with pytest.raises(DataError, match="a class with two images in both sets"):
        variance_ratio(
            wrap(images[:10], torch.zeros(10, dtype=torch.int64)),
            wrap(images[:10], torch.ones(10, dtype=torch.int64)),
        )
