from __future__ import annotations

import re

import pytest
import torch
from fedsink_papers.evaluation import accuracy
from fedsink_papers.evaluation.accuracy import accuracy_figures, calibrated
from fedsink_papers.evaluation.columns import Figure, Spread

from fedsink.errors import DataError
from fedsink.results.evaluation.classifiers import train_nearest_class_mean
from fedsink.results.evaluation.sets import HeldOut, TrainingSet
from tests.support.clouds import blobs

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
    assert figure.fraction


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


def test_lines_say_which_set_they_are_of_and_what_is_left():
    lines: list[str] = []

    def trainer(images, labels, *, classes, seed, report):
        report("cnn: done")
        return lambda new: torch.zeros(len(new), dtype=torch.int64)

    def synthetic(size, seed):
        return TrainingSet.of(blobs(20, seed), classes=3, origin="synthetic")

    real = TrainingSet.of(blobs(20, 5), classes=3, origin="real training")
    test = HeldOut(blobs(20, 6), classes=3)
    accuracy.accuracy_figures(
        synthetic, real, test, {"cnn": trainer}, seeds=(3, 4), size=20, report=lines.append
    )
    left = " (about T left from here)"
    told = [re.sub("about .* left", "about T left", line) for line in lines if "cnn" in line]
    assert told == [
        "synthetic images, seed 3: cnn: done",
        f"synthetic images, seed 4{left}: cnn: done",
        f"real training images, seed 3{left}: cnn: done",
        f"real training images, seed 4{left}: cnn: done",
        "class mean images, seed 3: cnn: done",
        "class mean images, seed 4: cnn: done",
    ]
