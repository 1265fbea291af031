from __future__ import annotations

import torch

from fedsink.evaluation.classifiers.logreg import train_logreg


def blobs(n: int = 300):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 3
    centres = torch.rand(3, 1, 4, 4, generator=generator)
    return centres[labels] + 0.05 * torch.randn(n, 1, 4, 4, generator=generator), labels


def test_is_the_minimum_of_the_penalised_likelihood():
    """At the optimum the likelihood's gradient equals −W, here by its largest entry."""
    images, labels = blobs()
    classify = train_logreg(images, labels, classes=3, seed=0)
    regression = classify.__closure__[0].cell_contents
    weight = torch.tensor(regression.coef_, dtype=torch.float64, requires_grad=True)
    bias = torch.tensor(regression.intercept_, dtype=torch.float64, requires_grad=True)
    logits = images.flatten(1).double() @ weight.T + bias
    loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    loss = loss + weight.square().sum() / 2
    loss.backward()
    assert float(weight.grad.abs().max()) < 0.05
    assert float(bias.grad.abs().max()) < 0.05
    assert float(weight.detach().abs().max()) > 0.5


def test_classes_that_do_not_occur_keep_their_neighbours_labels():
    images, labels = blobs()
    present = labels != 1
    classify = train_logreg(images[present], labels[present], classes=3, seed=0)
    assert set(classify(images).tolist()) == {0, 2}
    assert torch.equal(classify(images[present]), labels[present])


def test_a_single_class_is_predicted_everywhere():
    images, _ = blobs()
    classify = train_logreg(images, torch.full((300,), 2), classes=3, seed=0)
    assert classify(images[:7]).tolist() == [2] * 7


def test_reports_its_iterations():
    lines: list[str] = []
    train_logreg(*blobs(), classes=3, seed=0, report=lines.append)
    assert lines[0] == "logreg: 300 images"
    assert lines[1].endswith("iterations")
