"""The repository's other pages in the site, and links that lead to the right place in both.

A page links to a file where it lies in the repository (`../CONTRIBUTING.md`). The site holds some
of these files under other names, so the links are rewritten in the build. A link to a file that the
site does not hold stays as it is, and the strict build fails on it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "README.md": "index.md",
    "benchmarks/README.md": "benchmarks.md",
    "examples/flower-digits/README.md": "flower-digits.md",
    "examples/guarded-fedavg/README.md": "guarded-fedavg.md",
    "examples/plugin/README.md": "plugin.md",
}
"""Files outside docs/ by their names in the site; the site has a first page of its own."""

MADE = {
    "fedsink/__init__.pyi": "reference/python.md",
    "fedsink/clients/answers/registry.py": "reference/messages.md",
    "fedsink/commands/__init__.py": "reference/commands.md",
    "fedsink/conf/config.yaml": "reference/keys.md",
    "fedsink/protocol/failure_codes.py": "reference/codes.md",
}
"""Code by the page of the site that is made from it."""

_LINK = re.compile(r"(?<=\]\()(?P<path>[^)\s#:]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages from outside docs/."""
    from mkdocs.structure.files import File  # the tests read this module, and have no MkDocs

    for source, name in PAGES.items():
        if name != "index.md":
            files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Rewrites the page's links, (path in the repository) → (path in the site)."""
    if page.file.abs_src_path is None:
        return markdown
    place = Path(page.file.abs_src_path).relative_to(ROOT).as_posix()
    return _LINK.sub(lambda link: _in_site(link["path"], place, page.file.src_uri), markdown)


def _in_site(path: str, place: str, page: str) -> str:
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(place), path))
    name = {**PAGES, **MADE}.get(wanted) or wanted.removeprefix("docs/")
    if name == wanted:
        return path
    return posixpath.relpath(name, posixpath.dirname(page) or ".")
