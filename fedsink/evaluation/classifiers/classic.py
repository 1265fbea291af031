"""Classifiers of scikit-learn, and of libraries with its interface, as trainers."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsink.evaluation.classifiers.class_means import train_nearest_class_mean
from fedsink.evaluation.labelled import Classifier, Report


class Classic:
    """Trainer of one classifier; the library is imported when it is called.

    Attributes:
        path: module and class, for instance "sklearn.svm.LinearSVC".
        options: arguments of the class; the rest are the library's defaults.
    """

    def __init__(self, path: str, **options: Any) -> None:
        """Name the classifier and its options, except the seed."""
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
        """Return the classifier learnt from images (N, C, H, W) and labels (N,) alone.

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
