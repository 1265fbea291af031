from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedsink.data.maps import (
    DctDirection,
    L1Ball,
    L2Ball,
    Map,
    NonNegativeDirection,
    PixelRange,
    PointBall,
    PooledPower,
    map_from_dict,
    project_l1,
    project_l2,
)
from fedsink.errors import ConfigError

SHAPE = (2, 4, 4)
MAPS: list[Map] = [
    DctDirection(SHAPE, 3),
    DctDirection(SHAPE, 4, norm="l2"),
    NonNegativeDirection(SHAPE, 1, 3),
    NonNegativeDirection(SHAPE, 2, 2),
    PooledPower(SHAPE, 2),
    PooledPower(SHAPE, 3, power=1.0, norm="l2"),
    PixelRange(SHAPE, "l1"),
    PixelRange(SHAPE, "l2"),
    L1Ball(SHAPE, 3.0),
    L1Ball(SHAPE, 2.0, dct=False),
    L2Ball(SHAPE, 1.5),
    PointBall("l1"),
    PointBall("l2", radius=0.3, size=3),
]
NAMES = [f"{m.name}-{i}" for i, m in enumerate(MAPS)]


def images(f: Map, n: int = 5, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, *f.record_shape, generator=torch.Generator().manual_seed(seed))


def distance(f: Map, a: torch.Tensor, b: torch.Tensor) -> float:
    order = 1 if f.norm == "l1" else 2
    difference = a.double().flatten() - b.double().flatten()
    return float(torch.linalg.vector_norm(difference, ord=order))


HOSTILE = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 0.5, math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-45]),
    st.floats(width=32),
    st.floats(0, 1, width=32),
)


@pytest.mark.medium
@pytest.mark.parametrize("f", MAPS, ids=NAMES)
@given(data=st.data())
def test_guarantee_sensitivity_bounds_any_two_records(f: Map, data: st.DataObject) -> None:
    pair = data.draw(hnp.arrays(np.float32, (2, *f.record_shape), elements=HOSTILE))
    a, b = f(torch.from_numpy(pair))
    assert distance(f, a, b) <= f.sensitivity


def test_guarantee_sensitivity_bounds_any_two_records_of_double_precision() -> None:
    extremes = torch.tensor([1e300, -1e300, 1e-310, math.inf, 0.0, 1.0], dtype=torch.float64)
    for f in MAPS:
        count = 400
        draw = torch.randint(6, (count, *f.record_shape), generator=torch.Generator())
        mapped = f(extremes[draw])
        assert bool(torch.isfinite(mapped).all())
        order = 1.0 if f.norm == "l1" else 2.0
        assert float(torch.cdist(mapped, mapped, p=order).max()) <= f.sensitivity


RADII = [2.0**-40, 5.7e-12, 1e-9, 2.0**-20, 0.3, 27.9, 140.0, 1e6, 2.0**40]


@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("ball", ["l1", "l1 of pixels", "l2", "points"])
def test_guarantee_sensitivity_bounds_records_whatever_the_radius(ball: str, radius: float) -> None:
    """Black, white and every other extreme of a picture: where a difference of floats cancels."""
    shape = (1, 28, 28)
    f: Map = {
        "l1": L1Ball(shape, radius),
        "l1 of pixels": L1Ball(shape, radius, dct=False),
        "l2": L2Ball(shape, radius),
        "points": PointBall("l1", radius, 784),
    }[ball]
    pictures = torch.rand(12, 784, generator=torch.Generator().manual_seed(0))
    pictures[:6] = pictures[:6].round()
    pictures = torch.cat([torch.zeros(1, 784), torch.ones(1, 784), pictures, pictures.round() * 2])
    mapped = f(pictures if ball == "points" else pictures.view(-1, *shape)).double()
    order = 1.0 if f.norm == "l1" else 2.0
    assert float(torch.cdist(mapped, mapped, p=order).max()) <= f.sensitivity
    assert float(torch.linalg.vector_norm(mapped, ord=order, dim=1).max()) <= f.sensitivity / 2


@pytest.mark.parametrize(
    "radius", [0.0, -1.0, 2.0**-41, 5.7e-17, 2.0**41, math.inf, math.nan, True]
)
def test_a_radius_for_which_the_arithmetic_is_not_made_is_refused(radius: float) -> None:
    for make in (lambda: L1Ball(SHAPE, radius), lambda: PointBall("l2", radius)):
        with pytest.raises(ConfigError, match="needs a radius from 9e-13 to 1e"):
            make()


