"""Notebooks as pages: their text, code and stored outputs, nothing is executed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page


class Notebook(File):
    """A file .ipynb that is a page, so that links to it and the navigation find it."""

    def is_documentation_page(self) -> bool:
        """Whether it becomes a page: it does."""
        return True


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make pages of the notebooks."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(file)
        files.append(
            Notebook(file.src_uri, config.docs_dir, config.site_dir, config.use_directory_urls)
        )
    return files


def on_page_read_source(page: Page, **_: object) -> str | None:
    """The page's Markdown, where it is a notebook."""
    if not page.file.src_uri.endswith(".ipynb"):
        return None
    return markdown(Path(str(page.file.abs_src_path)))


def markdown(path: Path) -> str:
    """A notebook as Markdown."""
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(part for cell in cells for part in _cell(cell)) + "\n"


def _cell(cell: Any) -> Iterator[str]:
    if cell.cell_type == "markdown":
        yield cell.source
    elif cell.cell_type == "code" and cell.source.strip():
        yield f"```python\n{cell.source}\n```"
        for output in cell.outputs:
            yield from _output(output)


def _output(output: Any) -> Iterator[str]:
    """What a browser shows best of an output: a picture, a table, or text."""
    if output.output_type == "error":
        raise ValueError(f"a notebook stores an error: {output.ename}: {output.evalue}.")
    data = {"text/plain": output.text} if output.output_type == "stream" else output.data
    if "image/png" in data:
        picture = "".join(data["image/png"].split())
        alternative = " ".join(data.get("text/plain", "output").split()).strip("<>")
        yield f'<img alt="{alternative}" src="data:image/png;base64,{picture}">'
    elif "text/html" in data:
        yield f'<div class="output" markdown="0">\n{data["text/html"]}\n</div>'
    elif data.get("text/plain", "").strip():
        yield f"```text {{ .output }}\n{data['text/plain'].rstrip()}\n```"
