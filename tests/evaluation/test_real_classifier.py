from __future__ import annotations

import pytest
import torch

from fedsink.evaluation.real_classifier import (
    FEATURES,
    label_consistency,
    train_real_classifier,
)
from fedsink.evaluation.sets import HeldOut, TrainingSet

from ..support.clouds import blobs

pytestmark = pytest.mark.usefixtures("few_epochs")


@pytest.fixture(scope="module")
def classifier(few_epochs):
    return train_real_classifier(
        TrainingSet.of(blobs(300, 0), classes=3, origin="real training"), seed=0
    )


def test_knows_fresh_images_of_its_law(classifier):
    held_out = HeldOut(blobs(150, 1), classes=3)
    assert held_out.score(classifier.classify) > 0.97


def test_probabilities_are_the_softmax_of_the_features_it_shows(classifier):
    features = classifier.features(blobs(50, 1)[0])
    assert features.shape == (50, FEATURES)
    assert float(features.min()) >= 0
    probabilities = classifier.probabilities(features)
    assert torch.allclose(probabilities.sum(dim=1), torch.ones(50, dtype=torch.float64))
    logits = features @ classifier.head[1].weight.T + classifier.head[1].bias
    assert torch.allclose(probabilities, logits.double().softmax(dim=1), atol=1e-5)


def test_does_not_depend_on_the_batches_and_drops_nothing_when_finished(classifier):
    images = blobs(1500, 1)[0]
    assert torch.equal(classifier.classify(images), classifier.classify(images))
    assert torch.allclose(
        classifier.features(images)[:7], classifier.features(images[:7]), atol=1e-5
    )


def test_label_consistency_follows_the_labels(classifier):
    images, labels = blobs(90, 2)
    right = TrainingSet.of((images, labels), classes=3, origin="synthetic")
    wrong = TrainingSet.of((images, (labels + 1) % 3), classes=3, origin="synthetic")
    half = TrainingSet.of(
        (images, torch.where(torch.arange(90) < 45, labels, (labels + 1) % 3)),
        classes=3,
        origin="synthetic",
    )
    assert label_consistency(classifier, right) > 0.97
    assert label_consistency(classifier, wrong) < 0.03
    assert label_consistency(classifier, half) == pytest.approx(0.5, abs=0.03)


def test_the_seed_decides_it_and_no_global_generator_moves():
    data = TrainingSet.of(blobs(60, 0), classes=3, origin="real training")
    before = torch.get_rng_state()
    probe = blobs(20, 5)[0]
    first, again, other = (
        train_real_classifier(data, seed=seed).features(probe) for seed in (0, 0, 1)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_is_not_fitted_to_test_images():
    with pytest.raises(TypeError, match="fitted to a TrainingSet; received HeldOut"):
        train_real_classifier(HeldOut(blobs(60, 0), classes=3), seed=0)
