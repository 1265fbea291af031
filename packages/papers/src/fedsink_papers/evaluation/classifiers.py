"""Classifiers of `suite=paper` and `suite=full`, ours and those of Chen et al. 2020.

One more classifier, of real images, lends other figures its judgement and its features.

>>> trainers, left_out = classifier_set("published", (1, 28, 28))
>>> list(trainers)[:4]
['logreg', 'mlp', 'cnn', 'random_forest']
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import skip_init

from fedsink.errors import DataError
from fedsink.models.layers import initialise
from fedsink.results.evaluation.classifiers import LOGREG, Classic, train_nearest_class_mean
from fedsink.results.evaluation.networks import (
    CNN_BUDGET,
    DROPOUT,
    PREDICTION_BATCH,
    SeededDropout,
    convolutions,
    epoch_cap,
    fit,
    logits,
    train_cnn,
    train_epoch,
    train_mlp,
)
from fedsink.results.evaluation.sets import Classifier, ClassifierTrainer, Report, TrainingSet
from fedsink.results.evaluation.suites import ClassifierChoice, ClassifierSet

LENET_EPOCHS = 50
LENET_SMALLEST = 12
_MEAN, _SD = 0.1307, 0.3081  # MNIST's; the public code takes them for Fashion-MNIST too


PAPER = ("logreg", "mlp", "cnn", "nearest_class_mean")
"""Names of the classifiers of suite=paper."""

AT_MOST = 10_000
"""Largest training set of our other classifiers: boosted trees on 60,000 images take hours."""

OURS = f"our options; all but {', '.join(PAPER)} on at most {AT_MOST} images"
"""The remark about our own classifiers in a table."""


def train_lenet(
    images: Tensor, labels: Tensor, *, classes: int, seed: int, report: Report | None = None
) -> Classifier:
    """Trains two 5×5 convolutions (6, 16 channels), pooled, and linear layers of 120 and 84 units.

    It is a `ClassifierTrainer` with the options of GS-WGAN's public code: stochastic gradient
    descent with momentum 0.9 and weight decay 1e-4, step 0.02 and after 40 epochs 0.002, batches
    of 128, pixels shifted by 0.1307 and divided by 0.3081. It trains for 50 epochs on all images:
    nothing is held out.

    Raises:
        DataError: images smaller than 12×12.
    """
    depth, height, width = images.shape[1:]
    if min(height, width) < LENET_SMALLEST:
        raise DataError(
            f"LeNet needs images of at least {LENET_SMALLEST}×{LENET_SMALLEST} pixels; "
            f"received {height}×{width}."
        )
    rows, columns = ((side // 2 - 4) // 2 for side in (height, width))
    network = nn.Sequential(
        skip_init(nn.Conv2d, depth, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        skip_init(nn.Conv2d, 6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        skip_init(nn.Linear, 16 * rows * columns, 120),
        nn.ReLU(),
        skip_init(nn.Linear, 120, 84),
        nn.ReLU(),
        skip_init(nn.Linear, 84, classes),
    )
    generator = torch.Generator().manual_seed(seed)
    initialise(network, generator)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [40], gamma=0.1)
    shifted = (images - _MEAN) / _SD
    for epoch in range(1, LENET_EPOCHS + 1):
        order = torch.randperm(len(images), generator=generator)
        train_epoch(network, optimiser, shifted, labels, order)
        schedule.step()
        if report is not None:
            report(f"lenet: epoch {epoch} of {LENET_EPOCHS}")
    return lambda new_images: logits(network, (new_images - _MEAN) / _SD).argmax(dim=1)


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


def _published(real: TrainingSet, seed: int, epsilon: float) -> ClassifierChoice:
    return ClassifierChoice(*classifier_set("published", real.images.shape[1:]), real)


PUBLISHED = ClassifierSet(
    _published,
    "the options of GS-WGAN's public code (Chen et al. 2020), on all images",
    suites=("full",),
    seconds=0.018,
)


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
    """Returns the fraction of images to which the classifier gives the label they were drawn for.

    `1/N Σ_i 1[argmax_y p(y|x_i) = y_i]`: the classification accuracy score turned round (Shmelkov
    et al. 2018 call it GAN-test). Class prototypes reach 1; read it beside the variation.
    """
    return float((classifier.classify(data.images) == data.labels).double().mean())
