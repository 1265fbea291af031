from __future__ import annotations

import torch

from fedsink.results.evaluation.classifiers import FAST, train_nearest_class_mean

from ...support.clouds import blobs


def test_logreg_is_the_minimum_of_the_penalised_likelihood():
    """At the optimum the likelihood's gradient equals −W, here by its largest entry."""
    images, labels = blobs(300, 0)
    classify = FAST["logreg"](images, labels, classes=3, seed=0, report=None)
    cells = [cell.cell_contents for cell in classify.__closure__]
    (regression,) = [cell for cell in cells if hasattr(cell, "coef_")]
    weight = torch.tensor(regression.coef_, dtype=torch.float64, requires_grad=True)
    bias = torch.tensor(regression.intercept_, dtype=torch.float64, requires_grad=True)
    logits = images.flatten(1).double() @ weight.T + bias
    loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    (loss + weight.square().sum() / 2).backward()
    assert float(weight.grad.abs().max()) < 0.05
    assert float(bias.grad.abs().max()) < 0.05
    assert float(weight.detach().abs().max()) > 0.1


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
