from __future__ import annotations

import re
from importlib.resources import files

import pytest

from fedsink.pages import page

TEXT = (files("fedsink.pages") / "page.css").read_text()


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
    # Sample pictures are drawn on white, also on a dark page.
    assert set(re.findall(r"#[0-9a-f]{3,6}\b", body)) == {"#ffffff"}


@pytest.fixture
def template(monkeypatch: pytest.MonkeyPatch) -> str:
    """A template that shows a value in the text and in an attribute."""
    from jinja2 import ChoiceLoader, DictLoader, Environment

    text = (
        '{% extends "base.html.j2" %}{% block main %}<p title="{{ value }}">{{ value }}</p>'
        "{% endblock %}"
    )
    usual: Environment = page._environment()
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
