"""`.ci/check_claims.py`, which holds documents against records and papers."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from .support.scripts import script

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def check() -> Iterator[ModuleType]:
    """The script, which imports those of benchmarks/ by their bare names."""
    path, modules = list(sys.path), set(sys.modules)
    yield script(ROOT / ".ci" / "check_claims.py")
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("result_"):
            del sys.modules[name]


@pytest.mark.slow  # `make check` runs the script itself
def test_documents_say_what_records_and_papers_do(check: ModuleType) -> None:
    assert list(check.differences(ROOT)) == []


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        (
            "docs/results/central.md",
            "| 72.6 ± 1.9 |",
            "| 72.7 ± 1.9 |",
            "central.md lacks the line",
        ),
        ("docs/results/headline.md", "(Dockhorn 1, DPDM", "(Dockhorn 2, DPDM", "headline.md lacks"),
        ("docs/results/local.md", "# Local mode", "", "local.md lacks the line"),
        (
            "docs/results/celeba.md",
            "not run",
            "not run\n",
            "celeba.md is not what its records make",
        ),
        ("docs/results.md", "4.0 less", "2.7 less", "4.0 less"),
        ("docs/results.md", "publishes 98.1", "publishes 98.0", "publishes 98.1"),
        ("docs/gs_wgan.md", "publish 79 / 79", "publish 79 / 78", "publish 79 / 79 / 80"),
        ("README.md", "94.9 %", "95.1 %", "README.md states 95.1 %"),
        ("README.md", "97.8 %", "87.7 %", "README.md does not say"),
        ("benchmarks/measured.jsonl", '"mlp": 0.9393', '"mlp": 0.9493', "results/central.md"),
        (
            "benchmarks/rows.yaml",
            "published: [chen_mnist]",
            "overrides: [eps=9]",
            "results/gs_wgan",
        ),
    ],
)
def test_a_changed_digit_is_noticed(
    check: ModuleType, tmp_path: Path, name: str, old: str, new: str, told: str
) -> None:
    pages = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/results").iterdir()]
    for kept in (*check.CLAIMS, *pages, "benchmarks/measured.jsonl", "benchmarks/rows.yaml"):
        (tmp_path / kept).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / kept, tmp_path / kept)
    text = (tmp_path / name).read_text()
    assert old in text
    (tmp_path / name).write_text(text.replace(old, new, 1))
    found = list(check.differences(tmp_path))
    assert any(told in difference for difference in found), found
