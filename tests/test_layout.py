"""The shape of the repository: links, boundaries, and dependencies of imports."""

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


def test_the_packages_behind_the_links_import_under_their_own_names() -> None:
    names = ", ".join(f"fedsink.{name}" for name in LINKS)
    done = subprocess.run(
        [sys.executable, "-c", f"import {names}"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


_BLOCKED = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"flwr", "ray", "hydra", "omegaconf"}:
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Refuse())
try:
    import flwr
except ImportError:
    pass
else:
    sys.exit("the test does not block what it should")
"""

_ALONE = {
    "transport": """
import torch
from fedsink.transport import Mixed, ConvergedSolver, transport_gradient
x = torch.tensor([[0.0], [1.0]])
found = transport_gradient(x, x + 0.25, Mixed(0.0), 1e-3, solver=ConvergedSolver())
assert abs(float(found.value) - 0.0625) < 1e-2, found.value
""",
    "privacy": """
import torch
from fedsink.privacy import ClassSchedule, PrivacyPlan, ReproducibleKey
from fedsink.privacy.clips import RecordClip
plan = PrivacyPlan.solve(
    rate=0.2, clip=RecordClip(3.0), schedule=ClassSchedule(10), delta=1e-5, eps=10.0, rounds=20
)
assert 9.9 < plan.epsilon() <= 10
stream = ReproducibleKey(1).stream("noise", client=0, round=1)
assert plan.release(torch.zeros(4), stream).shape == (4,)
""",
    "models": """
import torch
from fedsink.models import build, sample
from fedsink.privacy import Stream
generator = build("mlp", (1, 8, 8), 10, generator=torch.Generator().manual_seed(0))
labels = torch.arange(10)
images = sample(generator, 10, labels, Stream(b"k", "picture"), mix=torch.full((10,), 0.1))
assert images.shape == (10, 1, 8, 8) and bool(((images >= 0) & (images <= 1)).all())
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("package", _ALONE)
def test_transport_privacy_and_models_work_without_flower_ray_and_hydra(
    package: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BLOCKED + _ALONE[package]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def _imports(path: Path) -> set[str]:
    """Every module that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.medium
@pytest.mark.parametrize(
    ("packages", "forbidden"),
    [
        (("transport", "privacy", "models"), ("flwr", "ray", "hydra", "omegaconf")),
        (
            ("clients",),
            ("fedsink.server", "fedsink.strategies", "fedsink.simulation", "fedsink.deployment",
             "fedsink.audit"),
        ),
        (
            ("server", "strategies", "deployment"),
            ("fedsink.clients", "fedsink.data.sources", "fedsink.simulation", "fedsink.audit"),
        ),
    ],
)  # fmt: skip
def test_no_file_imports_across_a_boundary(
    packages: tuple[str, ...], forbidden: tuple[str, ...]
) -> None:
    package = Path(str(fedsink.__file__)).parent
    files = [path for name in packages for path in (package / name).rglob("*.py")]
    assert len(files) > len(packages)
    crossing = {
        (str(path.relative_to(package)), name)
        for path in files
        for name in _imports(path)
        if any(name == bad or name.startswith(f"{bad}.") for bad in forbidden)
    }
    assert crossing == set()


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
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, fedsink.cli, fedsink.simulation.simulated_run, fedsink.transport\n"
            "sys.exit('pykeops' in sys.modules)",
        ],
        capture_output=True,
    )
    assert done.returncode == 0


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
    assert installed_by_name("`pip -q install torch 'fedsink-node[secure]>=0.1'`") != []
    assert installed_by_name('pip install "./deploy/node[secure]" dist/fedsink-1-py3.whl .') == []
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
