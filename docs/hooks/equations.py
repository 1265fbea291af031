"""Equations, TeX between dollar signs, as MathML: browsers draw it without a script."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

_EQUATION = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<tex>.*?)\\[)\]]</(?P=tag)>', re.S
)


def on_page_content(content: str, **_: object) -> str:
    """Replaces every equation that the Markdown extension has marked."""
    return _EQUATION.sub(_mathml, content)


def _mathml(equation: re.Match[str]) -> str:
    display = "block" if equation["open"] == "[" else "inline"
    tex = html.unescape(equation["tex"]).strip()
    mathml = convert(tex, display=display)
    mathml = mathml.replace("<mi>log</mi>", '<mi>log</mi><mspace width="0.17em"/>')
    tag = equation["tag"]
    return f'<{tag} class="equation" title="{html.escape(tex)}">{mathml}</{tag}>'
