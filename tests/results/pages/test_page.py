from __future__ import annotations

import base64
import io
import re
import zlib
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from PIL import Image

from fedsink.errors import CheckpointError
from fedsink.results.pages import page
from fedsink.results.pages.page import PageTable, pictures, spread

TEXT = (files("fedsink.results.pages") / "page.css").read_text()


def _colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2.2, between 1 and 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_oracle_knows_black_and_white() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("ink", "paper"),
    [(ink, paper) for ink in ("ink", "soft", "accent") for paper in ("paper", "panel")]
    + [("warn-ink", "warn")],
)
def test_text_can_be_read(scheme: int, ink: str, paper: str) -> None:
    colours = _colours(re.findall(r":root \{(.*?)\}", TEXT, re.DOTALL)[scheme])
    assert contrast(colours[ink], colours[paper]) >= 4.5


def test_both_schemes_have_all_colours() -> None:
    light, dark = (_colours(b) for b in re.findall(r":root \{(.*?)\}", TEXT, re.DOTALL))
    assert light.keys() == dark.keys()
    used = set(re.findall(r"var\(--([a-z-]+)\)", TEXT))
    assert used == light.keys()


def test_every_colour_comes_from_the_schemes() -> None:
    body = TEXT[TEXT.index("* { box-sizing") :]
    assert re.findall(r"#[0-9a-f]{3,6}\b", body) == []


def test_a_narrow_screen_loses_no_column() -> None:
    """Rows of three cells and more are stacked there, each cell beside the name of its column."""
    table = PageTable(["client", "replies", "ε"], [["clients 0–9, each", "3,000", "10"]])
    parts = page.environment().get_template("parts.html.j2").module
    text = str(parts.table(table))  # type: ignore[attr-defined]
    assert '<table class="rows">' in text
    assert re.findall(r'<td data-column="([^"]*)"[^>]*>([^<]*)', text) == [
        ("replies", "3,000"),
        ("ε", "10"),
    ]
    narrow = TEXT[TEXT.index("@media screen and (max-width: 36rem)") : TEXT.index("@media print")]
    assert "td::before { content: attr(data-column)" in narrow
    assert "table.rows thead { display: none; }" in narrow


@pytest.fixture
def template(monkeypatch: pytest.MonkeyPatch) -> str:
    """A template that shows a value in the text and in an attribute."""
    from jinja2 import ChoiceLoader, DictLoader, Environment

    text = (
        '{% extends "base.html.j2" %}{% block main %}<p title="{{ value }}">{{ value }}</p>'
        "{% endblock %}"
    )
    usual: Environment = page.environment()
    assert usual.loader is not None
    loader = ChoiceLoader([DictLoader({"test.html": text}), usual.loader])
    monkeypatch.setattr(usual, "loader", loader)
    return "test.html"


def test_values_are_escaped(template: str) -> None:
    hostile = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
    text = page.render(template, value=hostile).decode()
    assert "<script" not in text
    assert "<img" not in text
    assert text.count("&lt;script&gt;") == 2
    assert text.count("&#34;&gt;") == 2


def test_a_page_allows_its_own_style_and_pictures_alone(template: str) -> None:
    text = page.render(template, value="").decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    policy = policy.replace("&#39;", "'")
    allowed = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert allowed.keys() == {"default-src", "img-src", "style-src"}
    assert allowed["default-src"] == "'none'"
    assert allowed["img-src"] == "data:"
    assert re.fullmatch(r"'sha256-[A-Za-z0-9+/]{43}='", allowed["style-src"])
    assert f"<style>{TEXT}</style>" in text


def test_what_a_template_lacks_is_an_error(template: str) -> None:
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError):
        page.render(template)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.0, "0"), (12, "12"), (1437, "1,437"), (0.2, "0.2"), (1e-5, "1e-5"),
        (2.34567, "2.346"), (12345.6, "12,346"), (3.4e7 + 0.5, "3.4e7"), (float("inf"), "∞"),
        (-0.123456, "-0.1235"),
    ],
)  # fmt: skip
def test_numbers_are_short(value: float, text: str) -> None:
    assert page.number(value) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (5e12, "5,000.0 GB")]
)
def test_sizes_have_units(count: int, text: str) -> None:
    assert page.size(count) == text


def _noise(path: Path, side: int, mode: str = "L") -> Path:
    depth = len(mode)
    pixels = torch.randint(0, 256, (side, side, depth), generator=torch.Generator().manual_seed(1))
    array = pixels.to(torch.uint8).squeeze(-1).numpy()
    Image.fromarray(array).save(path)
    return path


def _shown(source: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2])))


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_small_picture_keeps_its_bytes(tmp_path: Path, mode: str) -> None:
    path = _noise(tmp_path / "a.png", 20, mode)
    (shown,) = pictures([(path, "noise", "Round 1")])
    assert base64.b64decode(shown.source.partition(",")[2]) == path.read_bytes()
    assert (shown.alt, shown.caption, shown.width, shown.height) == ("noise", "Round 1", 20, 20)


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_large_pictures_are_made_smaller_and_keep_their_place(tmp_path: Path, mode: str) -> None:
    files = [_noise(tmp_path / f"{n}.png", side, mode) for n, side in enumerate((300, 10))]
    large, small = pictures([(file, "", "") for file in files], most_bytes=20_000)
    assert len(large.source) <= 10_000 * 4 / 3 + 100
    assert (large.width, large.height) == (300, 300)
    assert _shown(large.source).mode == mode
    assert _shown(small.source).size == (10, 10)


def test_a_picture_that_would_not_fit_into_memory_is_named(tmp_path: Path) -> None:
    path = tmp_path / "round-000001.png"
    Image.new("L", (1, 1)).save(path)
    content = bytearray(path.read_bytes())
    content[16:24] = (60_000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"round-000001\.png is damaged.*restore"):
        pictures([(path, "a", "c")])


def test_a_damaged_picture_is_named(tmp_path: Path) -> None:
    path = _noise(tmp_path / "round-000001.png", 30)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(CheckpointError, match=r"round-000001\.png is damaged.*restore"):
        pictures([(path, "", "")])


def test_the_first_and_the_last_are_among_the_chosen() -> None:
    files = {number: Path(str(number)) for number in (0, 5, 10, 20, 40, 80, 100)}
    assert list(spread(files, 20)) == list(files)
    assert list(spread(files, 3)) == [0, 20, 100]
    assert list(spread(files, 2)) == [0, 100]
    assert list(spread(files, 1)) == [100]
    assert spread({}, 3) == {}
