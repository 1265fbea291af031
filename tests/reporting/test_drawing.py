from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch
from PIL import Image

from fedsink.reporting.drawing import (
    GAP,
    GROUND,
    LEFT,
    POINT_COLOUR,
    SIDE,
    TOP,
    fit_text,
    save_grid,
    save_points,
    text_width,
    tick_values,
)

NAMES = ["zero", "one", "two"]


def grid(tmp_path, images, labels, names=NAMES, **options):
    path = tmp_path / "samples" / "grid.png"
    save_grid(images, labels, names, path, **options)
    assert os.listdir(path.parent) == ["grid.png"]
    with Image.open(path) as picture:
        return np.asarray(picture)


def cells(pixels, rows, columns, side):
    """The picture without its margin, as (rows, columns, side, side[, 3])."""
    left = pixels.shape[1] - columns * (side + GAP)
    pitch = side + GAP
    out = [
        [
            pixels[
                GAP + r * pitch : GAP + r * pitch + side,
                left + c * pitch : left + c * pitch + side,
            ]
            for c in range(columns)
        ]
        for r in range(rows)
    ]
    return np.array(out), pixels[:, : left - 2]


def test_every_image_is_in_its_class_row_enlarged_without_smoothing(tmp_path):
    generator = torch.Generator().manual_seed(0)
    levels = torch.randint(0, 256, (6, 1, 8, 8), generator=generator)
    labels = torch.tensor([2, 0, 1, 0, 2, 1])
    pixels = grid(tmp_path, levels / 255, labels, columns=2, scale=4)
    drawn, _ = cells(pixels, 3, 2, 32)
    for row, members in enumerate([[1, 3], [2, 5], [0, 4]]):
        for column, member in enumerate(members):
            expected = levels[member, 0].numpy().repeat(4, axis=0).repeat(4, axis=1)
            assert np.array_equal(drawn[row, column], expected)


def test_colours_survive(tmp_path):
    generator = torch.Generator().manual_seed(0)
    levels = torch.randint(0, 256, (1, 3, 16, 16), generator=generator)
    pixels = grid(tmp_path, levels / 255, torch.tensor([0]), ["only"], columns=1, scale=2)
    drawn, _ = cells(pixels, 1, 1, 32)
    expected = levels[0].permute(1, 2, 0).numpy().repeat(2, axis=0).repeat(2, axis=1)
    assert np.array_equal(drawn[0, 0], expected)


@pytest.mark.parametrize(("side", "drawn_side"), [(8, 48), (28, 56), (32, 64), (64, 64)])
def test_small_images_are_made_readable(tmp_path, side, drawn_side):
    pixels = grid(tmp_path, torch.zeros(3, 1, side, side), torch.arange(3), columns=1)
    assert pixels.shape[0] == 3 * (drawn_side + GAP) + GAP


def test_rows_carry_their_names(tmp_path):
    images = torch.zeros(3, 1, 8, 8)
    pixels = grid(tmp_path, images, torch.arange(3), ["zero", "", "a much longer name"], columns=1)
    _, margin = cells(pixels, 3, 1, 48)
    ink = [int((margin[r * 50 : (r + 1) * 50].astype(int) - GROUND[0]).sum()) for r in range(3)]
    assert ink[1] == 0
    assert 0 < ink[0] < ink[2]


@pytest.mark.medium
def test_a_very_long_name_does_not_widen_the_page_for_ever(tmp_path):
    images, labels = torch.zeros(1, 1, 8, 8), torch.tensor([0])
    long = grid(tmp_path, images, labels, ["w" * 500], columns=1)
    assert long.shape[1] < 240


def test_missing_images_leave_empty_cells_and_extra_ones_are_left_out(tmp_path):
    images = torch.zeros(5, 1, 8, 8)
    pixels = grid(tmp_path, images, torch.tensor([0, 0, 0, 0, 2]), columns=3, scale=6)
    drawn, _ = cells(pixels, 3, 3, 48)
    filled = (drawn == 0).all(axis=(2, 3))
    empty = (drawn == GROUND[0]).all(axis=(2, 3))
    assert filled.tolist() == [[True] * 3, [False] * 3, [True, False, False]]
    assert (filled | empty).all()


def test_a_row_shows_the_first_images_of_its_class(tmp_path):
    levels = torch.tensor([10, 20, 30, 40, 50])
    images = (levels / 255).reshape(5, 1, 1, 1).expand(5, 1, 8, 8)
    pixels = grid(tmp_path, images, torch.tensor([0, 1, 0, 0, 1]), "ab", columns=2, scale=2)
    drawn, _ = cells(pixels, 2, 2, 16)
    assert drawn[:, :, 0, 0].tolist() == [[10, 30], [20, 50]]


def test_no_images_at_all(tmp_path):
    pixels = grid(tmp_path, torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.int64), columns=2)
    drawn, _ = cells(pixels, 3, 2, 48)
    assert (drawn == GROUND[0]).all()


def test_values_outside_the_range_are_clamped(tmp_path):
    images = torch.tensor([-0.5, 1.5]).reshape(2, 1, 1, 1).expand(2, 1, 8, 8)
    drawn, _ = cells(grid(tmp_path, images, torch.tensor([0, 1]), columns=1), 3, 1, 48)
    assert set(np.unique(drawn[0, 0])) == {0}
    assert set(np.unique(drawn[1, 0])) == {255}


