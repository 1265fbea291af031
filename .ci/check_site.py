"""Checks the site that `mkdocs build` has made: complete, and readable without a network.

Usage: check_site.py SITE
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

_LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
_PAGES = (
    "index.html", "mathematics.html", "privacy.html", "security.html", "contributing.html",
    "install.html", "central-or-local.html", "guide.html", "policy.html", "notebook/central.html",
    "tutorials/central.html", "tutorials/local.html",
    "tutorials/deployment.html", "tutorials/own-pictures.html", "python.html",
    "reference/keys.html", "reference/codes.html", "reference/commands.html",
    "reference/python/transport.html",
)  # fmt: skip


class _Loads(HTMLParser):
    """Collects the addresses that a browser fetches to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.equations = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.equations += tag == "math"
        if tag == "link" and values.get("rel") not in ("stylesheet", "icon", "preload"):
            return
        self.addresses.append(values.get(_LOADED.get(tag, ""), "") or "")


def main() -> int:
    """Prints a line for each defect. Returns 1 if there is any."""
    site = Path(sys.argv[1])
    defects = list(_defects(site))
    for defect in defects:
        print(f"check_site: {defect}", file=sys.stderr)
    if not defects:
        print(f"site: {sum(1 for _ in site.rglob('*.html'))} pages, nothing from elsewhere")
    return 1 if defects else 0


def _defects(site: Path) -> Iterator[str]:
    for name in _PAGES:
        if not (site / name).is_file():
            yield f"{name} is missing."
    for path in sorted(site.rglob("*.html")):
        name, text = path.relative_to(site), path.read_text()
        page = _Loads()
        page.feed(text)
        for address in page.addresses:
            if re.match(r"(https?:)?//", address):
                yield f"{name} loads {address} from elsewhere."
        if 'class="arithmatex"' in text or re.search(r"\$\\[a-z]", text):
            yield f"{name} has an equation that is no MathML."
        if name.as_posix() == "mathematics.html" and page.equations < 30:
            yield f"{name} has {page.equations} equations only."
    for path in site.rglob("*.css"):
        if re.search(r"(url\(|@import )[\"']?(https?:)?//", path.read_text()):
            yield f"{path.relative_to(site)} loads something from elsewhere."
    if (site / "hooks").exists():
        yield "hooks/ is part of the site."


if __name__ == "__main__":
    sys.exit(main())
