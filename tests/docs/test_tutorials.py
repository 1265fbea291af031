"""The notebooks of docs/tutorials run, and store only outputs that a reader may see."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ..support.scripts import script

if TYPE_CHECKING:
    import nbformat

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))


def read(path: Path) -> nbformat.NotebookNode:
    import nbformat  # takes seconds, which every test run would spend

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


@pytest.mark.medium
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_with_its_outputs(path: Path) -> None:
    assert path.stat().st_size < 400_000
    notebook = read(path)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    shown = outputs(notebook)
    assert {output.output_type for output in shown} <= {"stream", "display_data", "execute_result"}
    said = [output.text for output in shown if output.get("name") == "stderr"]
    assert all(line.startswith("ε = ") for text in said for line in text.splitlines())
    # No path of the machine that it was run on.
    text = re.sub(r'"data:image/png;base64,[^"]*"|"image/png": "[^"]*"', "", path.read_text())
    assert not re.search(r"(?<![\w.\-])/(home|root|tmp|work|Users|usr|var)/", text)
    # The bar, once and at its end.
    bars = [o for o in shown if "<progress" in str(o.get("data", {}).get("text/html", ""))]
    assert bars
    assert all(re.search(r'value="(\d+)" max="\1"', o.data["text/html"]) for o in bars)


@pytest.mark.medium
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_links_of_a_notebook_lead_somewhere(path: Path) -> None:
    notebook = read(path)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert links
    assert all((TUTORIALS / link).is_file() for link in links)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    again = script(TUTORIALS / "execute.py").executed(path, str(tmp_path))
    kinds = [[o.output_type for o in outputs(n)] for n in (again, read(path))]
    assert kinds[0] == kinds[1]
    assert list((tmp_path / "runs").rglob("metrics.json"))