def extreme_pair(f: Map) -> torch.Tensor:
    """Two records that reach the diameter, where a closed form is known."""
    pair = torch.zeros(2, *f.record_shape)
    if isinstance(f, DctDirection):
        pair[0, 0, :2], pair[1, 0, 2:] = 1.0, 1.0
    elif isinstance(f, NonNegativeDirection | PooledPower):
        # Different halves, and only as coarse as the band resolves them.
        pair[0, 0], pair[1, 1] = 1.0, 1.0
    elif isinstance(f, PointBall):
        pair[0], pair[1] = 9.0, -9.0
    else:
        pair[0] = 1.0  # of pixels every sign differs: projections of x and 1 - x are opposite
    return pair


@pytest.mark.parametrize("f", MAPS, ids=NAMES)
def test_the_sensitivity_is_reached_so_the_bound_is_not_loose(f: Map) -> None:
    a, b = f(extreme_pair(f))
    assert distance(f, a, b) == pytest.approx(f.sensitivity, rel=1e-5)


@pytest.mark.parametrize(
    ("f", "diameter"),
    [
        (DctDirection((1, 28, 28), 7), 2.0),
        (NonNegativeDirection((1, 28, 28), 2, 9), math.sqrt(2.0)),
        (PooledPower((1, 28, 28), 7), 2.0),
        (PooledPower((1, 28, 28), 10, 3.0, "l2"), math.sqrt(2.0)),
        (PixelRange((1, 28, 28)), 2 * 784),  # with σ = 3, ε = 522.7
        (PixelRange((1, 28, 28), "l2"), 2 * 28),
        (L1Ball((1, 28, 28), 140.0), 280.0),  # with ε = 35, σ = 8
        (L2Ball((1, 28, 28), 20.0), 40.0),
        (PointBall("l1"), 2 * math.sqrt(2.0)),
        (PointBall("l2"), 2.0),
    ],
)
def test_guarantee_sensitivity_is_public(f: Map, diameter: float) -> None:
    before = f.sensitivity
    f(torch.rand(3, *((2,) if isinstance(f, PointBall) else (1, 28, 28))) * 1e6)
    assert f.sensitivity == before
    assert diameter < before <= diameter * (1 + 1e-6)


@pytest.mark.parametrize("f", MAPS, ids=NAMES)
def test_guarantee_records_do_not_mix(f: Map) -> None:
    x = images(f)
    torch.testing.assert_close(f(x), torch.cat([f(row[None]) for row in x]), rtol=1e-6, atol=1e-7)
    hostile = x.clone()
    hostile[0] = math.inf
    torch.testing.assert_close(f(hostile)[1:], f(x)[1:], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("f", MAPS, ids=NAMES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38, 1e-45])
def test_guarantee_output_is_finite(f: Map, value: float) -> None:
    assert bool(torch.isfinite(f(torch.full((2, *f.record_shape), value))).all())


@pytest.mark.parametrize("f", MAPS, ids=NAMES)
def test_maps_rebuild_from_their_dict_and_keep_the_dtype(f: Map) -> None:
    again = map_from_dict(json.loads(json.dumps(f.to_dict())))
    assert again == f
    assert hash(again) == hash(f)
    for dtype in (torch.float32, torch.float64):
        mapped = f(images(f).to(dtype))
        assert mapped.dtype == dtype
        assert mapped.shape == (5, f.dimension)
        assert f.render(mapped).dtype == dtype
    assert f(images(f, n=0)).shape == (0, f.dimension)


@pytest.mark.parametrize("f", MAPS, ids=NAMES)
def test_gradients_match_finite_differences(f: Map) -> None:
    x = 0.1 + 0.8 * images(f, n=2).double()
    x.requires_grad_()
    towards = torch.linspace(-1, 2, f.dimension, dtype=torch.float64)
    (f(x) @ towards).sum().backward()
    assert x.grad is not None
    step = 1e-6 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).double()
    change = ((f(x.detach() + step) - f(x.detach() - step)) / 2) @ towards
    torch.testing.assert_close((x.grad * step).flatten(1).sum(1), change, rtol=1e-4, atol=1e-14)


@pytest.mark.parametrize("f", MAPS, ids=NAMES)
def test_gradients_are_finite_at_black_and_white(f: Map) -> None:
    for level in (0.0, 1.0):
        x = torch.full((1, *f.record_shape), level, requires_grad=True)
        f(x).sum().backward()
        assert x.grad is not None
        assert bool(torch.isfinite(x.grad).all())


