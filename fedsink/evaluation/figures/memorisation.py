"""Does a generator copy its training set: nearest training images against held-out ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedsink.evaluation.figures.nearest import nearest


def memorisation(images: Tensor, train: Tensor, held_out: Tensor, *, seed: int) -> dict[str, float]:
    """Compare the distances of generated images to the training set and to the held-out set.

    Training and held-out images come from one law, so for a generator that remembers neither,
    each of the T = N + M real images is a training image with probability N/T. Let c_j be the
    number of the G generated images whose nearest real image is j, and
    `s = 1/G Σ_{j in training} c_j`. Then

        `excess = (s − N/T) / (M/T)`

    is 0 in expectation without memorisation, 1 when every nearest image is a training image, and
    below 0 for a generator that saw the held-out set; one that copies a share a of its images and
    invents the rest has excess a. Exchanging training and held-out images at random gives s the
    variance `NM / (T(T−1)) · Σ_j (c_j − G/T)² / G²` (drawing without replacement), and

        `z = (s − N/T) / √variance`

    is about standard normal then, however few images the generator keeps returning to: above 3
    means that it knows its training set better than chance allows.

    The median distances (pixels) to equally many, min(N, M), images of either set say the same
    in other units: copies have the training images nearer.

    The idea is Meehan, Chaudhuri and Dasgupta's (2020, "data-copying"): a held-out sample tells
    memorising from fitting well. It is a symptom and no privacy bound: that is ε.

    Args:
        images: generated (G, ...); trailing dimensions are flattened to pixels.
        train: the training images (N, ...).
        held_out: real images that were not trained on (M, ...).
        seed: draws the equally many.

    Returns:
        `excess`, `z`, `training_distance` and `held_out_distance`.

    Raises:
        ValueError: an empty set, or images of different size.
    """
    sizes = len(images), len(train), len(held_out)
    if min(sizes) == 0:
        raise ValueError(
            "Memorisation needs generated, training and held-out images; "
            f"received {sizes[0]}, {sizes[1]} and {sizes[2]}."
        )
    generator = torch.Generator().manual_seed(seed)
    equal = min(sizes[1:])
    train_part, near_train, i = _distances(images, train, equal, generator)
    held_part, near_held, j = _distances(images, held_out, equal, generator)
    # An image that both sets hold counts half for each.
    to_train = (near_train < near_held).double() + 0.5 * (near_train == near_held)
    counts = torch.zeros(sizes[1] + sizes[2], dtype=torch.float64)
    counts.index_add_(0, i, to_train).index_add_(0, sizes[1] + j, 1 - to_train)
    return {
        **_against_chance(counts, sizes[1]),
        "training_distance": float(train_part.median()),
        "held_out_distance": float(held_part.median()),
    }


def _against_chance(counts: Tensor, train: int) -> dict[str, float]:
    total, generated = len(counts), float(counts.sum())
    expected = train / total
    excess = float(counts[:train].sum()) / generated - expected
    scatter = float((counts - generated / total).square().sum())
    variance = train * (total - train) / (total * max(total - 1, 1)) * scatter / generated**2
    return {
        "excess": excess / (1 - expected),
        # All real images equally often nearest: every exchange gives the same s.
        "z": excess / math.sqrt(variance) if variance > 0 else 0.0,
    }


def _distances(
    images: Tensor, reference: Tensor, size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Distances (G,) to the nearest of `size` images, to the nearest of all, and its index."""
    order = torch.randperm(len(reference), generator=generator)
    flat, reference = images.flatten(1), reference.flatten(1)
    part, rest = order[:size], order[size:]
    near_part, index = (column[:, 0] for column in nearest(flat, reference[part]))
    if len(rest) == 0:
        return near_part, near_part, part[index]
    near_rest, rest_index = (column[:, 0] for column in nearest(flat, reference[rest]))
    closer = near_rest < near_part
    return (
        near_part,
        torch.where(closer, near_rest, near_part),
        torch.where(closer, rest[rest_index], part[index]),
    )
