"""Notebooks become pages: text, code, and the best form of each output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Hook = Callable[[str], ModuleType]


def code(source: str, *outputs: dict[str, Any], count: int | None = 1) -> dict[str, Any]:
    return {
        "cell_type": "code", "source": [source], "execution_count": count, "outputs": list(outputs)
    }  # fmt: skip


def page(hook: Hook, folder: Path, *cells: dict[str, Any]) -> str:
    path = folder / "lesson.ipynb"
    path.write_text(json.dumps({"cells": cells, "nbformat": 4}))
    return str(hook("cells").markdown(path))


def test_text_code_and_outputs_follow_one_another(hook: Hook, tmp_path: Path) -> None:
    stream = {"output_type": "stream", "name": "stdout", "text": ["ε = 10\n"]}
    table = {
        "output_type": "execute_result",
        "data": {"text/html": ["<table>\n\n<tr><td>1</td></tr></table>"], "text/plain": "1"},
    }
    picture = {
        "output_type": "display_data",
        "data": {"image/png": "aGVs\nbG8=", "text/plain": "<Figure>"},
    }
    text = {"cell_type": "markdown", "source": ["# A lesson\n", "in two lines"]}
    assert page(hook, tmp_path, text, code("run()", stream, table, picture)) == (
        "# A lesson\nin two lines\n\n```python\nrun()\n```\n\n```text\nε = 10\n```\n\n"
        '<div class="output">\n<table>\n<tr><td>1</td></tr></table>\n</div>\n\n'
        '<img alt="Figure" src="data:image/png;base64,aGVsbG8=">\n'
    )


def test_a_notebook_that_stores_an_error_is_no_page(hook: Hook, tmp_path: Path) -> None:
    error = {"output_type": "error", "ename": "KeyError", "evalue": "'eps'", "traceback": []}
    with pytest.raises(ValueError, match=r"lesson\.ipynb stores an error: KeyError: 'eps'"):
        page(hook, tmp_path, code("run()", error))


def test_a_notebook_that_was_not_executed_is_no_page(hook: Hook, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"not executed: run\(\)"):
        page(hook, tmp_path, code("run()", count=None))
