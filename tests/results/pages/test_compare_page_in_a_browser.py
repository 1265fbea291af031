"""The page of a comparison in headless Chromium: narrow, wide, light, dark, and on paper."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsink.results.pages.compare_page import Comparison

from ...support.browser import DARK, LIGHT, browser, complaints, measured, printed, screenshot

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    browser()
    path = tmp_path_factory.mktemp("page") / "compare.html"
    Comparison.of(sorted(runs.iterdir())).write(path)
    return path


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_it_fits_its_window_and_can_be_read(
    page: Path, tmp_path: Path, width: int, scheme: int
) -> None:
    shown = measured(page, tmp_path, width, scheme)
    assert shown["window"] <= max(width, 500)  # Chromium has no narrower windows than that
    assert shown["page"] <= shown["window"]
    assert shown["dark"] == (scheme == DARK)
    assert shown["contrast"] >= 4.5, shown["least"]
    assert shown["broken"] == []


def test_its_colours_follow_the_reader_s(page: Path, tmp_path: Path) -> None:
    light, dark = (
        screenshot(page, tmp_path / f"{scheme}.png", 1400, 1200, scheme).getpixel((5, 5))
        for scheme in (LIGHT, DARK)
    )
    assert isinstance(light, tuple)
    assert isinstance(dark, tuple)
    assert min(light) > 240
    assert max(dark) < 40


def test_the_browser_has_no_complaints(page: Path, tmp_path: Path) -> None:
    assert complaints(page, tmp_path) == []


def test_it_can_be_printed(page: Path, tmp_path: Path) -> None:
    paper = printed(page, tmp_path / "page.pdf")
    assert paper.startswith(b"%PDF")
    assert 2 <= paper.count(b"/Type /Page\n") + paper.count(b"/Type /Page ") <= 30
