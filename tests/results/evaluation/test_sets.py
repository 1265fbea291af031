from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import fedsink.results.evaluation
from fedsink.errors import DataError, ModelError
from fedsink.results.evaluation.classifiers import FAST, train_nearest_class_mean
from fedsink.results.evaluation.sets import (
    HeldOut,
    TrainingSet,
    check_labelled,
    class_mean_set,
    class_means,
    fit_classifiers,
)

from ...support.clouds import blobs


def synthetic(n: int = 60, seed: int = 0) -> TrainingSet:
    return TrainingSet.of(blobs(n, seed), classes=3, origin="synthetic")


@pytest.mark.parametrize("kind", ["held out", "tuple", "tensor"])
def test_classifiers_are_fitted_to_a_training_set_and_nothing_else(kind):
    """Guarantees: `fit_classifiers` takes no other type; `fit_classifiers` refuses it (HeldOut)."""
    data = {
        "held out": HeldOut(blobs(60, 1), classes=3),
        "tuple": blobs(60, 1),
        "tensor": blobs(60, 1)[0],
    }[kind]

    def trainer(*arguments, **more):
        raise AssertionError("a classifier was fitted")

    with pytest.raises(TypeError, match=r"fitted to a TrainingSet; received .*HeldOut.score"):
        fit_classifiers(data, {"spy": trainer}, seed=0)


def test_labels_of_the_held_out_images_leave_only_as_an_accuracy():
    """Guarantees: its labels leave it only as the accuracy of a finished classifier."""
    held_out = HeldOut(blobs(30, 1), classes=3)
    public = {name for name in dir(held_out) if not name.startswith("_")}
    assert public == {"images", "score", "refuse_overlap"}
    assert held_out.score(lambda images: torch.zeros(len(images), dtype=torch.int64)) == 1 / 3
    assert type(held_out.score(lambda images: torch.arange(30) % 3)) is float
    package = Path(str(fedsink.results.evaluation.__file__)).parent
    readers = {
        f"{path.name}:{function.name}"
        for path in package.rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and node.attr == "_labels"
    }
    assert readers == {"sets.py:__init__", "sets.py:score"}


@pytest.mark.parametrize("origin", ["synthetic", "real training"])
def test_a_training_set_that_holds_test_images_is_refused(origin):
    """Guarantees: a training set that holds its images is refused."""
    images, labels = blobs(60, 1)
    held_out = HeldOut((images, labels), classes=3)
    mixed = torch.cat([blobs(50, 0)[0], images[:10]])
    leaking = TrainingSet.of((mixed, labels), classes=3, origin=origin)
    with pytest.raises(DataError, match=f"10 of the 60 {origin} images are images of the test"):
        held_out.refuse_overlap(leaking)
    held_out.refuse_overlap(synthetic())
    few = TrainingSet.of(
        (torch.cat([blobs(55, 0)[0], images[:5]]), labels), classes=3, origin=origin
    )
    held_out.refuse_overlap(few)  # data sets hold duplicates


def test_another_shape_is_refused():
    held_out = HeldOut(blobs(30, 1, side=6), classes=3)
    with pytest.raises(DataError, match=r"received \(1, 8, 8\) and \(1, 6, 6\)"):
        held_out.refuse_overlap(synthetic())


@pytest.mark.slow
def test_the_classifiers_do_not_change_with_the_test_set_or_its_scores():
    probe = blobs(200, 7)[0] + 0.3 * torch.randn(
        200, 1, 8, 8, generator=torch.Generator().manual_seed(1)
    )
    trainers = {**FAST, "nearest_class_mean": train_nearest_class_mean}
    predictions = []
    for data in (blobs(30, 1), (torch.zeros(30, 1, 8, 8), torch.full((30,), 2))):
        held_out = HeldOut(data, classes=3)
        finished = fit_classifiers(synthetic(), trainers, seed=0)
        scores = {name: held_out.score(each) for name, each in finished.items()}
        assert len(scores) == 4
        predictions.append({name: each(probe) for name, each in finished.items()})
    for name, first in predictions[0].items():
        assert torch.equal(first, predictions[1][name]), name


def test_cut_draws_without_replacement_and_keeps_labels_beside_images():
    data = synthetic(60)
    part = data.cut(20, seed=1)
    assert len(part) == 20 == len({image.numpy().tobytes() for image in part.images})
    known = {
        image.numpy().tobytes(): int(y) for image, y in zip(data.images, data.labels, strict=True)
    }
    assert [known[image.numpy().tobytes()] for image in part.images] == part.labels.tolist()
    assert torch.equal(part.images, data.cut(20, seed=1).images)
    assert not torch.equal(part.images, data.cut(20, seed=2).images)
    assert data.cut(60, seed=1) is data


def test_bad_images_are_named_by_their_origin():
    images, labels = blobs(30, 0)
    with pytest.raises(ModelError, match="The synthetic images hold values that are not finite"):
        TrainingSet.of((images * torch.nan, labels), classes=3, origin="synthetic")
    for origin, told in (("real training", "leave it out"), ("synthetic", "draw more")):
        with pytest.raises(DataError, match=f"10 {origin} images; received 9: {told}"):
            TrainingSet.of((images[:9], labels[:9]), classes=3, origin=origin)
    for wrong in (
        lambda: TrainingSet.of((images * torch.nan, labels), classes=3, origin="real training"),
        lambda: HeldOut((images * torch.nan, labels), classes=3),
    ):
        with pytest.raises(DataError, match="images hold values that are not finite: replace them"):
            wrong()
    with pytest.raises(DataError, match="test labels must lie in"):
        HeldOut((images, labels + 1), classes=3)


IMAGES = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12) % 3


def test_returns_float32_images_and_int64_labels():
    images, labels = check_labelled((IMAGES.double(), LABELS.int()), classes=3, name="synthetic")
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert torch.equal(labels, LABELS)


def test_detaches_images_that_carry_a_gradient():
    images, _ = check_labelled((IMAGES.clone().requires_grad_(), LABELS), classes=3, name="test")
    assert not images.requires_grad


@pytest.mark.parametrize(
    ("images", "labels", "classes", "message"),
    [
        (IMAGES.flatten(1), LABELS, 3, r"test images must have shape \(N, C, H, W\).*\(12, 64\)"),
        (IMAGES[:0], LABELS[:0], 3, r"N > 0; received \(0, 1, 8, 8\)"),
        (IMAGES, LABELS[:5], 3, r"one label per image; received 12 images .*\(5,\)"),
        (IMAGES, LABELS.float(), 3, r"must be integers; received dtype torch.float32"),
        (IMAGES, LABELS, 2, r"must lie in 0\.\.1; received labels from 0 to 2"),
        (IMAGES, LABELS - 1, 3, r"must lie in 0\.\.2; received labels from -1 to 1"),
        (IMAGES, LABELS, 1, r"at least 2 classes; received classes=1"),
    ],
)
def test_says_what_does_not_fit(images, labels, classes, message):
    with pytest.raises(DataError, match=message):
        check_labelled((images, labels), classes=classes, name="test")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_diverged_generator_is_named_as_such(bad):
    images = IMAGES.clone()
    images[3, 0, 2, 2] = bad
    with pytest.raises(ModelError, match="synthetic images hold values that are not finite"):
        check_labelled((images, LABELS), classes=3, name="synthetic")


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
