"""Classifiers that judge a generator: those of the papers, and the nearest class mean.

>>> list(FAST)
['logreg', 'mlp', 'cnn']
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsink.results.evaluation.neighbours import nearest
from fedsink.results.evaluation.networks import train_cnn, train_mlp
from fedsink.results.evaluation.sets import Classifier, ClassifierTrainer, Report, class_means


def train_nearest_class_mean(
    images: Tensor, labels: Tensor, *, classes: int, seed: int, report: Report | None = None
) -> Classifier:
    """Predicts the class with the nearest mean, `argmin_c ‖x − x̄_c‖₂`; nothing is drawn."""
    means, present = class_means(images, labels)
    if report is not None:
        report(f"nearest class mean: {len(present)} classes")

    def classify(new_images: Tensor) -> Tensor:
        _, index = nearest(new_images.flatten(1), means.flatten(1))
        return present[index[:, 0]]

    return classify


class Classic:
    """`ClassifierTrainer` of a class with scikit-learn's interface, imported when it is called."""

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
        except np.linalg.LinAlgError:
            # The eigen solver of discriminant analysis refuses pictures that do not vary within
            # their classes: its limit for a covariance c·I, c → 0, is the nearest class mean.
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
