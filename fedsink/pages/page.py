"""Filling in the templates of pages: one file that runs nothing and loads nothing."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedsink import __version__


def render(template: str, **values: object) -> bytes:
    """A page, from a template of this package that extends base.html.j2.

    Guarantees:
        - Every value is escaped, whatever it holds; only the style sheet is not.
        - The page's Content-Security-Policy forbids scripts and everything from elsewhere.

    Args:
        template: its file's name.
        values: for the template, strings and objects of them.
    """
    style = _style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = (
        _environment()
        .get_template(template)
        .render(
            values,
            style=Markup(style),
            policy=f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'",
            version=__version__,
        )
    )
    return page.encode()


def data_uri(content: bytes, kind: str) -> str:
    """A picture as an address that holds it, for instance of kind "image/png"."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


@cache
def _style() -> str:
    return files(__package__).joinpath("page.css").read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("fedsink", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
