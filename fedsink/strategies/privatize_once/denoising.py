"""Denoising privatized records one by one: the comparison that Theorem 1 has to beat."""

from __future__ import annotations

from torch import Tensor

from fedsink.data import dct, wavelets
from fedsink.data.maps import L1Ball, L2Ball, Map, PixelRange
from fedsink.errors import ConfigError
from fedsink.protocol.privatize_once import LocalPlan


def check_denoisable(f: Map) -> None:
    """Refuse a map whose coordinates are not a rotated whole picture.

    Raises:
        ConfigError: for any map but pixel_range, l1_ball and l2_ball.
    """
    if not isinstance(f, PixelRange | L1Ball | L2Ball):
        raise ConfigError(
            f"strategy.loss=denoised needs records that are whole pictures, and the map {f.name} "
            "releases something else: choose map=pixel_range, l1_ball or l2_ball."
        )


def denoised_values(values: Tensor, plan: LocalPlan) -> Tensor:
    """Return privatized values (N, D) with their wavelet details soft-thresholded.

    The coordinates of these maps are pixels, or an orthonormal transform of them, in which the
    noise has the same standard deviation. Post-processing of what arrived.

    Raises:
        ConfigError: as `check_denoisable`.
    """
    f = plan.map
    check_denoisable(f)
    channels, height, width = f.record_shape
    std = plan.image_mechanism.noise_std
    planes = values.reshape(len(values), channels, height * width)
    if not (isinstance(f, L1Ball) and f.dct):
        return wavelets.denoised(planes.unflatten(2, (height, width)), std).flatten(1)
    band = dct.block(height, width, max(height, width))
    basis = dct.basis(height, width, band).to(values)
    pixels = wavelets.denoised((planes @ basis).unflatten(2, (height, width)), std)
    return (pixels.flatten(2) @ basis.T).flatten(1)
