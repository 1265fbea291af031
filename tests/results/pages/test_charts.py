from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET

import pytest

from fedsink.results.pages.charts import Chart, Line, line_chart

from .test_page import contrast

PAPERS = ("#ffffff", "#14171b")


def _svg(uri: str) -> str:
    kind, content = uri.split(",", 1)
    assert kind == "data:image/svg+xml;base64"
    return base64.b64decode(content).decode()


@pytest.fixture(scope="module")
def chart() -> Chart:
    rounds = list(range(1, 2001))
    lines = [Line(f"run {k}", rounds, [k + 1 / t for t in rounds]) for k in range(1, 4)]
    return line_chart(lines, "round", "loss", alt="Three losses fall.", caption="Losses.")


@pytest.mark.medium
def test_a_chart_has_a_colour_for_each_scheme(chart: Chart) -> None:
    text = _svg(chart.source)
    root = ET.fromstring(text)
    words = {"".join(e.itertext()).strip() for e in root.findall(".//{*}text")}
    assert {"round", "loss", "run 1", "run 2", "run 3"} <= words
    assert not [paper for paper in PAPERS if paper in text]  # the page's own shows through
    assert len(text) < 60_000
    style, drawn = text.split("</style>", 1)
    used = set(re.findall(r"var\((--\w+)\)", drawn))
    assert len(used) == 6  # ink, soft, rule, and three lines
    assert all(style.count(f"{name}:#") == 2 for name in used)
    assert not re.findall(r": #(?!000000)", drawn)  # what has no colour of its own is black


@pytest.mark.medium
def test_a_chart_is_the_same_bytes_every_time(chart: Chart) -> None:
    line = Line("ε", [1, 2, 3], [0.1, 0.2, 0.3])
    one, other = (line_chart([line], "round", "ε", alt="ε grows.") for _ in range(2))
    assert one == other


def test_text_in_charts_can_be_read() -> None:
    from fedsink.results.pages.charts import _COLOURS, _INK, _SOFT

    for number, paper in enumerate(PAPERS):
        assert contrast(_SOFT[number], paper) >= 4.5
        assert contrast(_INK[number], paper) >= 4.5
        for colours in _COLOURS:
            assert contrast(colours[number], paper) >= 3.0


def test_a_long_line_is_shown_by_means() -> None:
    line = Line("loss", list(range(1, 1001)), [float(t % 2) for t in range(1000)])
    thin = line.thinned(100)
    assert len(thin.x) == len(thin.y) == 100
    assert (thin.x[0], thin.x[-1]) == (10, 1000)
    assert set(thin.y) == {0.5}
    assert line.thinned(1000) is line


def test_what_was_not_measured_is_left_out_of_a_mean() -> None:
    thin = Line("", [1, 2, 3, 4], [None, 1.0, None, None]).thinned(2)
    assert list(thin.y) == [1.0, None]


@pytest.mark.parametrize("values", [[1.0], [None, None], [0.0, 2.0], [-1.0, 1e9]])
def test_any_line_can_be_drawn(values: list[float | None]) -> None:
    line = Line("", list(range(len(values))), values)
    assert _svg(line_chart([line], "x", "y", alt="", log=True).source).startswith("<?xml")


def test_a_name_is_text_and_not_markup() -> None:
    hostile = "</svg><script>$x_1$ & _name_"
    lines = [Line(hostile, [1, 2], [1, 2]), Line("b", [1, 2], [2, 1])]
    root = ET.fromstring(_svg(line_chart(lines, "x", "y", alt="").source))
    assert hostile in {"".join(e.itertext()).strip() for e in root.findall(".//{*}text")}


def test_no_line_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one line"):
        line_chart([], "x", "y", alt="")