def test_directions_ignore_contrast_and_zero_stays_zero() -> None:
    for f in (DctDirection(SHAPE, 3), NonNegativeDirection(SHAPE, 2, 2), PooledPower(SHAPE, 3)):
        x = images(f)
        torch.testing.assert_close(f(0.3 * x), f(x))
        assert bool((f(torch.zeros(1, *SHAPE)) == 0).all())
    x = 0.5 * images(MAPS[0])
    torch.testing.assert_close(MAPS[0](x + 0.3), MAPS[0](x), rtol=1e-4, atol=1e-6)
    assert float(MAPS[0](torch.full((1, *SHAPE), 0.7)).abs().max()) < 1e-6


def test_channels_are_normalised_jointly() -> None:
    f = NonNegativeDirection(SHAPE, 1, 4)
    x = images(f, n=1)
    x[:, 1] *= 0.5
    per_channel = f(x).reshape(2, 16).square().sum(1)
    expected = x[0].flatten(1).square().sum(1)
    torch.testing.assert_close(per_channel, expected / expected.sum())


def test_points_inside_the_disc_are_untouched() -> None:
    x = torch.tensor([[0.3, -0.4], [3.0, 4.0], [math.nan, 0.5]])
    expected = torch.tensor([[0.3, -0.4], [0.6, 0.8], [0.0, 0.5]])
    torch.testing.assert_close(PointBall("l2")(x), expected)
    torch.testing.assert_close(PointBall("l2").render(x[:2]), x[:2])


@pytest.mark.medium
@given(
    vector=hnp.arrays(np.float64, 6, elements=st.floats(-10, 10)),
    other=hnp.arrays(np.float64, 6, elements=st.floats(-10, 10)),
    radius=st.floats(0.1, 20),
)
def test_projections_are_euclidean(vector: np.ndarray, other: np.ndarray, radius: float) -> None:
    """y = P(v) if and only if y is in the ball and ⟨v − y, z − y⟩ ≤ 0 for every z in the ball."""
    v, z = torch.from_numpy(np.stack([vector, other])).split(1)
    for project, order in ((project_l1, 1), (project_l2, 2)):
        y = project(v, radius)
        inside = project(z, radius)
        assert float(torch.linalg.vector_norm(y, ord=order)) <= radius * (1 + 1e-9)
        assert float(((v - y) * (inside - y)).sum()) <= 1e-8
        torch.testing.assert_close(project(y, radius * (1 + 1e-9)), y, rtol=1e-6, atol=1e-9)


