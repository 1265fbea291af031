"""Privatized pictures without the small details of their wavelets (Donoho and Johnstone 1994)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedsink.data import dct
from fedsink.data.maps import L1Ball
from fedsink.protocol.privatize_once import LocalPlan


def denoised_values(values: Tensor, plan: LocalPlan) -> Tensor:
    """Returns privatized values (N, D) with their wavelet details soft-thresholded.

    The maps of `loss=denoised` have pixels as coordinates, or an orthonormal transform of them, in
    which the noise has the same standard deviation. Post-processing of what arrived.
    """
    f = plan.map
    channels, height, width = f.record_shape
    std = plan.image_mechanism.noise_std
    planes = values.reshape(len(values), channels, height * width)
    if not (isinstance(f, L1Ball) and f.dct):
        return denoised(planes.unflatten(2, (height, width)), std).flatten(1)
    band = dct.block(height, width, max(height, width))
    basis = dct.basis(height, width, band).to(values)
    pixels = denoised((planes @ basis).unflatten(2, (height, width)), std)
    return (pixels.flatten(2) @ basis.T).flatten(1)


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
    white noise of standard deviation `std`. Of pictures of pure Gaussian noise, five in six of 784
    pixels keep no detail; Laplace noise passes more often. The averages are kept. The threshold is
    public, so this is post-processing.

    Args:
        images: (N, C, H, W).
        std: standard deviation of the noise per pixel.
    """
    threshold = std * math.sqrt(2.0 * math.log(max(2, images[0].numel()))) if len(images) else 0.0
    average, details = haar(images)
    shrunk = [torch.nn.functional.softshrink(level, threshold) for level in details]
    return inverse_haar(average, shrunk)
