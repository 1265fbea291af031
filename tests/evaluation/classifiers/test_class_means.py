from __future__ import annotations

import torch

from fedsink.evaluation.classifiers.class_means import (
    class_mean_set,
    class_means,
    train_nearest_class_mean,
)
from fedsink.evaluation.sets import TrainingSet

from ...support.clouds import blobs


def test_means_and_the_classes_that_occur():
    images = torch.tensor([0.0, 1.0, 0.25, 0.75]).reshape(4, 1, 1, 1)
    means, present = class_means(images, torch.tensor([2, 2, 0, 0]))
    assert present.tolist() == [0, 2]
    assert means.flatten().tolist() == [0.5, 0.5]


def test_the_set_emits_means_in_turn_and_says_what_it_is():
    training = TrainingSet.of(blobs(30, 0), classes=3, origin="real training")
    floor = class_mean_set(training, 7)
    assert floor.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert torch.allclose(floor.images[4], training.images[training.labels == 1].mean(dim=0))
    assert floor.origin == "class mean"


def test_predicts_as_scikit_learns_nearest_centroid():
    from sklearn.neighbors import NearestCentroid

    images, labels = torch.rand(200, 1, 4, 4, generator=torch.Generator().manual_seed(0)), None
    labels = torch.randint(0, 4, (200,), generator=torch.Generator().manual_seed(1))
    labels[labels == 2] = 3  # a class that does not occur
    oracle = NearestCentroid().fit(images.flatten(1).numpy(), labels.numpy())
    probe = torch.rand(300, 1, 4, 4, generator=torch.Generator().manual_seed(2))
    found = train_nearest_class_mean(images, labels, classes=4, seed=0)(probe)
    assert found.tolist() == oracle.predict(probe.flatten(1).numpy()).tolist()
    assert 2 not in found.tolist()
