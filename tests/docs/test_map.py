"""docs/architecture.md and CONTRIBUTING.md name paths and definitions that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/architecture.md", "CONTRIBUTING.md")
OF_OTHERS = {"dp_accounting", "SOURCE_DATE_EPOCH", "NO_SCENE"}
"""Names of other projects' things, and of the tests'."""
MADE = {"dist", "site"}
"""Folders that commands make."""


def quoted(page: str) -> list[str]:
    """Texts between backticks, outside blocks."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    return sorted({name.strip() for name in re.findall(r"`([^`\n]+)`", text)})


def paths(name: str) -> list[str]:
    """The paths that a name in the pages stands for: `a/{b,c}.py` is two."""
    if (braces := re.search(r"\{([^}]*)\}", name)) is None:
        return [name]
    start, end = name[: braces.start()], name[braces.end() :]
    return [path for part in braces[1].split(",") for path in paths(f"{start}{part}{end}")]


def is_path(name: str) -> bool:
    return bool(re.fullmatch(r"[\w./{},*-]+", name)) and ("/" in name or name.endswith(".py"))


def exists(path: str) -> bool:
    pattern = re.sub(r"[A-Z]{4,}", "*", path.rstrip("/"))  # NAME, DATA, MODE …
    return pattern in MADE or any(
        any(base.glob(pattern))
        for base in (ROOT, ROOT / "fedsink", ROOT / "tests", ROOT / "tests" / "support")
    )


@cache
def definitions() -> frozenset[str]:
    """Every name that the package defines: modules, classes, functions, fields, constants."""
    found = set()
    for path in (ROOT / "fedsink").rglob("*.py"):
        found |= {path.stem, *path.relative_to(ROOT).parts}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES)
def test_every_path_exists(page: str) -> None:
    named = [path for name in quoted(page) if is_path(name) for path in paths(name)]
    assert len(named) > 20
    assert [path for path in named if not exists(path)] == []


@pytest.mark.medium
@pytest.mark.parametrize("page", PAGES)
def test_every_name_is_defined(page: str) -> None:
    """Names in CamelCase or with a dot or an underscore; one with a dot by each of its parts."""
    named = [
        name.removesuffix("()")
        for name in quoted(page)
        if re.fullmatch(r"_?[A-Za-z]\w*(\.\w+)*(\(\))?", name) and name not in OF_OTHERS
    ]
    spoken = [name for name in named if re.search(r"[a-z][A-Z]|_|\.", name)]
    assert len(spoken) > 5
    said = (ROOT / "pyproject.toml").read_text()
    said += "".join(path.read_text() for path in (ROOT / "fedsink").rglob("*.py"))
    keys = "\n".join(path.read_text() for path in (ROOT / "fedsink/conf").rglob("*.yaml"))
    lacking = [
        name
        for name in spoken
        if not exists(name)
        and not exists(f"{name}.py")
        and not all(part in definitions() for part in name.split("."))
        and not re.search(rf"\b{re.escape(name)}\b", said)
        and not all(re.search(rf"\b{re.escape(part)}:", keys) for part in name.split("."))
    ]
    assert lacking == []
