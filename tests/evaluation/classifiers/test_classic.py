from __future__ import annotations

import sys
import types

import torch

from fedsink.evaluation.classifiers.class_means import train_nearest_class_mean
from fedsink.evaluation.classifiers.classic import Classic

from ...support.clouds import blobs

FOREST = "sklearn.ensemble.RandomForestClassifier"


def test_the_seed_decides_a_forest():
    images = torch.rand(80, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(0, 5, (80,), generator=torch.Generator().manual_seed(1))
    probe = torch.rand(300, 1, 4, 4, generator=torch.Generator().manual_seed(2))
    first, again, other = (
        Classic(FOREST)(images, labels, classes=5, seed=seed)(probe) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_library_gets_the_options_and_the_seed():
    model = Classic(FOREST, class_weight="balanced")._model(seed=5)
    assert type(model).__name__ == "RandomForestClassifier"
    assert (model.class_weight, model.random_state, model.n_estimators) == ("balanced", 5, 100)


def test_xgboost_gets_consecutive_labels_and_its_answers_are_translated_back(monkeypatch):
    """Not installed here: this is the interface of its scikit-learn class, met by another tree."""
    from sklearn.tree import DecisionTreeClassifier

    models = []

    class XGBClassifier(DecisionTreeClassifier):
        def __init__(self, random_state=None, n_jobs=None):
            super().__init__(random_state=random_state)
            self.n_jobs = n_jobs

        def fit(self, x, y):
            assert sorted(set(y.tolist())) == list(range(len(set(y.tolist()))))
            models.append(self)
            return super().fit(x, y)

    module = types.ModuleType("xgboost")
    module.XGBClassifier = XGBClassifier
    monkeypatch.setitem(sys.modules, "xgboost", module)
    images, labels = blobs(60, 0)
    kept = labels != 0
    classify = Classic("xgboost.XGBClassifier")(images[kept], labels[kept], classes=3, seed=7)
    assert torch.equal(classify(images[kept]), labels[kept])
    assert (models[0].random_state, models[0].n_jobs) == (7, torch.get_num_threads())


def test_the_eigen_solver_on_pictures_without_variation_is_the_nearest_mean():
    images, labels = blobs(40, 0)
    means = torch.stack([images[labels == c].mean(dim=0) for c in range(3)])
    index = torch.arange(60) % 3
    lda = Classic(
        "sklearn.discriminant_analysis.LinearDiscriminantAnalysis", solver="eigen", shrinkage=0.5
    )
    expected = train_nearest_class_mean(means[index], index, classes=3, seed=0)(images)
    assert torch.equal(lda(means[index], index, classes=3, seed=0)(images), expected)


def test_reports_what_it_fits():
    lines: list[str] = []
    trainer = Classic("sklearn.naive_bayes.GaussianNB")
    trainer(*blobs(30, 0), classes=3, seed=0, report=lines.append)
    assert lines == ["GaussianNB: 30 images"]
