"""A classifier of real images; other figures use its judgement and its features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import skip_init

from fedsink.evaluation.networks import (
    CNN_BUDGET,
    DROPOUT,
    PREDICTION_BATCH,
    SeededDropout,
    convolutions,
    epoch_cap,
    fit,
    initialise,
)
from fedsink.evaluation.sets import Report, TrainingSet

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
