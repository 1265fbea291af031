"""Commands in the documentation work: every block of them is run, or its source says why not.

A comment on the line before a block says how: `<!-- slow -->` runs it among the slow tests,
`<!-- not run: REASON -->` leaves it out. A page's blocks run one after the other in one shell, in a
folder that is not the repository, as a reader would who follows the page.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/*/README.md"),
        ROOT / "benchmarks" / "README.md",
    )
)
_BLOCK = re.compile(
    r"(?:^ *<!-- (?P<note>[^\n]*) -->\n)?^(?P<margin> *)```(?P<language>\w*)[^\n]*\n"
    r"(?P<text>.*?)^(?P=margin)```$",
    re.M | re.S,
)
_COMMAND = re.compile(r"^ *(\$ )?(fedsink|make|pip|python3?|docker|flwr|flower-\w+|ray) ", re.M)


@dataclass(frozen=True)
class Block:
    """A fenced block; `note` is the comment before it, or empty."""

    language: str
    text: str
    note: str

    @property
    def kind(self) -> str:
        """quick, slow, or "left out" with a reason."""
        if self.note == "slow":
            return "slow"
        return "left out" if re.fullmatch(r"not run: .{10,}", self.note) else "quick"

    @property
    def script(self) -> str:
        if self.language == "python":
            return f"python - <<'END_OF_PYTHON'\n{self.text}\nEND_OF_PYTHON\n"
        return self.text


def blocks(page: str) -> list[Block]:
    """Blocks of a page that a shell or Python can run."""
    return [
        Block(found["language"], textwrap.dedent(found["text"]), found["note"] or "")
        for found in _BLOCK.finditer((ROOT / page).read_text())
        if found["language"] in ("bash", "python")
    ]


def run(page: str, kinds: tuple[str, ...], folder: Path, timeout: float) -> None:
    script = "\n".join(block.script for block in blocks(page) if block.kind in kinds)
    if "openssl" in script and not shutil.which("openssl"):
        pytest.skip("the page makes certificates with openssl, which is not installed")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=folder, env={**os.environ, "PATH": path, "COLUMNS": "100"},
        capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0, f"{page}: {done.stderr[-2000:]}{done.stdout[-1000:]}"


def _having(kind: str) -> list[str]:
    return [page for page in PAGES if any(block.kind == kind for block in blocks(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", _having("quick"))
def test_quick_commands_work(page: str, tmp_path: Path) -> None:
    run(page, ("quick",), tmp_path, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("page", _having("slow"))
def test_slow_commands_work(page: str, tmp_path: Path) -> None:
    run(page, ("quick", "slow"), tmp_path, timeout=540)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_or_says_why_not(page: str) -> None:
    notes = [block.note for block in blocks(page) if block.kind == "quick"]
    assert notes == [""] * len(notes), "a note is `slow` or `not run:` with a reason"


@pytest.mark.parametrize("page", PAGES)
def test_no_command_hides_in_another_kind_of_block(page: str) -> None:
    text = (ROOT / page).read_text()
    others = [found["text"] for found in _BLOCK.finditer(text) if found["language"] != "bash"]
    indented = re.findall(r"(?:^\n|\A)((?: {4}[^\n]+\n)+)", _BLOCK.sub("", text), re.M)
    assert [part for part in (*others, *indented) if _COMMAND.search(part)] == []


def test_there_are_commands_of_each_kind() -> None:
    kinds = [block.kind for page in PAGES for block in blocks(page)]
    assert min(kinds.count(kind) for kind in ("quick", "slow", "left out")) >= 3


@pytest.mark.parametrize("page", PAGES)
def test_no_page_installs_fedsink_from_an_index(page: str) -> None:
    """Extras of a fedsink that is there already, `fedsink[NAME]`, need no index that has it."""
    text = (ROOT / page).read_text()
    assert re.findall(r"pip install [\"'`]?fedsink(?!\[|\S*\.whl)", text) == []