IMAGES, LABELS = torch.zeros(3, 1, 8, 8), torch.arange(3)


@pytest.mark.parametrize(
    ("images", "labels", "names", "options", "message"),
    [
        (torch.zeros(3, 2, 8, 8), LABELS, NAMES, {}, r"C = 1 or 3; received \(3, 2, 8, 8\)"),
        (torch.zeros(3, 64), LABELS, NAMES, {}, r"received \(3, 64\)"),
        (IMAGES, LABELS[:2], NAMES, {}, r"received 3 images and labels of shape \(2,\)"),
        (IMAGES, LABELS.float(), NAMES, {}, "one integer label per image"),
        (IMAGES, LABELS, NAMES[:2], {}, r"0\.\.1, one per class name; .* from 0 to 2"),
        (IMAGES, LABELS, [], {}, "at least one class name"),
        (IMAGES, LABELS, NAMES, {"columns": 0}, "received columns=0, scale=None"),
        (IMAGES, LABELS, NAMES, {"scale": 0}, "received columns=10, scale=0"),
        (IMAGES * float("nan"), LABELS, NAMES, {}, "needs finite images"),
    ],
)
def test_a_grid_says_what_does_not_fit(tmp_path, images, labels, names, options, message):
    with pytest.raises(ValueError, match=message):
        save_grid(images, labels, names, tmp_path / "grid.png", **options)
    assert os.listdir(tmp_path) == []


def plot(tmp_path, points):
    path = tmp_path / "points.png"
    save_points(points, path)
    assert os.listdir(tmp_path) == ["points.png"]
    with Image.open(path) as picture:
        return np.asarray(picture)


def centre(pixels, colour):
    """Mean position of a colour in the frame, in [0, 1]² with y upwards."""
    frame = pixels[TOP + 1 : TOP + SIDE, LEFT + 1 : LEFT + SIDE]
    rows, columns = np.nonzero((frame == colour).all(axis=-1))
    assert len(rows), "nothing was drawn in this colour"
    return columns.mean() / SIDE, 1 - rows.mean() / SIDE


def test_points_stand_where_they_should(tmp_path):
    corners = [[0.0, 0.0], [10.0, 10.0]]
    pixels = plot(tmp_path, torch.tensor([*corners, *[[2.0, 7.0]] * 2]))
    # The frame is 8 % wider than the points: 10 units take 1/1.08 of it, centred.
    for x, y in (*corners, [2.0, 7.0]):
        column = LEFT + (0.5 + (x - 5) / 10.8) * SIDE
        row = TOP + (0.5 - (y - 5) / 10.8) * SIDE
        assert tuple(pixels[round(row), round(column)]) == POINT_COLOUR
    assert centre(pixels, POINT_COLOUR) == pytest.approx(
        (0.5 - 1 / 10.8, 0.5 + 2 / 3 / 10.8), abs=0.01
    )


def test_both_axes_have_one_scale(tmp_path):
    pixels = plot(tmp_path, torch.tensor([[-5.0, 1.0], [5.0, 1.0], [0.0, 4.0]]))
    across, up = centre(pixels, POINT_COLOUR)
    assert across == pytest.approx(0.5, abs=0.01)
    assert up == pytest.approx(0.5 + (2 - 2.5) / 10.8, abs=0.01)  # the mean, from the middle


def test_one_point(tmp_path):
    pixels = plot(tmp_path, torch.tensor([[3.0, 3.0]]))
    assert centre(pixels, POINT_COLOUR) == pytest.approx((0.5, 0.5), abs=0.01)


@pytest.mark.parametrize(
    ("low", "span", "expected"),
    [
        (-1.1, 2.2, [-1, -0.5, 0, 0.5, 1]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-37, 100, [-20, 0, 20, 40, 60]),
    ],
)
def test_ticks_are_round(low, span, expected):
    assert tick_values(low, span) == pytest.approx(expected)


@pytest.mark.parametrize("span", [1e-9, 0.003, 1, 7.3, 1e6])
def test_there_are_always_a_few_ticks(span):
    values = tick_values(-span / 3, span)
    assert 2 <= len(values) <= 6
    assert all(-span / 3 - 1e-9 <= value <= span * 2 / 3 + 1e-9 for value in values)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (torch.zeros(3, 3), r"points of shape \(N, 2\).*received \(3, 3\)"),
        (torch.zeros(0, 2), r"N > 0; received \(0, 2\)"),
        (torch.full((3, 2), math.inf), "finite points; received others"),
    ],
)
def test_a_plot_says_what_does_not_fit(tmp_path, points, message):
    with pytest.raises(ValueError, match=message):
        save_points(points, tmp_path / "points.png")
    assert os.listdir(tmp_path) == []


def test_short_text_stays():
    assert fit_text("Ankle boot", 14, 160) == "Ankle boot"


def test_long_text_is_cut_to_the_width_and_marked():
    text = fit_text("a name that is far too long", 14, 80)
    assert text.endswith("...")
    assert text_width(text, 14) <= 80
    assert len(text) > 6


def test_line_breaks_become_spaces():
    assert fit_text("two\nlines", 14, 160) == "two lines"
