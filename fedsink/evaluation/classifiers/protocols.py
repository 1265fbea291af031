"""Which classifiers judge a generator, and their options: ours, and those of Chen et al. 2020."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from functools import partial

from fedsink.evaluation.classifiers.class_means import train_nearest_class_mean
from fedsink.evaluation.classifiers.classic import Classic
from fedsink.evaluation.classifiers.cnn import train_cnn
from fedsink.evaluation.classifiers.lenet import SMALLEST, train_lenet
from fedsink.evaluation.classifiers.mlp import train_mlp
from fedsink.evaluation.labelled import Trainer

LOGREG = Classic("sklearn.linear_model.LogisticRegression", solver="lbfgs", max_iter=5000)
"""`min_w Σ_i −log softmax(W x_i + b)_{y_i} + ‖W‖²/2` (mathematics.md, section 5).

It is convex and solved on all images: there is nothing to hold out and nothing to draw.
"""

FAST: dict[str, Trainer] = {"logreg": LOGREG, "mlp": train_mlp, "cnn": train_cnn}
"""The classifiers of suite=fast: those of the papers, with a cap on the images shown."""

PAPER = ("logreg", "mlp", "cnn", "nearest_class_mean")
"""Names of the classifiers of suite=paper."""

AT_MOST = 10_000
"""Images that our other classifiers are trained on at most: boosted trees on 60,000 take hours."""

OPTIONS = {
    "ours": f"our options; all but {', '.join(PAPER)} on at most {AT_MOST} images",
    "published": "the options of GS-WGAN's public code (Chen et al. 2020), on all images",
}
"""What `classifiers=` says about a table."""


def classifier_set(which: str, shape: Sequence[int]) -> tuple[dict[str, Trainer], dict[str, str]]:
    """Return the trainers of a set by name, and for each that is left out the reason.

    Args:
        which: "ours", or "published" for the thirteen of GS-WGAN's public code.
        shape: (C, H, W) of the images.
    """
    left_out = {}
    if importlib.util.find_spec("xgboost") is None:
        left_out["xgboost"] = "xgboost is not installed (pip install xgboost adds the row)"
    if which == "published" and min(shape[1:]) < SMALLEST:
        left_out["cnn"] = f"LeNet needs images of at least {SMALLEST}×{SMALLEST} pixels"
    pairs = {name: pair for name, pair in _SETS.items() if name not in left_out}
    if which == "ours":
        return {name: ours for name, (ours, _) in pairs.items()}, left_out
    return {name: published for name, (_, published) in pairs.items() if published}, left_out


def _classics(
    path: str, ours: Mapping[str, object] = {}, published: Mapping[str, object] = {}
) -> tuple[Trainer, Trainer]:
    return Classic(path, **ours), Classic(path, **published)


_SETS: dict[str, tuple[Trainer, Trainer | None]] = {
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
