from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsink.errors import DataError, ModelError
from fedsink.evaluation import downstream
from fedsink.evaluation.classifiers import FAST, train_nearest_class_mean
from fedsink.evaluation.columns import Figure, Spread
from fedsink.evaluation.downstream import accuracies, accuracy_figures, calibrated
from fedsink.evaluation.sets import HeldOut, TrainingSet

from ..support.clouds import blobs

SIMPLE = {"nearest_class_mean": train_nearest_class_mean}


def synthetic(size: int, seed: int) -> TrainingSet:
    return TrainingSet.of(blobs(size, 100 + seed), classes=3, origin="synthetic")


def real(n: int = 90) -> TrainingSet:
    return TrainingSet.of(blobs(n, 1), classes=3, origin="real training")


@pytest.mark.parametrize(("there", "ceiling"), [(30, 30), (90, 60)])
def test_every_run_draws_fits_everything_and_only_then_scores(monkeypatch, there, ceiling):
    events = []

    def spied(name):
        def train(images, labels, *, classes, seed, report):
            events.append((f"fit {name}", len(images), seed))
            return lambda new: torch.zeros(len(new), dtype=torch.int64)

        return train

    true_score = HeldOut.score
    monkeypatch.setattr(
        HeldOut, "score", lambda self, c: events.append(("score",)) or true_score(self, c)
    )
    trainers = {"a": spied("a"), "b": spied("b")}
    accuracy_figures(
        synthetic, real(there), HeldOut(blobs(30, 2), classes=3), trainers, seeds=(5, 6), size=60
    )
    run = lambda size, seed: [("fit a", size, seed), ("fit b", size, seed), ("score",), ("score",)]  # noqa: E731
    expected = [run(size, seed) for size in (60, ceiling, 60) for seed in (5, 6)]
    assert events == [event for events_of_run in expected for event in events_of_run]


def test_columns_are_what_they_are_called():
    shifted = lambda size, seed: TrainingSet(  # noqa: E731
        synthetic(size, seed).images, (synthetic(size, seed).labels + 1) % 3, 3, "synthetic"
    )
    figure = accuracy_figures(
        shifted, real(), HeldOut(blobs(60, 2), classes=3), SIMPLE, seeds=(0, 1), size=300
    )["accuracy/nearest_class_mean"]
    assert figure.synthetic.mean < 0.05  # it learns the synthetic labels
    assert figure.real.mean > 0.95
    assert figure.class_means.mean == figure.real.mean  # the same means
    assert (figure.synthetic.size, figure.real.size, figure.class_means.size) == (300, 90, 100)
    assert figure.share


def test_without_real_images_there_is_one_column():
    figure = accuracy_figures(
        synthetic, None, HeldOut(blobs(60, 2), classes=3), SIMPLE, seeds=(0,), size=30
    )["accuracy/nearest_class_mean"]
    assert figure.real is None
    assert figure.class_means is None


def test_a_generator_that_draws_the_test_images_is_refused_in_any_run():
    test = blobs(60, 2)

    def leaking(size, seed):
        return TrainingSet.of(test if seed == 1 else blobs(60, 50), classes=3, origin="synthetic")

    with pytest.raises(DataError, match="60 of the 60 synthetic images are images of the test set"):
        accuracy_figures(leaking, None, HeldOut(test, classes=3), SIMPLE, seeds=(0, 1), size=60)


