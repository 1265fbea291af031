"""The shape of the repository; import contracts are in pyproject.toml (`make check`)."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedsink

ROOT = Path(__file__).resolve().parent.parent
LINKS = ("clients", "conf", "server", "strategies")


@pytest.mark.parametrize("name", LINKS)
def test_a_root_link_is_relative_and_leads_into_the_package(name: str) -> None:
    link = ROOT / name
    assert link.is_symlink()
    assert os.readlink(link) == f"fedsink/{name}"
    assert (link / "__init__.py").is_file()


@pytest.mark.parametrize("name", LINKS)
def test_git_holds_a_root_link_as_a_link(name: str) -> None:
    git = subprocess.run(
        ["git", "ls-files", "--stage", name], cwd=ROOT, capture_output=True, text=True
    )
    if git.returncode != 0:
        pytest.skip("this is not a git checkout")
    assert git.stdout.startswith("120000 "), "committed as something else than a symbolic link"


def test_the_top_level_shows_what_the_architecture_promises() -> None:
    promised = ("fedsink", *LINKS, "tests", "pyproject.toml", "README.md")
    assert [name for name in promised if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("name", LINKS)
def test_importing_a_link_is_refused_and_says_what_to_import(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert f"ImportError: The link {name}/ at the repository's root" in done.stderr
    assert f"import fedsink.{name} instead" in done.stderr


@pytest.mark.medium
def test_flowers_internals_are_touched_in_one_file_only() -> None:
    package = Path(str(fedsink.__file__)).parent
    public = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}
    private = ("_runtime_client", '"_message_id"', "TaskIdentity", ".object_id")
    touching = set()
    for path in package.rglob("*.py"):
        tree = ast.parse(path.read_text())
        modules = {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        modules |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        internal = {m for m in modules - public if m.partition(".")[0] == "flwr"}
        if internal or any(word in path.read_text() for word in private):
            touching.add(str(path.relative_to(package)))
    assert touching == {"flower_internals.py"}


@pytest.mark.slow
def test_pykeops_is_imported_nowhere_but_where_it_is_used() -> None:
    script = (
        "import sys, fedsink.commands.cli, fedsink.simulation.simulated_run, fedsink.transport\n"
        "sys.exit('pykeops' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0


def test_the_package_is_typed() -> None:
    assert (Path(str(fedsink.__file__)).parent / "py.typed").is_file()


_INSTALL = re.compile(r"\b(?:pip3?|uv|pipx)\b[^\n]*?\binstall\b([^\n`]*)")
_NAME = re.compile(r"fedsink(-[a-z]+)*(\[[^]]*\])?([<>=~!].*)?")


def installed_by_name(text: str) -> list[str]:
    """Names of fedsink or a sister distribution that commands in a text take from an index."""
    words = [
        word.strip("\"'`(),.:;|&") for found in _INSTALL.findall(text) for word in found.split()
    ]
    return [word for word in words if _NAME.fullmatch(word)]


def required_by_name(text: str) -> list[str]:
    """The same of a pyproject.toml; extras of the project itself are its own."""
    project = tomllib.loads(text).get("project", {})
    needs = [*project.get("dependencies", [])]
    for extra in project.get("optional-dependencies", {}).values():
        needs += [need for need in extra if not need.startswith(f"{project['name']}[")]
    return [need for need in needs if _NAME.fullmatch(need.replace(" ", ""))]


def test_no_file_installs_fedsink_by_name_from_an_index() -> None:
    """Nobody of us owns the name there: whoever registers it runs code on a reader's machine."""
    assert installed_by_name("pip install fedsink") == ["fedsink"]
    assert installed_by_name("`pip -q install torch 'fedsink-core[node]>=0.1'`") != []
    assert installed_by_name('pip install "./packages/core[node]" dist/fedsink-1-py3.whl .') == []
    assert required_by_name('[project]\nname = "x"\ndependencies = ["fedsink >= 0.1"]') != []
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("this is not a git checkout")
    found = {}
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path == Path(__file__) or path.is_symlink() or not path.is_file():
            continue
        text = path.read_text(errors="ignore")
        found[name] = installed_by_name(text)
        if path.name == "pyproject.toml":
            # The wheel of papers says that it needs fedsink; whoever installs it has that already.
            allowed = ["fedsink"] if name == "packages/papers/pyproject.toml" else []
            found[name] += [need for need in required_by_name(text) if need not in allowed]
    assert {name: names for name, names in found.items() if names} == {}
