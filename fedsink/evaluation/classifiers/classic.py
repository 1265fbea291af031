"""The other classifiers of the GS-WGAN protocol, by scikit-learn (and xgboost where it is)."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedsink.evaluation.labelled import Classifier, Report, Trainer

AT_MOST = 10_000
"""Images the other classifiers are trained on at most: boosted trees on 60,000 take hours."""

NO_XGBOOST = "xgboost is not installed (pip install xgboost adds the row)"


def classic_trainers() -> dict[str, Trainer]:
    """Return GS-WGAN's other classifiers by name: nine of scikit-learn, xgboost if installed.

    GS-WGAN (Chen et al. 2020, supplement) reports the mean over such a list beside MLP and CNN.
    Parameters are scikit-learn's defaults on pixels in [0, 1], except: Bernoulli naive Bayes
    splits at ½ (its default, 0, calls every grey pixel ink), linear discriminant analysis shrinks
    its covariance (Ledoit and Wolf 2004), because generated pictures span few directions, and
    gradient boosting is the histogram variety without a hold-out of its own.
    """
    trainers: dict[str, Trainer] = {
        name: _Trainer(name, make) for name, make in _MAKERS.items() if name != "xgboost"
    }
    if importlib.util.find_spec("xgboost") is not None:
        trainers["xgboost"] = _Trainer("xgboost", _MAKERS["xgboost"])
    return trainers


class _Trainer:
    """Fits one scikit-learn classifier as the protocol's trainers are called."""

    def __init__(self, name: str, make: Callable[[int], Any]) -> None:
        self.name, self.make = name, make

    def __call__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        classes: int,
        seed: int,
        report: Report | None = None,
    ) -> Classifier:
        """Return the classifier learnt from images (N, C, H, W) and labels (N,) alone."""
        if report is not None:
            report(f"{self.name}: {len(images)} images")
        # Consecutive labels: xgboost wants them, and a collapsed generator may leave classes out.
        present, index = labels.unique(return_inverse=True)
        if len(present) == 1:
            return lambda new_images: present.expand(len(new_images))
        model = self.make(seed)
        with warnings.catch_warnings():
            # Iteration limits and collinear pixels are the protocol's, not the user's to mend.
            warnings.simplefilter("ignore")
            model.fit(images.flatten(1).numpy(), index.numpy())

        def classify(new_images: Tensor) -> Tensor:
            predicted = torch.from_numpy(model.predict(new_images.flatten(1).numpy()))
            return present[predicted.long()]

        return classify


def _random_forest(seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(random_state=seed)


def _gaussian_nb(seed: int) -> Any:
    from sklearn.naive_bayes import GaussianNB

    return GaussianNB()


def _bernoulli_nb(seed: int) -> Any:
    from sklearn.naive_bayes import BernoulliNB

    return BernoulliNB(binarize=0.5)


def _linear_svc(seed: int) -> Any:
    from sklearn.svm import LinearSVC

    return LinearSVC(random_state=seed)


def _decision_tree(seed: int) -> Any:
    from sklearn.tree import DecisionTreeClassifier

    return DecisionTreeClassifier(random_state=seed)


def _lda(seed: int) -> Any:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    return LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")


def _adaboost(seed: int) -> Any:
    from sklearn.ensemble import AdaBoostClassifier

    return AdaBoostClassifier(random_state=seed)


def _bagging(seed: int) -> Any:
    from sklearn.ensemble import BaggingClassifier

    return BaggingClassifier(random_state=seed)


def _gradient_boosting(seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(random_state=seed, early_stopping=False)


def _xgboost(seed: int) -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(random_state=seed, n_jobs=torch.get_num_threads())


_MAKERS: dict[str, Callable[[int], Any]] = {
    "random_forest": _random_forest,
    "gaussian_nb": _gaussian_nb,
    "bernoulli_nb": _bernoulli_nb,
    "linear_svc": _linear_svc,
    "decision_tree": _decision_tree,
    "lda": _lda,
    "adaboost": _adaboost,
    "bagging": _bagging,
    "gradient_boosting": _gradient_boosting,
    "xgboost": _xgboost,
}