def test_rendering_inverts_the_maps_that_keep_everything() -> None:
    x = images(MAPS[0])
    for f in (PixelRange(SHAPE), L1Ball(SHAPE, 1e3), L1Ball(SHAPE, 1e3, dct=False)):
        torch.testing.assert_close(f.render(f(x)), x, rtol=1e-5, atol=1e-5)
    x[:, 0, 0, 0] = 0.0  # most pictures have a black pixel: then the scale can be recovered
    torch.testing.assert_close(L2Ball(SHAPE, 0.5).render(L2Ball(SHAPE, 0.5)(x)), x)
    x = x / x.amax(dim=(1, 2, 3), keepdim=True)
    full = NonNegativeDirection(SHAPE, 1, 4)
    torch.testing.assert_close(full.render(full(x)), x, rtol=1e-5, atol=1e-5)
    x = x - x.amin(dim=(1, 2, 3), keepdim=True)
    x = x / x.amax(dim=(1, 2, 3), keepdim=True)
    # The mean of each channel is not released: one channel makes it a single black level.
    one = DctDirection((1, 4, 4), 4, background=0.0)
    grey = x[:, :1] - x[:, :1].amin(dim=(1, 2, 3), keepdim=True)
    grey = grey / grey.amax(dim=(1, 2, 3), keepdim=True)
    torch.testing.assert_close(one.render(one(grey)), grey, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("f", MAPS[:-2], ids=NAMES[:-2])
def test_pictures_of_any_coordinates_lie_in_the_unit_range(f: Map) -> None:
    coordinates = torch.randn(4, f.dimension, generator=torch.Generator().manual_seed(0)) * 10
    coordinates[0] = 0.0
    pictures = f.render(coordinates)
    assert pictures.shape == (4, *SHAPE)
    assert float(pictures.min()) >= 0.0
    assert float(pictures.max()) <= 1.0


def test_cells_count_a_cut_pixel_by_its_share() -> None:
    """Four pixels in three cells of 4/3: the second cell has 2/3 of pixels 1 and 2."""
    x = torch.tensor([0.9, 0.3, 0.6, 0.0]).expand(1, 1, 4, 4)
    cells = torch.tensor([(0.9 + 0.3 / 3), 2 / 3 * (0.3 + 0.6), 0.6 / 3])
    f = PooledPower((1, 4, 4), 3, power=1.0)
    torch.testing.assert_close(f(x).reshape(3, 3)[0], cells / cells.sum() / 3)


def test_a_power_concentrates_on_the_bright_cells() -> None:
    x = torch.tensor([[0.25, 0.5], [0.75, 1.0]]).reshape(1, 1, 2, 2)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    for power in (1.0, 2.0, 3.5):
        raised = weights**power
        for norm, order in (("l1", 1), ("l2", 2)):
            f = PooledPower((1, 2, 2), 2, power, norm)  # type: ignore[arg-type]
            torch.testing.assert_close(f(x)[0], raised / torch.linalg.vector_norm(raised, order))
            torch.testing.assert_close(f.render(f(x)), x)


def test_levels_cut_a_picture_at_black_and_white() -> None:
    x = torch.tensor([[0.0, 0.2], [0.6, 1.0]]).reshape(1, 1, 2, 2)
    f = PooledPower((1, 2, 2), 2, black=0.3, white=0.7)
    expected = torch.tensor([[0.0, 0.0], [0.75, 1.0]]).reshape(1, 1, 2, 2)
    torch.testing.assert_close(f.render(f(x)), expected)


def test_coarse_cells_are_interpolated_by_their_cosines() -> None:
    """A low-pass picture that the cells resolve comes back up to its scale."""
    across = torch.cos(math.pi / 28 * (torch.arange(28) + 0.5))
    x = (0.5 + 0.4 * across).expand(1, 1, 28, 28)
    f = PooledPower((1, 28, 28), 7)
    torch.testing.assert_close(f.render(f(x)), x / x.max(), atol=5e-3, rtol=0)


def test_background_sets_the_fraction_of_black() -> None:
    coordinates = torch.randn(1, 48, generator=torch.Generator().manual_seed(0))
    for background in (0.25, 0.65):
        picture = DctDirection((1, 28, 28), 7, background=background).render(coordinates)
        assert float((picture == 0).float().mean()) == pytest.approx(background, abs=0.01)
        assert float(picture.max()) == 1.0


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("identity", {}, "'identity' is unknown; choose one of dct_direction, "),
        ("l2_ball", {"r": 1}, "no option 'r'; it has shape, radius"),
        ("l2_ball", {}, "l2_ball lacks an option"),
        ("l2_ball", {"shape": [2], "radius": 1}, r"height, width\), got \(2,\)"),
        ("l2_ball", {"radius": 0}, "needs a radius from .*, got 0"),
        ("l1_ball", {"radius": math.inf}, ", got inf"),
        ("l1_ball", {"radius": True}, ", got True"),
        ("pixel_range", {"norm": "l3"}, "'l1' or 'l2', got 'l3'"),
        ("dct_direction", {"block": 5}, "block from 2 to 4, got 5"),
        ("dct_direction", {"block": True}, "to 4, got True"),
        ("dct_direction", {"block": 2, "background": 1}, r"background in \[0, 1\), got 1"),
        ("non_negative_direction", {"pool": 3, "block": 1}, "pool that divides 4×4, got 3"),
        ("non_negative_direction", {"pool": 2.0, "block": 2}, "pool that divides 4×4, got 2.0"),
        ("non_negative_direction", {"pool": 2, "block": 3}, "1 to 2 after pooling by 2, got 3"),
        ("non_negative_direction", {"pool": 2, "block": 1.0}, "after pooling by 2, got 1.0"),
        ("pooled_power", {"block": 5}, "block from 1 to 4, got 5"),
        ("pooled_power", {"block": 2.0}, "block from 1 to 4, got 2.0"),
        ("pooled_power", {"block": 2, "power": 0.5}, "power from 1 to 1.04858e\\+06, got 0.5"),
        ("pooled_power", {"block": 2, "power": 10**300}, "power from 1 to"),
        ("pooled_power", {"block": 2, "black": 0.5, "white": 0.5}, "got black=0.5 and white=0.5"),
        ("point_ball", {"size": 2.0}, "positive size, got 2.0"),
        ("point_ball", {"size": 0}, "positive size, got 0"),
    ],
)
def test_messages(name: str, options: dict[str, Any], message: str) -> None:
    shape = {} if name == "point_ball" else {"shape": [1, 4, 4]}
    with pytest.raises(ConfigError, match=message):
        map_from_dict({"name": name, **shape, **options})
