"""Classifiers that judge a generator, with our options and with those of Chen et al. 2020.

One more classifier, of real images, lends other figures its judgement and its features.

>>> trainers, left_out = classifier_set("published", (1, 28, 28))
>>> list(trainers)[:4]
['logreg', 'mlp', 'cnn', 'random_forest']
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import skip_init

from fedsink.evaluation.neighbours import nearest
from fedsink.evaluation.networks import (
    CNN_BUDGET,
    DROPOUT,
    LENET_SMALLEST,
    PREDICTION_BATCH,
    SeededDropout,
    convolutions,
    epoch_cap,
    fit,
    train_cnn,
    train_lenet,
    train_mlp,
)
from fedsink.evaluation.sets import Classifier, ClassifierTrainer, Report, TrainingSet, class_means
from fedsink.models.layers import initialise


def train_nearest_class_mean(
    images: Tensor, labels: Tensor, *, classes: int, seed: int, report: Report | None = None
) -> Classifier:
    """Predicts the class with the nearest mean, `argmin_c ‖x − x̄_c‖₂`.

    It is a `ClassifierTrainer`, and learns the least that labelled pictures can teach: nothing is
    held out, and nothing is drawn.
    """
    means, present = class_means(images, labels)
    if report is not None:
        report(f"nearest class mean: {len(present)} classes")

    def classify(new_images: Tensor) -> Tensor:
        _, index = nearest(new_images.flatten(1), means.flatten(1))
        return present[index[:, 0]]

    return classify


class Classic:
    """`ClassifierTrainer` of one classifier of scikit-learn, or of a library with its interface.

    The library is imported when the trainer is called.

    Attributes:
        path: module and class, for instance "sklearn.svm.LinearSVC".
        options: arguments of the class, except the seed; others are the library's defaults.
    """

    def __init__(self, path: str, **options: Any) -> None:
        self.path, self.options = path, options

    def __call__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        classes: int,
        seed: int,
        report: Report | None = None,
    ) -> Classifier:
        """Returns the classifier learnt from images (N, C, H, W) and labels (N,).

        The eigen solver of discriminant analysis refuses pictures that do not vary within their
        classes. The classifier is then its limit for a covariance c·I, c → 0: the nearest class
        mean.
        """
        if report is not None:
            report(f"{self.path.rpartition('.')[2]}: {len(images)} images")
        # Consecutive labels: xgboost wants them, and a collapsed generator may leave classes out.
        present, index = labels.unique(return_inverse=True)
        if len(present) == 1:
            return lambda new_images: present.expand(len(new_images))
        model = self._model(seed)
        try:
            with warnings.catch_warnings():
                # Iteration limits and collinear pixels belong to the protocol.
                warnings.simplefilter("ignore")
                model.fit(images.flatten(1).numpy(), index.numpy())
        except np.linalg.LinAlgError:  # a covariance that is not positive definite
            return train_nearest_class_mean(images, labels, classes=classes, seed=seed)

        def classify(new_images: Tensor) -> Tensor:
            predicted = torch.from_numpy(model.predict(new_images.flatten(1).numpy()))
            return present[predicted.long()]

        return classify

    def _model(self, seed: int) -> Any:
        module, _, name = self.path.rpartition(".")
        model = getattr(importlib.import_module(module), name)(**self.options)
        if "random_state" in model.get_params():
            model.set_params(random_state=seed)
        if module == "xgboost":
            model.set_params(n_jobs=torch.get_num_threads())
        return model


LOGREG = Classic("sklearn.linear_model.LogisticRegression", solver="lbfgs", max_iter=5000)
"""`min_w Σ_i −log softmax(W x_i + b)_{y_i} + ‖W‖²/2` (mathematics.md, section 5).

