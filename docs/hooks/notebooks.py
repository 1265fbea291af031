"""Notebooks as pages."""

from __future__ import annotations

from pathlib import Path

from cells import markdown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page


class Notebook(File):
    """A file .ipynb that is a page, so that links to it and the navigation find it."""

    def is_documentation_page(self) -> bool:
        """True: the file becomes a page."""
        return True


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Makes pages of the notebooks."""
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
