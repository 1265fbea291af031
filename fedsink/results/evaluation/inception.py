"""FID by Inception features, from a given file of weights or PyTorch's cache."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsink.errors import ConfigError, ModelError
from fedsink.results.evaluation.distances import frechet_distance, subsample

WEIGHTS = "inception_v3_google-0cc3c7bd.pth"
"""torchvision's file; its name ends in the first digits of its SHA-256."""

SIDE = 299
INCEPTION_FEATURES = 2048
BATCH = 50
AT_MOST = 10_000
"""Pictures per side of FID."""

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def weights_path() -> Path:
    """Returns torchvision's path of the weights, in `checkpoints` of PyTorch's hub folder."""
    return Path(torch.hub.get_dir()) / "checkpoints" / WEIGHTS


def load_inception(path: Path | None = None) -> nn.Module:
    """Returns torchvision's Inception v3 (ImageNet) without its last layer; downloads nothing."""
    # Its numbers are close to, but not, those of the TensorFlow network of the published FIDs.
    # Weights are as torchvision stores them; None: those in PyTorch's cache.
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
    """Returns features (N, 2048) of images (N, C, H, W) in [0, 1], one or three channels."""
    # Resized to 299×299 (bilinear, antialiased) and normalised as ImageNet was; one channel is
    # shown as three (Heusel et al. 2017).
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


def fid(network: nn.Module, images: Tensor, real: Tensor, seed: int) -> float:
    """Returns the Fréchet Inception distance of m images on each side, m = min(sizes, 10,000)."""
    size = min(len(images), len(real), AT_MOST)
    if size <= INCEPTION_FEATURES:
        raise ConfigError(
            f"FID needs more than {INCEPTION_FEATURES} images on each side; received "
            f"{len(images)} synthetic and {len(real)} real ones: leave inception= out or draw more."
        )
    sides = (subsample(side, size, seed=seed) for side in (images, real))
    return frechet_distance(*(inception_features(network, side) for side in sides))
