from __future__ import annotations

import pytest
import torch
from fedsink_papers.evaluation import image_quality
from fedsink_papers.evaluation.image_quality import (
    quality_figures,
    variance_ratio,
    within_class_variance,
)

from fedsink.errors import DataError, ModelError
from fedsink.results.evaluation.sets import HeldOut, TrainingSet, class_mean_set, shuffled
from tests.support.clouds import blobs

pytestmark = pytest.mark.usefixtures("few_epochs")

REAL = TrainingSet.of(blobs(120, 1), classes=3, origin="real training")


def synthetic(size: int, seed: int) -> TrainingSet:
    return TrainingSet.of(blobs(size, 100 + seed), classes=3, origin="synthetic")


@pytest.mark.medium
def test_both_sides_hold_equally_many_images():
    figures, _ = quality_figures(
        synthetic, REAL, HeldOut(blobs(40, 2), classes=3), seeds=(0,), size=1000
    )
    for name, figure in figures.items():
        if not name.startswith("memorisation/"):
            sizes = {figure.synthetic.size, figure.real.size, figure.class_means.size}
            assert sizes == {40}, name


def test_the_real_column_is_of_images_the_classifier_never_saw(monkeypatch):
    seen = {}
    true_train = image_quality.train_real_classifier

    def spied(training, **more):
        seen["fitted"] = training
        return true_train(training, **more)

    def spied_prdc(real, fake):
        return dict.fromkeys(("precision", "recall", "density", "coverage"), 1.0)

    true_sliced = image_quality.sliced_w2

    def spied_sliced(x, y, *, seed):
        seen.setdefault("measured", []).append(x)
        return true_sliced(x, y, seed=seed, projections=2)

    monkeypatch.setattr(image_quality, "train_real_classifier", spied)
    monkeypatch.setattr(image_quality, "prdc", spied_prdc)
    monkeypatch.setattr(image_quality, "sliced_w2", spied_sliced)
    quality_figures(synthetic, REAL, HeldOut(blobs(60, 2), classes=3), seeds=(0,), size=60)
    fitted = {image.numpy().tobytes() for image in seen["fitted"].images}
    measured = {image.numpy().tobytes() for image in seen["measured"][1]}
    known = {image.numpy().tobytes() for image in REAL.images}
    assert len(fitted) == len(measured) == 60
    assert fitted | measured == known


@pytest.mark.medium
def test_fid_is_measured_when_there_are_weights_and_images_enough(monkeypatch):
    """Another network replaces the weights, which are not here, to see where its features go."""
    monkeypatch.setattr(image_quality, "INCEPTION_FEATURES", 30)
    monkeypatch.setattr(image_quality, "load_inception", lambda: "network")
    shown = []

    def features(network, images):
        shown.append((network, len(images)))
        return images.flatten(1)[:, :3]

    monkeypatch.setattr(image_quality, "inception_features", features)
    figures, left_out = quality_figures(
        synthetic, REAL, HeldOut(blobs(40, 2), classes=3), seeds=(0, 1), size=40
    )
    assert left_out == {}
    assert shown == [("network", 40)] * 4
    assert len(figures["fid"].synthetic.values) == 1
    assert 0 <= figures["fid"].synthetic.mean < figures["fid"].class_means.mean


def test_a_network_that_is_given_takes_the_place_of_the_cached_one(monkeypatch):
    monkeypatch.setattr(image_quality, "INCEPTION_FEATURES", 30)
    shown = []

    def features(network, images):
        shown.append(network)
        return images.flatten(1)[:, :3]

    monkeypatch.setattr(image_quality, "inception_features", features)
    figures, left_out = quality_figures(
        synthetic, REAL, HeldOut(blobs(40, 2), classes=3), seeds=(0,), size=40, reference=False,
        inception="given",
    )  # fmt: skip
    assert left_out == {}
    assert shown == ["given"] * 2
    assert figures["fid"].synthetic.mean >= 0


def test_without_weights_the_reason_is_named(monkeypatch):
    monkeypatch.setattr(image_quality, "INCEPTION_FEATURES", 30)

    def missing():
        raise ModelError("no weights here")

    monkeypatch.setattr(image_quality, "load_inception", missing)
    figures, left_out = quality_figures(
        synthetic, REAL, HeldOut(blobs(40, 2), classes=3), seeds=(0,), size=40, reference=False
    )
    assert left_out == {"fid": "no weights here"}
    assert "fid" not in figures


def test_too_few_images_for_a_split_of_the_score():
    few = HeldOut(blobs(9, 2), classes=3)
    with pytest.raises(DataError, match="at least 10 images on each side; received 9"):
        quality_figures(synthetic, REAL, few, seeds=(0,), size=100)


def test_the_halves_share_nothing_and_keep_labels():
    first, second = (REAL.at(half) for half in shuffled(len(REAL), 3).tensor_split(2))
    assert len(first) == len(second) == 60
    both = torch.cat([first.images, second.images]).flatten(1)
    assert len(both.unique(dim=0)) == 120
    label_of = {i.numpy().tobytes(): int(y) for i, y in zip(REAL.images, REAL.labels, strict=True)}
    assert [label_of[i.numpy().tobytes()] for i in second.images] == second.labels.tolist()


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
