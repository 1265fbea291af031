"""Planted defects, each of which the tests must find.

`mutants.toml` lists those of privacy and `others.toml` the others: a replacement in one file, and
the tests that must fail under it.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGES = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("packages/*/src"))
SOURCES = (
    "fedsink",
    "tests",
    "examples",
    "deploy",
    "pyproject.toml",
    *(["packages"] if PACKAGES else []),
)

Mutant = dict[str, Any]
MUTANTS: list[Mutant] = [
    mutant
    for name in ("mutants", "others")
    for mutant in tomllib.loads((HERE / f"{name}.toml").read_text())["mutant"]
]
NAMED = sorted({test for mutant in MUTANTS for test in mutant["tests"]})
FILES = sorted({test.partition("::")[0] for test in NAMED})

each_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["name"])


class Workshop:
    """A copy of the repository's sources, and a process that runs tests of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__")
        for name in SOURCES:
            if (ROOT / name).is_dir():
                shutil.copytree(
                    ROOT / name, folder / name, ignore=ignored, copy_function=shutil.copyfile
                )
            else:
                shutil.copyfile(ROOT / name, folder / name)
        outer = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST")}
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        paths = [folder, *(folder / package for package in PACKAGES)]
        flower = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        self._process = subprocess.Popen(
            [sys.executable, HERE / "workshop.py", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**outer, **threads, **flower, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        )

    def run(self, tests: list[str], slow: bool = False) -> dict[str, Any]:
        """Runs these tests on the unchanged copy, all of them or the quick ones."""
        assert self._process.stdin
        assert self._process.stdout
        markers = ["-m", "not gpu"] if slow else []
        self._process.stdin.write(json.dumps([*markers, *tests]) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert answer["origin"] in (None, str(self.folder / "fedsink" / "__init__.py"))
        return answer

    def output(self) -> str:
        """Output of pytest in the last run."""
        return (self.folder / "output.txt").read_text(errors="replace")

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """The copy with one defect."""
        path = self.folder / mutant["file"]
        sound = path.read_text()
        path.write_text(mutated(mutant, sound))
        try:
            yield
        finally:
            path.write_text(sound)

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(60)


def mutated(mutant: Mutant, source: str) -> str:
    return source.replace(mutant["old"], mutant["new"])


def of_test(test: str, outcomes: list[str]) -> list[str]:
    """The outcomes that belong to a test, with any parameters, or to a file of tests."""
    return [one for one in outcomes if one == test or one.startswith((f"{test}[", f"{test}::"))]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path_factory.mktemp("workshop"))
    yield workshop
    workshop.close()


def test_there_are_many_mutants_with_names_of_their_own() -> None:
    assert len({mutant["name"] for mutant in MUTANTS}) == len(MUTANTS) >= 836
    assert {key for mutant in MUTANTS for key in mutant} == {"name", "file", "old", "new", "tests"}


@each_mutant
def test_a_mutant_is_one_replacement_that_changes_what_runs(mutant: Mutant) -> None:
    source, sound = read(mutant["file"])
    assert source.count(mutant["old"]) == 1
    assert ast.dump(ast.parse(mutated(mutant, source))) != sound
    assert mutant["tests"]


@cache
def read(file: str) -> tuple[str, str]:
    """A file's text, and its syntax tree."""
    source = (ROOT / file).read_text()
    return source, ast.dump(ast.parse(source))


def test_the_named_tests_exist() -> None:
    trees = {file: ast.parse((ROOT / file).read_text()) for file in FILES}
    existing = set(FILES) | {
        f"{file}::{node.name}"
        for file, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }
    assert [test for test in NAMED if test.partition("[")[0] not in existing] == []


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_the_named_tests_pass_on_the_sources_as_they_are(workshop: Workshop, file: str) -> None:
    named = [test for test in NAMED if test.partition("::")[0] == file]
    found = workshop.run(named)
    assert found["code"] in (0, 5), workshop.output()  # 5: all of them are slow
    wholly_slow = [test for test in named if not of_test(test, found["passed"])]
    if wholly_slow:
        found = workshop.run(wholly_slow, slow=True)
        assert found["code"] == 0, workshop.output()
        assert [test for test in wholly_slow if not of_test(test, found["passed"])] == []


@pytest.mark.slow
def test_what_cannot_be_imported_is_not_taken_for_a_find(workshop: Workshop) -> None:
    """A mutant therefore dies only of a failed test."""
    mutant = MUTANTS[0]
    with workshop.planted({**mutant, "new": f"import no_such_module\n{mutant['old']}"}):
        assert workshop.run(mutant["tests"], slow=True)["code"] not in (0, 1)


@pytest.mark.slow
@each_mutant
def test_a_planted_defect_is_found(workshop: Workshop, mutant: Mutant) -> None:
    """Each of its tests finds it; a test whose quick cases pass, or that has none, runs whole."""
    with workshop.planted(mutant):
        found = workshop.run(mutant["tests"])
        survived = [test for test in mutant["tests"] if not of_test(test, found["failed"])]
        if survived:
            found = workshop.run(survived, slow=True)
            survived = [test for test in survived if not of_test(test, found["failed"])]
    assert found["code"] == 1, f"{mutant['name']}: it survived.\n{workshop.output()}"
    assert survived == [], f"{mutant['name']}: these tests did not notice it"
