from __future__ import annotations

from pathlib import Path

import pytest

from fedsink.results.pages.report_page import write_report

from .browser import needs_chromium, printed, said, screenshot, widths
from .conftest import Begin
from .test_report_page import EVALUATION, PAPER

pytestmark = [pytest.mark.slow, needs_chromium]

PAPER_COLOURS = {False: (255, 255, 255), True: (0x14, 0x17, 0x1B)}


@pytest.fixture
def page(begin: Begin) -> Path:
    """The page of a run with everything on it."""
    folder = begin("mode=central", "data=fashion_mnist", "seed=1", "noise.share=secure_aggregation")
    folder.write(folder.path / "evaluation.json", EVALUATION)
    folder.write(folder.path / "evaluation-paper.json", PAPER)
    return write_report(folder.path)


@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_runs_over_the_edge(page: Path, width: int) -> None:
    window, content, visible = widths(page, width)
    assert window == pytest.approx(width, abs=120)  # a browser may have a least width
    assert content <= visible


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_is_shown_in_both_schemes(page: Path, width: int, dark: bool) -> None:
    shown = screenshot(page, width, 6000, dark=dark)
    assert shown.size == (width, 6000)
    colours = {colour: count for count, colour in shown.getcolors(1 << 24) or []}
    assert shown.getpixel((2, 2)) == PAPER_COLOURS[dark]
    assert max(colours, key=lambda colour: colours[colour]) == PAPER_COLOURS[dark]
    assert len(colours) > 50


def test_the_page_can_be_printed(page: Path) -> None:
    content = printed(page)
    assert content.startswith(b"%PDF")
    assert content.count(b"/Type /Page\n") + content.count(b"/Type /Page ") >= 3


def test_the_policy_refuses_nothing_that_the_page_has(page: Path) -> None:
    assert "Content Security Policy" not in said(page)
    broken = page.with_name("broken.html")
    broken.write_text(page.read_text().replace("</body>", "<script>1</script></body>"))
    assert "Content Security Policy" in said(broken)
