from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsink.models.layers import SpectralConvolution, blank, initialise, spectral_norm

SIZES = st.integers(1, 9)


def exact(weight: torch.Tensor) -> float:
    return float(torch.linalg.matrix_norm(weight.flatten(1).double(), 2))


@given(SIZES, SIZES, st.sampled_from([1, 3]), st.integers(0, 99), st.sampled_from([1e-6, 1.0, 1e6]))
def test_the_spectral_norm_is_the_largest_singular_value(
    rows: int, columns: int, kernel: int, seed: int, scale: float
) -> None:
    random = torch.Generator().manual_seed(seed)
    weight = scale * torch.randn(rows, columns, kernel, kernel, generator=random)
    ratio = float(spectral_norm(weight)) / exact(weight)
    assert rows ** (-1 / 8192) - 1e-5 <= ratio <= 1.0 + 1e-5


def test_equal_singular_values_are_no_trouble() -> None:
    """A power iteration has no direction to converge to there."""
    weight = 3.0 * torch.eye(256).reshape(256, 256, 1, 1)
    assert 0.9993 * 3.0 < float(spectral_norm(weight)) <= 3.0 + 1e-5
    assert float(spectral_norm(torch.zeros(4, 4, 3, 3))) < 1e-6


def test_its_gradient_is_that_of_a_converged_power_iteration() -> None:
    weight = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    spectral_norm(weight).backward()
    u, values, v = torch.linalg.svd(weight.detach().flatten(1), full_matrices=False)
    assert float(values[0] / values[1]) > 1.05
    torch.testing.assert_close(
        weight.grad.flatten(1),  # type: ignore[union-attr]
        torch.outer(u[:, 0], v[0]),
        rtol=0,
        atol=1e-4,
    )


def test_a_normalised_convolution_has_no_scale_and_no_state() -> None:
    layer = blank(SpectralConvolution, 3, 5, 3, padding=1)
    initialise(layer, torch.Generator().manual_seed(1))
    assert set(layer.state_dict()) == {"weight", "bias"}
    maps = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(2))
    before = layer(maps)
    torch.testing.assert_close(layer(maps), before, rtol=0, atol=0)
    plain = torch.nn.functional.conv2d(
        maps, layer.weight / exact(layer.weight), layer.bias, padding=1
    )
    torch.testing.assert_close(before, plain, rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        layer.weight *= 7.0
    torch.testing.assert_close(layer(maps), before)
