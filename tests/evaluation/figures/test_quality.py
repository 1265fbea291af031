from __future__ import annotations

import pytest
import torch

from fedsink.errors import DataError, ModelError
from fedsink.evaluation.figures import quality
from fedsink.evaluation.figures.quality import quality_figures
from fedsink.evaluation.sets import HeldOut, TrainingSet

from ...support.clouds import blobs

pytestmark = pytest.mark.usefixtures("few_epochs")

REAL = TrainingSet.of(blobs(120, 1), classes=3, origin="real training")


def synthetic(size: int, seed: int) -> TrainingSet:
    return TrainingSet.of(blobs(size, 100 + seed), classes=3, origin="synthetic")


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
    true_train = quality.train_real_classifier

    def spied(training, **more):
        seen["fitted"] = training
        return true_train(training, **more)

    def spied_prdc(real, fake):
        return dict.fromkeys(("precision", "recall", "density", "coverage"), 1.0)

    true_sliced = quality.sliced_w2

    def spied_sliced(x, y, *, seed):
        seen.setdefault("measured", []).append(x)
        return true_sliced(x, y, seed=seed, projections=2)

    monkeypatch.setattr(quality, "train_real_classifier", spied)
    monkeypatch.setattr(quality, "prdc", spied_prdc)
    monkeypatch.setattr(quality, "sliced_w2", spied_sliced)
    quality_figures(synthetic, REAL, HeldOut(blobs(60, 2), classes=3), seeds=(0,), size=60)
    fitted = {image.numpy().tobytes() for image in seen["fitted"].images}
    measured = {image.numpy().tobytes() for image in seen["measured"][1]}
    known = {image.numpy().tobytes() for image in REAL.images}
    assert len(fitted) == len(measured) == 60
    assert fitted | measured == known


def test_fid_is_measured_when_there_are_weights_and_images_enough(monkeypatch):
    """The weights are not here: another network stands in, to see where its features go."""
    monkeypatch.setattr(quality, "INCEPTION_FEATURES", 30)
    monkeypatch.setattr(quality, "load_inception", lambda: "network")
    asked = []

    def features(network, images):
        asked.append((network, len(images)))
        return images.flatten(1)[:, :3]

    monkeypatch.setattr(quality, "inception_features", features)
    figures, left_out = quality_figures(
        synthetic, REAL, HeldOut(blobs(40, 2), classes=3), seeds=(0, 1), size=40
    )
    assert left_out == {}
    assert asked == [("network", 40)] * 4
    assert len(figures["fid"].synthetic.values) == 1
    assert 0 <= figures["fid"].synthetic.mean < figures["fid"].class_means.mean


def test_without_weights_the_reason_is_named(monkeypatch):
    monkeypatch.setattr(quality, "INCEPTION_FEATURES", 30)

    def missing():
        raise ModelError("no weights here")

    monkeypatch.setattr(quality, "load_inception", missing)
    figures, left_out = quality_figures(
        synthetic, REAL, HeldOut(blobs(40, 2), classes=3), seeds=(0,), size=40, reference=False
    )
    assert left_out == {"fid": "no weights here"}
    assert "fid" not in figures


def test_too_few_images_for_a_neighbourhood():
    few = HeldOut(blobs(5, 2), classes=3)
    with pytest.raises(DataError, match="more than 5 images on each side; received 5"):
        quality_figures(synthetic, REAL, few, seeds=(0,), size=100)


def test_the_halves_share_nothing_and_keep_labels():
    first, second = quality._halves(REAL, 3)
    assert len(first) == len(second) == 60
    both = torch.cat([first.images, second.images]).flatten(1)
    assert len(both.unique(dim=0)) == 120
    label_of = {i.numpy().tobytes(): int(y) for i, y in zip(REAL.images, REAL.labels, strict=True)}
    assert [label_of[i.numpy().tobytes()] for i in second.images] == second.labels.tolist()