It is convex and solved on all images: nothing is held out, and nothing is drawn.
"""

FAST: dict[str, ClassifierTrainer] = {"logreg": LOGREG, "mlp": train_mlp, "cnn": train_cnn}
"""The classifiers of suite=fast: those of the papers, with a cap on the images shown."""

PAPER = ("logreg", "mlp", "cnn", "nearest_class_mean")
"""Names of the classifiers of suite=paper."""

AT_MOST = 10_000
"""Largest training set of our other classifiers: boosted trees on 60,000 images take hours."""

PUBLISHED_SECONDS = 0.018
"""Of one core for a picture of 28×28 that the published options are fitted to (docs/figures.md)."""

OPTIONS = {
    "ours": f"our options; all but {', '.join(PAPER)} on at most {AT_MOST} images",
    "published": "the options of GS-WGAN's public code (Chen et al. 2020), on all images",
    "dpimagebench": "DPImageBench's networks, the epoch chosen on noised counts of real images",
}
"""Sets of classifiers, with the remark about each in a table."""


def classifier_set(
    which: str, shape: Sequence[int]
) -> tuple[dict[str, ClassifierTrainer], dict[str, str]]:
    """Returns the trainers of a set by name, and the reason for each that is left out.

    Args:
        which: "ours", or "published" for the thirteen of GS-WGAN's public code.
        shape: (C, H, W) of the images.
    """
    left_out = {}
    if importlib.util.find_spec("xgboost") is None:
        left_out["xgboost"] = "xgboost is not installed (pip install xgboost adds the row)"
    if which == "published" and min(shape[1:]) < LENET_SMALLEST:
        left_out["cnn"] = f"LeNet needs images of at least {LENET_SMALLEST}×{LENET_SMALLEST} pixels"
    pairs = {name: pair for name, pair in _SETS.items() if name not in left_out}
    if which == "ours":
        return {name: ours for name, (ours, _) in pairs.items()}, left_out
    return {name: published for name, (_, published) in pairs.items() if published}, left_out


def _classics(
    path: str, ours: Mapping[str, object] = {}, published: Mapping[str, object] = {}
) -> tuple[ClassifierTrainer, ClassifierTrainer]:
    return Classic(path, **ours), Classic(path, **published)


_SETS: dict[str, tuple[ClassifierTrainer, ClassifierTrainer | None]] = {
    # name: (ours, published). Options that are not named are the library's defaults.
    "logreg": (LOGREG, LOGREG),
    "mlp": (partial(train_mlp, budget=None), Classic("sklearn.neural_network.MLPClassifier")),
    "cnn": (partial(train_cnn, budget=None), train_lenet),
    "nearest_class_mean": (train_nearest_class_mean, None),
    "random_forest": _classics(
        "sklearn.ensemble.RandomForestClassifier", published={"class_weight": "balanced"}
    ),
    "gaussian_nb": _classics("sklearn.naive_bayes.GaussianNB"),
    # The library's threshold, 0, calls every grey pixel ink.
    "bernoulli_nb": _classics(
        "sklearn.naive_bayes.BernoulliNB", {"binarize": 0.5}, {"binarize": 0.5}
    ),
    "linear_svc": _classics(
        "sklearn.svm.LinearSVC", published={"loss": "hinge", "max_iter": 10_000, "tol": 1e-8}
    ),
    "decision_tree": _classics(
        "sklearn.tree.DecisionTreeClassifier", published={"class_weight": "balanced"}
    ),
    # Generated pictures span few directions: Ledoit and Wolf (2004) choose our shrinkage.
    "lda": _classics(
        "sklearn.discriminant_analysis.LinearDiscriminantAnalysis",
        {"solver": "lsqr", "shrinkage": "auto"},
        {"solver": "eigen", "shrinkage": 0.5},
    ),
    "adaboost": _classics("sklearn.ensemble.AdaBoostClassifier", published={"n_estimators": 100}),
    "bagging": _classics(
        "sklearn.ensemble.BaggingClassifier", published={"n_estimators": 20, "max_samples": 0.1}
    ),
    "gradient_boosting": (
        Classic("sklearn.ensemble.HistGradientBoostingClassifier", early_stopping=False),
        Classic("sklearn.ensemble.GradientBoostingClassifier", n_estimators=50, subsample=0.1),
    ),
    "xgboost": _classics(
        "xgboost.XGBClassifier", published={"n_estimators": 50, "colsample_bytree": 0.1}
    ),
}


FEATURES = 64


@dataclass(frozen=True)
class RealClassifier:
    """A finished convolutional network.

    Attributes:
        body: images (N, C, H, W) to features (N, 64), the rectified layer before the logits.
        head: features to logits (N, classes).
    """

    body: nn.Module
    head: nn.Module

    def features(self, images: Tensor) -> Tensor:
        """Returns the features (N, 64) of images (N, C, H, W)."""
        self.body.eval()
        with torch.no_grad():
            return torch.cat([self.body(part) for part in images.split(PREDICTION_BATCH)])

    def probabilities(self, features: Tensor) -> Tensor:
        """Returns p(y|x) (N, classes), the softmax of the logits, from x's features."""
        self.head.eval()
        with torch.no_grad():
            return functional.softmax(self.head(features).double(), dim=1)

    def classify(self, images: Tensor) -> Tensor:
        """Returns the most probable labels (N,) of images (N, C, H, W)."""
        return self.probabilities(self.features(images)).argmax(dim=1)


def train_real_classifier(
    training: TrainingSet, *, seed: int, report: Report | None = None
) -> RealClassifier:
    """Trains the CNN of `train_cnn` with a rectified layer of 64 units before its dropout.

    64 and not the thousand values of the convolutions, so that a few hundred test images still
    determine a covariance. A tenth of `training` decides when to stop.

    Raises:
        DataError: images smaller than 4×4.
        TypeError: `training` is not a `TrainingSet`.
    """
    if not isinstance(training, TrainingSet):
        raise TypeError(
            f"The real classifier is fitted to a TrainingSet; received {type(training).__name__}."
        )
    layers, width = convolutions(tuple(training.images.shape[1:]))
    generator = torch.Generator().manual_seed(seed)
    body = nn.Sequential(*layers, skip_init(nn.Linear, width, FEATURES), nn.ReLU())
    head = nn.Sequential(
        SeededDropout(DROPOUT, generator), skip_init(nn.Linear, FEATURES, training.classes)
    )
    network = nn.Sequential(body, head)
    initialise(network, generator)
    fit(
        network.to(memory_format=torch.channels_last),
        training.images.to(memory_format=torch.channels_last),
        training.labels,
        generator,
        seed,
        epochs=epoch_cap(training.images, CNN_BUDGET),
        name="real classifier",
        report=report,
    )
    return RealClassifier(body, head)


def label_consistency(classifier: RealClassifier, data: TrainingSet) -> float:
    """Returns the share of images to which the classifier gives the label they were drawn for.

    `1/N Σ_i 1[argmax_y p(y|x_i) = y_i]`: the classification accuracy score turned round (Shmelkov
    et al. 2018 call it GAN-test). Class prototypes reach 1; read it beside the variation.
    """
    return float((classifier.classify(data.images) == data.labels).double().mean())
