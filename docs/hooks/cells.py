"""A notebook's text, code and stored outputs as Markdown; nothing is executed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def markdown(path: Path) -> str:
    """The notebook in a file.

    Raises:
        ValueError: a cell stores an error, or code that was never executed.
    """
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join(part for cell in cells for part in _cell(cell, path.name)) + "\n"


def _cell(cell: dict[str, Any], name: str) -> Iterator[str]:
    source = "".join(cell["source"]).strip()
    if cell["cell_type"] == "markdown":
        yield source
    elif cell["cell_type"] == "code" and source:
        if cell["execution_count"] is None:
            raise ValueError(f"{name} has code that was not executed: {source.splitlines()[0]}")
        yield f"```python\n{source}\n```"
        for output in cell["outputs"]:
            yield from _output(output, name)


def _output(output: dict[str, Any], name: str) -> Iterator[str]:
    """Yields the form of an output that a browser shows best: a picture, a table, or text."""
    if output["output_type"] == "error":
        raise ValueError(f"{name} stores an error: {output['ename']}: {output['evalue']}.")
    data = {"text/plain": output["text"]} if "text" in output else output["data"]
    text = "".join(data.get("text/plain", ""))
    if "image/png" in data:
        picture = "".join("".join(data["image/png"]).split())
        described = " ".join(text.split()).strip("<>") or "output of the cell above"
        yield f'<img alt="{described}" src="data:image/png;base64,{picture}">'
    elif "text/html" in data:
        lines = (line for line in "".join(data["text/html"]).splitlines() if line.strip())
        yield "\n".join(['<div class="output">', *lines, "</div>"])
    elif text.strip():
        yield f"```text\n{text.rstrip()}\n```"
