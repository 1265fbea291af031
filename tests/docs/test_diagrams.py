"""The diagrams are what their script draws, and every text of them fits and can be read."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from ..support.scripts import script

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "diagrams.py"


@pytest.fixture(scope="module")
def diagrams() -> ModuleType:
    return script(SCRIPT)


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2.2)."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_the_files_are_those_of_the_script(diagrams: ModuleType) -> None:
    drawn = {name: draw().svg() for name, draw in diagrams.DIAGRAMS.items()}
    stored = {path.stem: path.read_text() for path in diagrams.IMAGES.glob("*.svg")}
    assert stored == drawn


def test_texts_and_lines_are_seen_on_light_and_dark(diagrams: ModuleType) -> None:
    assert all(contrast(fill, ink) >= 4.5 for fill, ink in diagrams.FILLS.values())
    assert all(contrast(diagrams.LINE, page) >= 3 for page in ("#ffffff", "#1e2129"))


def test_every_text_lies_in_a_box(diagrams: ModuleType) -> None:
    for draw in diagrams.DIAGRAMS.values():
        drawing = draw()
        boxes = [
            tuple(map(float, found))
            for found in re.findall(
                r'<rect x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)" rx="\d+" fill="#',
                drawing.svg(),
            )
        ]
        texts = re.findall(r'<text x="([\d.]+)" y="(\d+)"', drawing.svg())
        assert len(texts) >= len(boxes) > 5
        for x, y in ((float(x), float(y)) for x, y in texts):
            assert any(left < x < left + w and top < y < top + h for left, top, w, h in boxes)
            assert 0 < x < drawing.width
            assert y < drawing.height


def test_a_text_that_does_not_fit_is_refused(diagrams: ModuleType) -> None:
    with pytest.raises(ValueError, match="'much too long' does not fit into 40 pixels"):
        diagrams.Drawing("", 100, 100).box(0, 0, 40, "much too long")
