"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import fedsink

PACKAGE = Path(fedsink.__file__).parent


def module(path: Path) -> str:
    parts = ("fedsink", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


TEXTS = {module(path): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
MODULES = [name for name, text in TEXTS.items() if ">>> " in text]
SHOWN = {
    "fedsink": "it trains a generator",
    "fedsink.server.folder": "it reads a run that somebody has made",
}
"""Modules of which examples are marked `# doctest: +SKIP`, and why."""


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_hold(name: str) -> None:
    assert ("doctest: +SKIP" in TEXTS[name]) == (name in SHOWN)
    found = doctest.testmod(import_module(name))
    assert found.failed == 0
    assert found.attempted > 0 or name in SHOWN
