from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from scipy.fft import dctn

from fedsink.data.views import POINT_LIMIT, DctView, PixelView, View, view_from_dict
from fedsink.errors import ConfigError

VIEWS: list[View] = [
    PixelView((1, 8, 8)),
    PixelView((2,)),
    DctView((1, 28, 28), 14),
    DctView((3, 8, 6), 4.5, frequency_weight=4.0),
    DctView((1, 8, 8), 6, dc=False),
]


def images(view: View, n: int = 4) -> torch.Tensor:
    return torch.rand(n, *view.shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("view", VIEWS)
def test_shape_and_round_trip(view: View) -> None:
    coordinates = view(images(view))
    assert coordinates.shape == (4, view.dimension)
    assert coordinates.dtype == torch.float32
    again = view_from_dict(json.loads(json.dumps(view.to_dict())))
    assert again == view
    assert hash(again) == hash(view)


@pytest.mark.parametrize("view", VIEWS)
def test_views_are_affine_and_their_gradient_is_the_transposed_map(view: View) -> None:
    a = images(view).double().requires_grad_()
    b = images(view).double().flip(0)
    torch.testing.assert_close(view((a + b) / 2), (view(a) + view(b)) / 2)
    towards = torch.linspace(-1, 1, view.dimension, dtype=torch.float64)
    (view(a) @ towards).sum().backward()
    assert a.grad is not None
    change = ((view(b) - view(a)) @ towards).detach()
    torch.testing.assert_close((a.grad * (b - a)).flatten(1).sum(1).detach(), change)


@pytest.mark.parametrize("view", VIEWS)
def test_no_record_of_the_public_range_exceeds_the_norm_bound(view: View) -> None:
    extreme = torch.randint(0, 2, (200, *view.shape), generator=torch.Generator().manual_seed(0))
    extreme[0], extreme[1] = 0, 1
    points = len(view.shape) == 1
    records = POINT_LIMIT * (2.0 * extreme - 1.0) if points else extreme.float()
    norms = view(records).double().norm(dim=1)
    assert float(norms.max()) <= view.norm_bound
    if view in VIEWS[:3]:  # reached, except for the room for rounding
        assert float(norms.max()) >= view.norm_bound / 1.01


def test_pixel_view_centres_images_and_passes_points_on() -> None:
    assert PixelView((1, 1, 2))(torch.tensor([[[[0.0, 1.0]]]])).tolist() == [[-1.0, 1.0]]
    assert PixelView((2,))(torch.tensor([[3.0, -4.0]])).tolist() == [[3.0, -4.0]]


def test_dct_view_is_scipys_dct_of_centred_pixels_per_channel() -> None:
    view = DctView((3, 8, 8), 6)
    assert view.dimension == 3 * 33
    x = images(view).double()
    reference = torch.from_numpy(dctn(2 * x.numpy() - 1, axes=(2, 3), norm="ortho"))
    rows = torch.tensor([i for i, _ in view.band])
    columns = torch.tensor([j for _, j in view.band])
    torch.testing.assert_close(view(x), reference[:, :, rows, columns].flatten(1))


def test_a_disc_that_holds_everything_keeps_distances() -> None:
    x = images(VIEWS[0]).double()
    full, pixels = DctView((1, 8, 8), 100), PixelView((1, 8, 8))
    torch.testing.assert_close(torch.cdist(full(x), full(x)), torch.cdist(pixels(x), pixels(x)))


def test_frequency_weight_grows_with_the_radius_at_unit_mean_square() -> None:
    plain, weighted = DctView((1, 8, 8), 6), DctView((1, 8, 8), 6, frequency_weight=2.0)
    x = images(plain).double()
    weights = (weighted(x) / plain(x))[0]
    assert float(weights.square().mean()) == pytest.approx(1.0)
    at = {pair: float(w) for pair, w in zip(plain.band, weights, strict=True)}
    assert at[3, 4] / at[0, 0] == pytest.approx((1 + 25 / 4) ** 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "wavelet"}, "'wavelet' is unknown; choose one of dct, pixel"),
        ({"shape": [2], "radius": 3}, r"needs images .* got shape \(2,\)"),
        ({"radius": 0}, "must be a positive number, not 0"),
        ({"radius": True}, "must be a positive .* not True"),
        ({"radius": 1, "dc": False}, "no coefficient at radius 1"),
        ({"radius": 3, "frequency_weight": True}, "from 1e-6 to 1e6 or empty, got True"),
        ({"radius": 3, "frequency_weight": 0}, "from 1e-6 to 1e6 or empty, got 0"),
        ({"name": "pixel", "radius": 3}, "no option 'radius'; it has shape"),
        ({}, "lacks an option"),
    ],
)
def test_messages(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        view_from_dict({"name": "dct", "shape": [1, 8, 8]} | options)
