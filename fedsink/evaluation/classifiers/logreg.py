"""Multinomial logistic regression on pixels."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsink.evaluation.labelled import Classifier, Report

MAX_ITERATIONS = 5000


def train_logreg(
    images: Tensor, labels: Tensor, *, classes: int, seed: int, report: Report | None = None
) -> Classifier:
    """Logistic regression by L-BFGS, at most 5000 iterations (mathematics.md, section 5).

    `min_w Σ_i −log softmax(W x_i + b)_{y_i} + ‖W‖²/2`, scikit-learn's default penalty, on pixels in
    [0, 1]. It is convex and solved on all images: there is nothing to hold out and nothing to draw.

    Args:
        images: training images (N, C, H, W).
        labels: their labels (N,); some classes may be absent.
        classes: unused, the regression finds the classes that occur.
        seed: unused, the solution does not depend on chance.
        report: receives a line when the solver starts and when it ends.
    """
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    present = labels.unique()
    if len(present) == 1:
        # scikit-learn refuses a single class; a collapsed generator must still get its figure.
        return lambda new_images: present.expand(len(new_images))
    if report is not None:
        report(f"logreg: {len(images)} images")
    regression = LogisticRegression(solver="lbfgs", max_iter=MAX_ITERATIONS)
    with warnings.catch_warnings():
        # Stopping at the iteration limit is part of the protocol and is reported below.
        warnings.simplefilter("ignore", ConvergenceWarning)
        regression.fit(images.flatten(1).numpy(), labels.numpy())
    if report is not None:
        report(f"logreg: {int(max(regression.n_iter_))} iterations")

    def classify(new_images: Tensor) -> Tensor:
        return torch.from_numpy(regression.predict(new_images.flatten(1).numpy()))

    return classify
