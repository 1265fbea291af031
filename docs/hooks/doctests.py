"""Examples in docstrings, which begin with `>>>`, shown as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*", re.M)


class Doctests(griffe.Extension):
    """Fences every example of a docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrites the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(example: re.Match[str]) -> str:
    margin = example[1]
    return f"{margin}```pycon\n{example[0]}\n{margin}```"
