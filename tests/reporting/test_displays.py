from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fedsink.reporting.displays import (
    ForgivingStream,
    duration,
    format_table,
    in_notebook,
)
from fedsink.reporting.progress import Progress


def shell(monkeypatch: pytest.MonkeyPatch, **attributes: object) -> None:
    import IPython

    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(**attributes))


def test_a_kernel_is_a_notebook_and_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython

    assert not in_notebook()
    shell(monkeypatch)
    assert not in_notebook()  # IPython on a terminal has no kernel
    shell(monkeypatch, kernel=object())
    assert in_notebook()
    monkeypatch.setattr(IPython, "get_ipython", lambda: None)
    assert not in_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not in_notebook()


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Collects the outputs of a notebook, the first and those that replace it."""
    import IPython.display

    bundles: list[dict[str, str]] = []

    class Handle:
        def update(self, bundle: dict[str, str], raw: bool) -> None:
            bundles.append(bundle)

    def display(bundle: dict[str, str], raw: bool, display_id: bool) -> Any:
        bundles.append(bundle)
        return Handle()

    monkeypatch.setattr(IPython.display, "display", display)
    return bundles


def test_the_bar_is_redrawn_in_place_a_few_times_a_second(
    shown: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell(monkeypatch, kernel=object())
    now = 0.0
    with Progress(1000, "<b>", start_round=10, clock=lambda: now) as progress:
        assert shown[0]["text/html"].startswith('<progress value="10" max="1000"></progress>')
        assert "&lt;b&gt;" in shown[0]["text/html"]
        for round in range(11, 1001):
            now += 0.01
            progress.update(round)
    assert 38 <= len(shown) <= 43
    assert "round 1000/1000" in shown[-1]["text/plain"]


def test_progress_chooses_it_in_a_notebook(
    shown: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell(monkeypatch, kernel=object())
    with Progress(3, "central") as progress:
        progress.update(2, loss=0.5)
    assert "round 2/3  loss 0.5" in shown[-1]["text/plain"]
    assert capsys.readouterr().err == ""
    stream = io.StringIO()
    with Progress(3, "central", stream=stream) as progress:  # a stream that was asked for is used
        progress.update(3)
    assert "round 3/3" in stream.getvalue()


class Full(io.StringIO):
    """Takes one write, then fails, then would take more again."""

    def write(self, text: str) -> int:
        if text == "second":
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_passes_text_on():
    stream = io.StringIO()
    assert ForgivingStream(stream).write("ε") == 1
    assert stream.getvalue() == "ε"


def test_what_the_stream_cannot_say_is_replaced_and_the_rest_is_said():
    raw = io.BytesIO()
    forgiving = ForgivingStream(io.TextIOWrapper(raw, "cp1252", write_through=True))
    assert forgiving.write("ε = 3, δ; é\n") == 12
    forgiving.write("more")
    assert raw.getvalue().decode("cp1252") == "? = 3, ?; é\nmore"


def test_falls_silent_for_good_after_a_failure():
    stream = Full()
    forgiving = ForgivingStream(stream)
    assert [forgiving.write(text) for text in ("first", "second", "third")] == [5, 6, 5]
    assert stream.getvalue() == "first"


def test_a_closed_stream_is_forgiven():
    for action in (lambda f: f.flush(), lambda f: f.write("x")):
        stream = io.StringIO()
        stream.close()
        action(ForgivingStream(stream))


def test_aligns_numbers_right_and_text_left():
    rows = [
        {"data": "synthetic", "logreg": 0.5, "images": 1000},
        {"data": "real", "logreg": 0.92345, "images": 60000},
    ]
    assert format_table(rows) == (
        "data       logreg  images\n"
        "---------  ------  ------\n"
        "synthetic   0.500    1000\n"
        "real        0.923   60000"
    )


def test_missing_cells_and_keys_of_later_rows():
    assert format_table([{"a": 1.0}, {"b": "x", "a": None}]) == (
        "    a  b\n-----  -\n1.000  -\n    -  x"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e-5, "1e-05"), (0.0, "0.000"), (0.0006, "0.001"), (-0.0001, "-0.0001"), (True, "True")],
)
def test_small_numbers_keep_significant_digits(value, text):
    assert format_table([{"v": value}]).splitlines()[2].strip() == text


def test_line_breaks_cannot_break_the_table():
    assert len(format_table([{"a": "x\ny"}]).splitlines()) == 3


@pytest.mark.parametrize("rows", [[], [{}]])
def test_refuses_a_table_of_nothing(rows):
    with pytest.raises(ValueError, match="at least one row with one column"):
        format_table(rows)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0312, "0.031 s"), (59.6, "1 min 0 s"), (3600, "1 h 0 min"), (90061, "25 h 1 min")],
)
def test_times_have_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
