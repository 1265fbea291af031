"""Inception features for FID, from a given file of weights or PyTorch's cache; Inception Score."""

from __future__ import annotations

import hashlib
import pickle
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsink.errors import ModelError
from fedsink.evaluation.sets import shuffled

WEIGHTS = "inception_v3_google-0cc3c7bd.pth"
"""torchvision's file; its name ends in the first digits of its SHA-256."""

SIDE = 299
INCEPTION_FEATURES = 2048
BATCH = 50
SPLITS = 10
"""Parts of the published Inception Score."""

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def weights_path() -> Path:
    """Returns torchvision's path of the weights, in `checkpoints` of PyTorch's hub folder."""
    return Path(torch.hub.get_dir()) / "checkpoints" / WEIGHTS


def load_inception(path: Path | None = None) -> nn.Module:
    """Returns torchvision's Inception v3 (ImageNet) without its last layer; nothing is downloaded.

    Its numbers are close to, but not, those of the TensorFlow network of the published FIDs.

    Args:
        path: weights as torchvision stores them; None: those in PyTorch's cache.

    Raises:
        ModelError: there is no such file, or it does not hold these weights.
    """
    path = _cached() if path is None else path
    weights, network = _weights(path), bare_inception()
    try:
        network.load_state_dict({k: v for k, v in weights.items() if not k.startswith("fc.")})
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip()
        raise ModelError(
            f"The weights in {path.name} are not torchvision's Inception v3 ({first:.100}…): name "
            f"a file such as {WEIGHTS}"
        ) from error
    return network


def _cached() -> Path:
    """Returns the file in PyTorch's cache, if its content fits the digest in its name."""
    path = weights_path()
    if not path.is_file():
        raise ModelError(
            f"Inception weights were not found: {WEIGHTS} is not in the checkpoints folder of "
            "PyTorch's hub cache (TORCH_HOME); where there is a network, "
            "torchvision.models.inception_v3(weights='DEFAULT') puts it there"
        )
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if not digest.startswith(path.stem.rpartition("-")[2]):
        raise ModelError(
            f"Inception weights are damaged: {WEIGHTS} has SHA-256 {digest[:8]}…; delete it and "
            "download it again"
        )
    return path


def _weights(path: Path) -> Mapping[str, Any]:
    """Returns the named weights of a checkpoint; nothing in it is executed."""
    remedy = f"name weights as torchvision stores them, such as {WEIGHTS}"
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}): {remedy}") from error
    except (RuntimeError, ValueError, EOFError, LookupError, pickle.UnpicklingError) as error:
        raise ModelError(f"{path.name} is no checkpoint of PyTorch: {remedy}") from error
    if not isinstance(weights, Mapping) or not all(isinstance(name, str) for name in weights):
        raise ModelError(f"{path.name} is a checkpoint without named weights: {remedy}")
    return weights


def bare_inception() -> nn.Module:
    """Returns Inception v3 from images to its 2048 pooled features, weights not set."""
    from torchvision.models import inception_v3

    network = inception_v3(weights=None, init_weights=False, transform_input=False)
    network.fc = nn.Identity()
    return network.eval()


def inception_features(network: nn.Module, images: Tensor) -> Tensor:
    """Returns features (N, 2048) of images (N, C, H, W) in [0, 1], one or three channels.

    Images are resized to 299×299 (bilinear, antialiased) and normalised as ImageNet was; one
    channel is shown as three (Heusel et al. 2017).

    Raises:
        ModelError: another number of channels, or features that are not finite.
    """
    if images.shape[1] not in (1, 3):
        raise ModelError(f"Inception takes 1 or 3 channels; the images have {images.shape[1]}")
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (_MEAN, _STD))
    features = []
    with torch.no_grad():
        for part in images.split(BATCH):
            resized = functional.interpolate(
                part.expand(-1, 3, -1, -1), (SIDE, SIDE), mode="bilinear", antialias=True
            )
            features.append(network((resized - mean) / std))
    found = torch.cat(features)
    if not bool(found.isfinite().all()):
        raise ModelError("Inception's features are not finite: its weights or the images are not")
    return found


def inception_score(probabilities: Tensor) -> float:
    """Returns `exp(E_x KL(p(y|x) ‖ p(y)))`, p(y) the mean of p(y|x) over the sample.

    Between 1 and the number of classes (Salimans et al. 2016, section 4). The published name is
    kept although the classifier here is one trained on the real data, as in GS-WGAN (Chen et al.
    2020). It sees neither labels nor variation within a class: class means by themselves can reach
    the maximum.

    Args:
        probabilities: (N, classes), non-negative rows that sum to 1.

    Raises:
        ValueError: anything else.
    """
    if probabilities.ndim != 2 or len(probabilities) == 0:
        raise ValueError(
            f"Probabilities must have shape (N, classes); received {tuple(probabilities.shape)}."
        )
    p = probabilities.double()
    if not bool((p >= 0).all() and ((p.sum(dim=1) - 1).abs() < 1e-4).all()):
        raise ValueError("Every row of probabilities must be non-negative and sum to 1.")
    marginal = p.mean(dim=0, keepdim=True)
    divergence = (torch.xlogy(p, p) - torch.xlogy(p, marginal)).sum(dim=1)
    return float(divergence.mean().exp())


def score_of_splits(
    probabilities: Tensor, *, seed: int, splits: int = SPLITS
) -> tuple[float, float]:
    """Returns mean and std, `√(Σ(s − s̄)²/splits)`, of the scores of a sample's parts.

    Inception Scores are published so (Salimans et al. 2016): over ten parts, each with its p(y).
    A part is smaller than the sample, so the mean lies below the score of one split.

    Args:
        probabilities: (N, classes), as in `inception_score`.
        seed: of the order in which the rows are dealt to the parts.
        splits: number of parts, at most N.

    Raises:
        ValueError: fewer rows than parts, or what `inception_score` refuses.
    """
    if not 1 <= splits <= len(probabilities):
        raise ValueError(f"{splits} splits need as many rows; received {len(probabilities)}.")
    mixed = probabilities[shuffled(len(probabilities), seed)]
    scores = [inception_score(part) for part in mixed.tensor_split(splits)]
    return statistics.fmean(scores), statistics.pstdev(scores)
