from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import types

import pytest
import torch
from fedsink_papers.evaluation import classifiers as module
from fedsink_papers.evaluation.classifiers import (
    FEATURES,
    PAPER,
    classifier_set,
    label_consistency,
    train_lenet,
    train_real_classifier,
)

from fedsink.errors import DataError
from fedsink.results.evaluation.classifiers import FAST, Classic, train_nearest_class_mean
from fedsink.results.evaluation.networks import HOLD_OUT, MAX_EPOCHS, PATIENCE
from fedsink.results.evaluation.sets import HeldOut, TrainingSet
from tests.support.clouds import blobs

BOTH = ("ours", "published")
CLASSICS = [
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
XGBOOST = [] if importlib.util.find_spec("xgboost") is None else ["xgboost"]
SETS = [(which, name) for which in BOTH for name in CLASSICS]
SHAPE = (1, 12, 12)


def trainers(which, shape=SHAPE):
    return classifier_set(which, shape)[0]


def test_ours_has_the_nearest_mean_and_published_is_the_list_of_chen_et_al():
    assert list(trainers("ours")) == [*PAPER, *CLASSICS, *XGBOOST]
    assert list(trainers("published")) == [*PAPER[:3], *CLASSICS, *XGBOOST]


def test_what_cannot_be_fitted_is_left_out_with_the_reason(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    small = classifier_set("published", (1, 8, 8))
    assert "cnn" not in small[0]
    assert small[1] == {
        "xgboost": "xgboost is not installed (pip install xgboost adds the row)",
        "cnn": "LeNet needs images of at least 12×12 pixels",
    }
    assert list(classifier_set("ours", (1, 8, 8))[1]) == ["xgboost"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    for which in BOTH:
        assert "xgboost" in trainers(which)
        assert classifier_set(which, SHAPE)[1] == {}


def test_the_options_of_the_public_code(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    published = trainers("published")
    options = {
        name: (each.path.rpartition(".")[2], each.options)
        for name, each in published.items()
        if isinstance(each, Classic)
    }
    assert options == {
        "logreg": ("LogisticRegression", {"solver": "lbfgs", "max_iter": 5000}),
        "mlp": ("MLPClassifier", {}),
        "random_forest": ("RandomForestClassifier", {"class_weight": "balanced"}),
        "gaussian_nb": ("GaussianNB", {}),
        "bernoulli_nb": ("BernoulliNB", {"binarize": 0.5}),
        "linear_svc": ("LinearSVC", {"loss": "hinge", "max_iter": 10_000, "tol": 1e-8}),
        "decision_tree": ("DecisionTreeClassifier", {"class_weight": "balanced"}),
        "lda": ("LinearDiscriminantAnalysis", {"solver": "eigen", "shrinkage": 0.5}),
        "adaboost": ("AdaBoostClassifier", {"n_estimators": 100}),
        "bagging": ("BaggingClassifier", {"n_estimators": 20, "max_samples": 0.1}),
        "gradient_boosting": (
            "GradientBoostingClassifier",
            {"n_estimators": 50, "subsample": 0.1},
        ),
        "xgboost": ("XGBClassifier", {"n_estimators": 50, "colsample_bytree": 0.1}),
    }
    assert published["cnn"] is train_lenet


@pytest.mark.medium
@pytest.mark.parametrize(("which", "name"), SETS)
def test_every_classifier_learns_and_leaves_absent_classes_out(which, name):
    images, labels = blobs(400, 0, classes=4)
    kept = labels != 2
    classify = trainers(which)[name](images[kept], labels[kept], classes=4, seed=0)
    fresh, truth = blobs(120, 1, classes=4)
    predicted = classify(fresh[truth != 2])
    assert float((predicted == truth[truth != 2]).double().mean()) > 0.85
    assert set(predicted.tolist()) <= {0, 1, 3}


@pytest.mark.parametrize(("which", "name"), [*SETS, ("ours", "logreg"), ("published", "mlp")])
def test_a_single_class_is_predicted_everywhere_and_class_means_are_learnt_without_an_error(
    which, name
):
    images, labels = blobs(40, 0)
    trainer = trainers(which)[name]
    assert trainer(images, torch.full((40,), 2), classes=3, seed=0)(images[:5]).tolist() == [2] * 5
    means = torch.stack([images[labels == c].mean(dim=0) for c in range(3)])
    index = torch.arange(60) % 3
    assert trainer(means[index], index, classes=3, seed=0)(images).shape == (40,)


def test_the_published_mlp_learns():
    images, labels = blobs(200, 0)
    classify = trainers("published")["mlp"](images, labels, classes=3, seed=0)
    fresh, truth = blobs(90, 1)
    assert float((classify(fresh) == truth).double().mean()) > 0.95


@pytest.mark.parametrize("which", ["fast", *BOTH])
def test_no_trainer_can_be_given_a_test_set(which):
    for trainer in (FAST if which == "fast" else trainers(which)).values():
        parameters = list(inspect.signature(trainer).parameters)
        assert parameters[:5] == ["images", "labels", "classes", "seed", "report"]
        assert set(parameters[5:]) <= {"budget"}


@pytest.mark.medium
def test_our_networks_are_stopped_only_by_their_hold_out():
    """Random labels: the loss on the hold-out stops training long before the cap on epochs."""
    assert (HOLD_OUT, PATIENCE) == (0.1, 10)
    images = torch.rand(2000, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(0, 3, (2000,), generator=torch.Generator().manual_seed(1))
    lines: list[str] = []
    trainers("ours")["cnn"](images, labels, classes=3, seed=0, report=lines.append)
    assert f"of at most {MAX_EPOCHS}," in lines[0]
    assert re.search(r", at most .+ left$", lines[0])
    assert PATIENCE < len(lines) < MAX_EPOCHS / 2


FOREST = "sklearn.ensemble.RandomForestClassifier"


@pytest.mark.medium
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
    """Another tree, with the interface of its scikit-learn class, replaces xgboost."""
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


@pytest.fixture(scope="module")
def classifier():
    data = TrainingSet.of(blobs(300, 0), classes=3, origin="real training")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedsink.results.evaluation.networks.MAX_EPOCHS", 40)
        return train_real_classifier(data, seed=0)


@pytest.mark.medium
def test_a_real_classifier_knows_fresh_images_of_its_law(classifier):
    held_out = HeldOut(blobs(150, 1), classes=3)
    assert held_out.score(classifier.classify) > 0.97


def test_probabilities_are_the_softmax_of_the_features_shown(classifier):
    features = classifier.features(blobs(50, 1)[0])
    assert features.shape == (50, FEATURES)
    assert float(features.min()) >= 0
    probabilities = classifier.probabilities(features)
    assert torch.allclose(probabilities.sum(dim=1), torch.ones(50, dtype=torch.float64))
    logits = features @ classifier.head[1].weight.T + classifier.head[1].bias
    assert torch.allclose(probabilities, logits.double().softmax(dim=1), atol=1e-5)


def test_a_real_classifier_does_not_depend_on_the_batches_and_drops_nothing_when_finished(
    classifier,
):
    images = blobs(1500, 1)[0]
    assert torch.equal(classifier.classify(images), classifier.classify(images))
    assert torch.allclose(
        classifier.features(images)[:7], classifier.features(images[:7]), atol=1e-5
    )


def test_label_consistency_follows_the_labels(classifier):
    images, labels = blobs(90, 2)
    right = TrainingSet.of((images, labels), classes=3, origin="synthetic")
    wrong = TrainingSet.of((images, (labels + 1) % 3), classes=3, origin="synthetic")
    half = TrainingSet.of(
        (images, torch.where(torch.arange(90) < 45, labels, (labels + 1) % 3)),
        classes=3,
        origin="synthetic",
    )
    assert label_consistency(classifier, right) > 0.97
    assert label_consistency(classifier, wrong) < 0.03
    assert label_consistency(classifier, half) == pytest.approx(0.5, abs=0.03)


@pytest.mark.medium
def test_the_seed_decides_a_real_classifier_and_no_global_generator_moves(monkeypatch):
    monkeypatch.setattr("fedsink.results.evaluation.networks.MAX_EPOCHS", 40)
    data = TrainingSet.of(blobs(60, 0), classes=3, origin="real training")
    before = torch.get_rng_state()
    probe = blobs(20, 5)[0]
    first, again, other = (
        train_real_classifier(data, seed=seed).features(probe) for seed in (0, 0, 1)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_real_classifier_is_not_fitted_to_test_images():
    with pytest.raises(TypeError, match="fitted to a TrainingSet; received HeldOut"):
        train_real_classifier(HeldOut(blobs(60, 0), classes=3), seed=0)


@pytest.mark.medium
@pytest.mark.parametrize("shape", [(1, 12, 12), (3, 13, 16), (1, 28, 28)])
def test_learns_at_every_size_and_depth(shape, monkeypatch):
    monkeypatch.setattr(module, "LENET_EPOCHS", 20)
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 2
    images = 0.3 * torch.rand(300, *shape, generator=generator)
    images[labels == 0, :, ::2] += 0.7
    images[labels == 1, :, :, ::2] += 0.7
    classify = train_lenet(images, labels, classes=2, seed=0)
    assert float((classify(images) == labels).double().mean()) > 0.95


def test_trains_fifty_epochs_on_all_images_with_one_step_down(monkeypatch):
    lines: list[str] = []
    orders, rates = [], []
    true_epoch = module.train_epoch

    def spied(network, optimiser, images, labels, order):
        orders.append(order)
        rates.append(optimiser.param_groups[0]["lr"])
        group = optimiser.param_groups[0]
        assert (group["momentum"], group["weight_decay"]) == (0.9, 1e-4)
        true_epoch(network, optimiser, images, labels, order)

    monkeypatch.setattr(module, "train_epoch", spied)
    train_lenet(*blobs(20, 0, side=12), classes=3, seed=0, report=lines.append)
    assert all(sorted(order.tolist()) == list(range(20)) for order in orders)
    assert rates == pytest.approx([0.02] * 40 + [0.002] * 10)
    assert lines[-1] == "lenet: epoch 50 of 50"
    assert len(lines) == 50


def test_pixels_are_shifted_for_training_and_for_judging(monkeypatch):
    monkeypatch.setattr(module, "LENET_EPOCHS", 1)
    shown = []
    true_epoch, true_logits = module.train_epoch, module.logits
    monkeypatch.setattr(
        module, "train_epoch", lambda *args: shown.append(args[2]) or true_epoch(*args)
    )
    monkeypatch.setattr(
        module, "logits", lambda network, x: shown.append(x) or true_logits(network, x)
    )
    images = torch.full((10, 1, 12, 12), 0.1307)
    classify = train_lenet(images, torch.arange(10) % 2, classes=2, seed=0)
    classify(images + 0.3081)
    assert float(shown[0].abs().max()) < 1e-6
    assert torch.allclose(shown[1], torch.ones_like(images), atol=1e-5)


def test_the_seed_decides_it_and_no_global_generator_moves(monkeypatch):
    monkeypatch.setattr(module, "LENET_EPOCHS", 2)
    logits = []
    true_logits = module.logits
    monkeypatch.setattr(
        module, "logits", lambda *args: logits.append(true_logits(*args)) or logits[-1]
    )
    before = torch.get_rng_state()
    images, labels = blobs(40, 0, side=12)
    for seed in (0, 0, 1):
        train_lenet(images, labels, classes=3, seed=seed)(images)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


def test_refuses_images_too_small_for_two_convolutions():
    with pytest.raises(DataError, match="at least 12×12 pixels; received 11×16"):
        train_lenet(torch.rand(20, 1, 11, 16), torch.arange(20) % 2, classes=2, seed=0)
