from __future__ import annotations

import importlib.util
import inspect
import sys
import types

import pytest
import torch

from fedsink.evaluation.classifiers import classic
from fedsink.evaluation.classifiers.classic import classic_trainers

from ...support.clouds import blobs

NAMES = [
    "random_forest",
    "gaussian_nb",
    "bernoulli_nb",
    "linear_svc",
    "decision_tree",
    "lda",
    "adaboost",
    "bagging",
    "gradient_boosting",
]


def test_the_list_holds_xgboost_only_where_it_is_installed():
    installed = importlib.util.find_spec("xgboost") is not None
    assert list(classic_trainers()) == [*NAMES, *(["xgboost"] if installed else [])]


@pytest.mark.parametrize("name", NAMES)
def test_every_classifier_learns_and_leaves_absent_classes_out(name):
    images, labels = blobs(120, 0, classes=4)
    kept = labels != 2
    classify = classic_trainers()[name](images[kept], labels[kept], classes=4, seed=0)
    fresh, truth = blobs(120, 1, classes=4)
    predicted = classify(fresh[truth != 2])
    assert float((predicted == truth[truth != 2]).double().mean()) > 0.85
    assert set(predicted.tolist()) <= {0, 1, 3}


@pytest.mark.parametrize("name", NAMES)
def test_a_single_class_is_predicted_everywhere_and_class_means_are_learnt_without_an_error(name):
    images, labels = blobs(40, 0)
    trainer = classic_trainers()[name]
    assert trainer(images, torch.full((40,), 2), classes=3, seed=0)(images[:5]).tolist() == [2] * 5
    means = torch.stack([images[labels == c].mean(dim=0) for c in range(3)])
    index = torch.arange(60) % 3
    assert trainer(means[index], index, classes=3, seed=0)(images).shape == (40,)


def test_the_seed_decides_a_forest():
    images = torch.rand(80, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(0, 5, (80,), generator=torch.Generator().manual_seed(1))
    probe = torch.rand(300, 1, 4, 4, generator=torch.Generator().manual_seed(2))
    first, again, other = (
        classic_trainers()["random_forest"](images, labels, classes=5, seed=seed)(probe)
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_xgboost_gets_consecutive_labels_and_its_answers_are_translated_back(monkeypatch):
    """Not installed here: this is the interface of its scikit-learn class, met by another tree."""
    from sklearn.tree import DecisionTreeClassifier

    class XGBClassifier(DecisionTreeClassifier):
        def __init__(self, random_state=None, n_jobs=None):
            super().__init__(random_state=random_state)
            self.n_jobs = n_jobs

        def fit(self, x, y):
            assert sorted(set(y.tolist())) == list(range(len(set(y.tolist()))))
            return super().fit(x, y)

    module = types.ModuleType("xgboost")
    module.XGBClassifier = XGBClassifier
    monkeypatch.setitem(sys.modules, "xgboost", module)
    monkeypatch.setattr(classic.importlib.util, "find_spec", lambda name: module)
    images, labels = blobs(60, 0)
    kept = labels != 0
    classify = classic_trainers()["xgboost"](images[kept], labels[kept], classes=3, seed=0)
    assert torch.equal(classify(images[kept]), labels[kept])


def test_no_trainer_can_be_given_a_test_set():
    for trainer in classic_trainers().values():
        assert list(inspect.signature(trainer).parameters) == [
            "images",
            "labels",
            "classes",
            "seed",
            "report",
        ]


def test_reports_what_it_fits():
    lines: list[str] = []
    classic_trainers()["gaussian_nb"](*blobs(30, 0), classes=3, seed=0, report=lines.append)
    assert lines == ["gaussian_nb: 30 images"]