def test_calibrated_is_the_ratio_to_the_real_mean_and_the_means_are_run_by_run():
    figures = {
        "accuracy/a": Figure(
            Spread((0.4, 0.6), 9), Spread((0.7, 0.9), 9), Spread((0.2, 0.2), 5), True
        ),
        "accuracy/b": Figure(
            Spread((0.2, 0.1), 9), Spread((0.4, 0.4), 9), Spread((0.1, 0.1), 5), True
        ),
    }
    found = calibrated(figures)
    assert found["calibrated/a"].synthetic.values == pytest.approx((0.5, 0.75))
    assert found["calibrated/b"].synthetic.values == pytest.approx((0.5, 0.25))
    assert found["calibrated/a"].real.mean == pytest.approx(1)
    assert found["calibrated/a"].class_means.values == pytest.approx((0.25, 0.25))
    assert found["accuracy/mean"].synthetic.values == pytest.approx((0.3, 0.35))
    assert found["calibrated/mean"].synthetic.values == pytest.approx((0.5, 0.5))
    assert list(found) == ["calibrated/a", "calibrated/b", "accuracy/mean", "calibrated/mean"]


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits

    raw = load_digits()
    images = torch.tensor(raw.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(raw.target, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    return (images[:1400], labels[:1400]), (images[1400:], labels[1400:])


@pytest.mark.slow
def test_real_digits_reach_the_known_figures(digits):
    train, test = digits
    figures = accuracies(train, test, classes=10, seed=0, origin="real training", threads=1)
    assert list(figures) == ["logreg", "mlp", "cnn"]
    assert 0.94 < figures["logreg"] < 0.98
    assert 0.95 < figures["mlp"] < 0.99
    assert 0.975 < figures["cnn"] <= 1


@pytest.mark.medium
def test_figures_come_from_the_synthetic_labels():
    images, labels = blobs(60, seed=0)
    test = blobs(90, seed=1)
    assert min(accuracies((images, labels), test, classes=3, seed=0).values()) > 0.95
    shifted = (images, (labels + 1) % 3)
    assert max(accuracies(shifted, test, classes=3, seed=0).values()) < 0.05


@pytest.mark.medium
def test_every_classifier_is_finished_before_the_test_set_is_scored(monkeypatch):
    events: list[str] = []

    def spied(name, train):
        def spy(images, labels, *, classes, seed, report):
            events.append(f"train {name}")
            return train(images, labels, classes=classes, seed=seed, report=report)

        return spy

    monkeypatch.setattr(downstream, "FAST", {n: spied(n, t) for n, t in FAST.items()})
    true_score = HeldOut.score

    def spied_score(self, classifier):
        events.append("score")
        return true_score(self, classifier)

    monkeypatch.setattr(HeldOut, "score", spied_score)
    accuracies(blobs(30, seed=0), blobs(20, seed=1), classes=3, seed=0)
    assert events == ["train logreg", "train mlp", "train cnn", "score", "score", "score"]


@pytest.mark.slow
def test_classifiers_do_not_depend_on_the_test_set(monkeypatch):
    probe = torch.rand(200, 1, 8, 8, generator=torch.Generator().manual_seed(5))
    seen: list[Tensor] = []
    true_score = HeldOut.score

    def spied_score(self, classifier):
        seen.append(classifier(probe))
        return true_score(self, classifier)

    monkeypatch.setattr(HeldOut, "score", spied_score)
    synthetic = blobs(60, seed=0)
    accuracies(synthetic, blobs(50, seed=1), classes=3, seed=0)
    accuracies(synthetic, (torch.zeros(4, 1, 8, 8), torch.tensor([2, 2, 2, 2])), classes=3, seed=0)
    for first, second in zip(seen[:3], seen[3:], strict=True):
        assert torch.equal(first, second)


@pytest.mark.medium
def test_the_same_seed_gives_the_same_figures_and_no_global_generator_moves():
    synthetic, test = blobs(60, seed=0), blobs(301, seed=1)
    noisy = synthetic[0], torch.randint(0, 3, (60,), generator=torch.Generator().manual_seed(0))
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    first = accuracies(noisy, test, classes=3, seed=0, threads=1)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert random.getstate() == states[2]
    torch.manual_seed(12345)
    assert accuracies(noisy, test, classes=3, seed=0, threads=1) == first
    assert accuracies(noisy, test, classes=3, seed=1, threads=1) != first


@pytest.mark.medium
def test_a_collapsed_generator_still_gets_its_figures():
    images, _ = blobs(40, seed=0)
    test = blobs(90, seed=1)
    figures = accuracies((images, torch.full((40,), 1)), test, classes=3, seed=0)
    assert figures == {"logreg": 1 / 3, "mlp": 1 / 3, "cnn": 1 / 3}


@pytest.mark.medium
def test_reports_lines_from_every_classifier():
    lines: list[str] = []
    accuracies(blobs(30, 0), blobs(20, 1), classes=3, seed=0, progress=lines.append)
    assert {line.split(":")[0] for line in lines} == {"LogisticRegression", "mlp", "cnn"}


def test_lines_say_which_set_they_are_of_and_what_is_left():
    lines: list[str] = []

    def trainer(images, labels, *, classes, seed, report):
        report("cnn: done")
        return lambda new: torch.zeros(len(new), dtype=torch.int64)

    def synthetic(size, seed):
        return TrainingSet.of(blobs(20, seed), classes=3, origin="synthetic")

    real = TrainingSet.of(blobs(20, 5), classes=3, origin="real training")
    test = HeldOut(blobs(20, 6), classes=3)
    downstream.accuracy_figures(
        synthetic, real, test, {"cnn": trainer}, seeds=(3, 4), size=20, report=lines.append
    )
    left = " (about 0:00 left from here)"
    assert [line for line in lines if "cnn" in line] == [
        "synthetic images, seed 3: cnn: done",
        f"synthetic images, seed 4{left}: cnn: done",
        f"real training images, seed 3{left}: cnn: done",
        f"real training images, seed 4{left}: cnn: done",
        "class mean images, seed 3: cnn: done",
        "class mean images, seed 4: cnn: done",
    ]


def test_a_size_cuts_the_training_set(monkeypatch):
    sizes: list[int] = []

    def trainer(images, labels, *, classes, seed, report):
        sizes.append(len({tuple(image.flatten().tolist()) for image in images}))
        return lambda new: torch.zeros(len(new), dtype=torch.int64)

    monkeypatch.setattr(downstream, "FAST", {"logreg": trainer})
    for size in (20, 60, 61, None):
        accuracies(blobs(60, 0), blobs(20, 1), classes=3, seed=0, size=size)
    assert sizes == [20, 60, 60, 60]


@pytest.mark.parametrize("bad", ["shape", "synthetic", "test", "few"])
def test_refusals(bad):
    synthetic, test = blobs(30, 0), blobs(20, 1)
    error, message = DataError, ""
    if bad == "shape":
        test = test[0][:, :, :7], test[1]
        message = r"received \(1, 8, 8\) and \(1, 7, 8\)"
    elif bad == "synthetic":
        synthetic = synthetic[0] * float("nan"), synthetic[1]
        error, message = ModelError, "synthetic images hold values that are not finite"
    elif bad == "test":
        test = test[0], test[1] + 1
        message = "test labels must lie in"
    else:
        synthetic = synthetic[0][:5], synthetic[1][:5]
        message = "at least 10 synthetic images; received 5"
    with pytest.raises(error, match=message):
        accuracies(synthetic, test, classes=3, seed=0)


@pytest.mark.slow
def test_importing_the_package_is_light():
    code = (
        "import sys, fedsink.evaluation\n"
        "heavy = {'sklearn', 'scipy', 'ot', 'threadpoolctl', 'torchvision', 'rich', 'PIL'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"
