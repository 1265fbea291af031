"""Pages are in the navigation, and what they and the code link to exists."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")
PAGES = [
    *OUTSIDE,
    *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))),
]


def anchor(heading: str) -> str:
    """The anchor of a heading, by the rule of repositories and of this site."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")


@cache
def anchors(path: Path) -> frozenset[str]:
    """Anchors of a page; headings that are there twice have a number."""
    text = re.sub(r"^ *```.*?^ *```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE):
        name = anchor(heading)
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return frozenset(found)


def links(text: str) -> list[str]:
    """Links to other files and to headings, of a Markdown text."""
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def broken(page: Path, text: str) -> list[str]:
    """Links of a page that lead to no file or to no heading."""
    wrong = []
    for link in links(text):
        path, _, name = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        known = anchors(target) if target.is_file() and target.suffix == ".md" else {name}
        if not target.is_file() or (name and name not in known):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(page: str) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.M)
    assert broken(ROOT / page, text) == []


def test_a_wrong_link_and_a_wrong_heading_are_noticed() -> None:
    page = ROOT / "docs" / "index.md"
    assert broken(page, "[a](absent.md) [b](privacy.md#no-such-heading)") == [
        "absent.md",
        "privacy.md#no-such-heading",
    ]


def test_the_code_names_pages_that_exist() -> None:
    """Errors and comments name a page as docs/NAME.md."""
    named = {
        (path.relative_to(ROOT).as_posix(), page)
        for folder in ("fedsink", "deploy", "benchmarks", "examples", ".ci")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".yaml", ".md", ".toml", ".j2") and path.is_file()
        for page in re.findall(r"docs/[\w/-]+\.md", path.read_text())
    }
    assert len(named) > 20
    assert [entry for entry in sorted(named) if not (ROOT / entry[1]).is_file()] == []


def test_every_page_is_in_the_navigation() -> None:
    text = re.sub(r"!!python\S*", "", (ROOT / "mkdocs.yml").read_text())
    shown = set(re.findall(r"[\w/-]+\.(?:md|ipynb)", str(yaml.safe_load(text)["nav"])))
    pages = {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")}
    assert pages - shown == set()
