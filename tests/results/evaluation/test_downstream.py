from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsink.errors import DataError, ModelError
from fedsink.results.evaluation.classifiers import FAST
from fedsink.results.evaluation.downstream import accuracies
from fedsink.results.evaluation.sets import HeldOut

from ...support.clouds import blobs


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

    true_score = HeldOut.score

    def spied_score(self, classifier):
        events.append("score")
        return true_score(self, classifier)

    monkeypatch.setattr(HeldOut, "score", spied_score)
    trainers = {name: spied(name, train) for name, train in FAST.items()}
    accuracies(blobs(30, seed=0), blobs(20, seed=1), classes=3, seed=0, trainers=trainers)
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


def test_a_size_cuts_the_training_set():
    sizes: list[int] = []

    def trainer(images, labels, *, classes, seed, report):
        sizes.append(len({tuple(image.flatten().tolist()) for image in images}))
        return lambda new: torch.zeros(len(new), dtype=torch.int64)

    for size in (20, 60, 61, None):
        accuracies(
            blobs(60, 0), blobs(20, 1), classes=3, seed=0, size=size, trainers={"logreg": trainer}
        )
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
        "import sys, fedsink.results.evaluation\n"
        "heavy = {'sklearn', 'scipy', 'ot', 'threadpoolctl', 'torchvision', 'rich', 'PIL'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"
