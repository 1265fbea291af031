"""The orthonormal Haar wavelet transform of images, and soft thresholding in it."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def haar(images: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Returns the coarsest average and the details of each level, finest first.

    One level turns every 2×2 square (a, b; c, d) into (a+b+c+d)/2 and the three details
    (a−b+c−d)/2, (a+b−c−d)/2, (a−b−c+d)/2: a rotation, so white noise stays white of the same
    strength. Levels continue while both sides are even: 28×28 has two, down to 7×7.

    Args:
        images: (N, C, H, W).

    Returns:
        The average (N, C, h, w), and one tensor (N, C, 3, h·2^l, w·2^l) per level.
    """
    average, details = images, []
    while average.shape[-1] % 2 == 0 and average.shape[-2] % 2 == 0:
        a, b = average[..., ::2, ::2], average[..., ::2, 1::2]
        c, d = average[..., 1::2, ::2], average[..., 1::2, 1::2]
        details.append(torch.stack([a - b + c - d, a + b - c - d, a - b - c + d], 2) / 2)
        average = (a + b + c + d) / 2
    return average, details


def inverse_haar(average: Tensor, details: list[Tensor]) -> Tensor:
    """Returns the images (N, C, H, W) that `haar` took apart."""
    for level in reversed(details):
        across, down, diagonal = level.unbind(2)
        squares = average.new_empty(*average.shape[:2], 2 * average.shape[2], 2 * average.shape[3])
        squares[..., ::2, ::2] = average + across + down + diagonal
        squares[..., ::2, 1::2] = average - across + down - diagonal
        squares[..., 1::2, ::2] = average + across - down - diagonal
        squares[..., 1::2, 1::2] = average - across - down + diagonal
        average = squares / 2
    return average


def denoised(images: Tensor, std: float) -> Tensor:
    """Returns images with every detail d replaced by sign(d)·max(|d| − t, 0), t = std·√(2 ln n).

    The universal threshold of Donoho and Johnstone (1994) for n pixels (channels included) with
    white noise of standard deviation `std`: pure noise stays below it almost surely. The
    averages are kept. The threshold is public, so this is post-processing.

    Args:
        images: (N, C, H, W).
        std: standard deviation of the noise per pixel.
    """
    threshold = std * math.sqrt(2.0 * math.log(max(2, images[0].numel()))) if len(images) else 0.0
    average, details = haar(images)
    kept = [torch.nn.functional.softshrink(level, threshold) for level in details]
    return inverse_haar(average, kept)
