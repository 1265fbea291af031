from __future__ import annotations

import pytest
import torch
from scipy.fft import dctn

from fedsink.data import dct
from fedsink.errors import ConfigError


@pytest.mark.parametrize(("height", "width"), [(8, 8), (5, 7), (1, 4)])
def test_full_basis_is_scipys_orthonormal_dct(height: int, width: int) -> None:
    images = torch.rand(3, height, width, generator=torch.Generator().manual_seed(0)).double()
    basis = dct.basis(height, width, dct.block(height, width, max(height, width)))
    ours = (images.flatten(1) @ basis.T).reshape(3, height, width)
    reference = torch.from_numpy(dctn(images.numpy(), axes=(1, 2), norm="ortho"))
    torch.testing.assert_close(ours, reference, rtol=0, atol=1e-12)


@pytest.mark.parametrize("band", [dct.disc(28, 28, 14), dct.block(28, 28, 7, dc=False)])
def test_band_rows_are_orthonormal(band: dct.Band) -> None:
    basis = dct.basis(28, 28, band)
    torch.testing.assert_close(
        basis @ basis.T, torch.eye(len(band), dtype=torch.float64), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize(
    ("band", "count"),
    [
        (dct.disc(28, 28, 14), 166),
        (dct.disc(28, 28, 14, dc=False), 165),
        (dct.disc(8, 8, 6), 33),
        (dct.disc(8, 8, 100), 64),
        (dct.disc(8, 8, 0), 0),
        (dct.disc(8, 8, 1), 1),
        (dct.block(28, 28, 7, dc=False), 48),
        (dct.block(14, 14, 9), 81),
        (dct.block(4, 6, 6), 24),
    ],
)
def test_bands_have_the_documented_sizes(band: dct.Band, count: int) -> None:
    assert len(band) == count


def test_the_disc_is_strict() -> None:
    assert (3, 4) not in dct.disc(8, 8, 5.0)
    assert (3, 4) in dct.disc(8, 8, 5.01)


def test_only_the_first_coefficient_sees_brightness() -> None:
    flat = torch.full((1, 64), 0.5, dtype=torch.float64)
    coefficients = flat @ dct.basis(8, 8, dct.block(8, 8, 8)).T
    assert coefficients[0, 0] == pytest.approx(0.5 * 8)
    assert coefficients[0, 1:].abs().max() < 1e-12


def test_a_basis_of_too_many_cosines_is_refused_unbuilt() -> None:
    dct.check_size(128**2, 128, 128)
    band = tuple((i, j) for i in range(128) for j in range(129))
    with pytest.raises(ConfigError, match=r"16,512 frequencies of 128×129 pixels have 272,646,144"):
        dct.basis(128, 129, band)
