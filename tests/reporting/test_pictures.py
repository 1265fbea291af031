from __future__ import annotations

from fedsink.reporting.pictures import fit_text, text_width


def test_short_text_stays():
    assert fit_text("Ankle boot", 14, 160) == "Ankle boot"


def test_long_text_is_cut_to_the_width_and_marked():
    text = fit_text("a name that is far too long", 14, 80)
    assert text.endswith("...")
    assert text_width(text, 14) <= 80
    assert len(text) > 6


def test_line_breaks_become_spaces():
    assert fit_text("two\nlines", 14, 160) == "two lines"
