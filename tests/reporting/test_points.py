from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch
from PIL import Image

from fedsink.reporting.points import (
    LEFT,
    POINT_COLOUR,
    REFERENCE_COLOUR,
    SIDE,
    TOP,
    save_points,
    tick_values,
)


def plot(tmp_path, points, reference):
    path = tmp_path / "points.png"
    save_points(points, reference, path)
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
    corners = torch.tensor([[0.0, 0.0], [10.0, 10.0]])
    pixels = plot(tmp_path, torch.tensor([[2.0, 7.0]]), corners)
    across, up = centre(pixels, POINT_COLOUR)
    # The frame is 8 % wider than the points: 10 units take 1/1.08 of it, centred.
    assert across == pytest.approx(0.5 + (2 - 5) / 10.8, abs=0.01)
    assert up == pytest.approx(0.5 + (7 - 5) / 10.8, abs=0.01)
    assert centre(pixels, REFERENCE_COLOUR) == pytest.approx((0.5, 0.5), abs=0.01)


def test_both_axes_have_one_scale(tmp_path):
    flat = torch.tensor([[-5.0, 1.0], [5.0, 1.0]])
    across, up = centre(plot(tmp_path, torch.tensor([[0.0, 3.0]]), flat), POINT_COLOUR)
    assert across == pytest.approx(0.5, abs=0.01)
    assert up == pytest.approx(0.5 + 1 / 10.8, abs=0.01)


def test_without_a_reference(tmp_path):
    pixels = plot(tmp_path, torch.tensor([[3.0, 3.0]]), None)
    assert centre(pixels, POINT_COLOUR) == pytest.approx((0.5, 0.5), abs=0.01)
    assert not (pixels == REFERENCE_COLOUR).all(axis=-1).any()


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
    ("points", "reference", "message"),
    [
        (torch.zeros(3, 3), None, r"generated points of shape \(N, 2\).*received \(3, 3\)"),
        (torch.zeros(0, 2), None, r"N > 0; received \(0, 2\)"),
        (torch.zeros(3, 2), torch.zeros(3), r"reference points of shape .*received \(3,\)"),
        (torch.full((3, 2), math.inf), None, "finite points; generated holds others"),
    ],
)
def test_says_what_does_not_fit(tmp_path, points, reference, message):
    with pytest.raises(ValueError, match=message):
        save_points(points, reference, tmp_path / "points.png")
    assert os.listdir(tmp_path) == []
