"""The installed command in new processes."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

FEDSINK = Path(sys.executable).with_name("fedsink")
WITH_PAGE = ("engine=local", "clients=2", "rounds=20", "seed=0", "report.pictures=1")
SMALL = (*WITH_PAGE, "report.html=false")  # the page takes a second or two


def small(*keys: str) -> list[str]:
    """Returns the keys of SMALL; `keys` replace the equal ones."""
    names = {key.partition("=")[0] for key in keys}
    return [*(key for key in SMALL if key.partition("=")[0] not in names), *keys]


# Starting Python and importing torch takes seconds: one process imports them once, and a fork of it
# answers many command lines, each in a new empty folder. Only `main` is called, as the
# installed script does.
_MANY = """
import contextlib, io, json, os, sys, traceback
from pathlib import Path
import fedsink.simulation.simulated_run, fedsink.results.pages.report_page, hydra
from fedsink.commands.cli import main

def outcome(folder, arguments):
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    out, err, code = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as exit:
            code = exit.code
        except BaseException as error:
            code = repr(error)
    left = sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*"))
    return [code, out.getvalue(), err.getvalue(), left]

def answers(environment, lines):
    os.environ.clear()
    os.environ.update(environment)
    try:
        return [outcome(*line) for line in lines]
    except BaseException:
        return traceback.format_exc()

for line in sys.stdin:
    reader, writer = os.pipe()
    if not os.fork():
        os.close(reader)
        with os.fdopen(writer, "w") as pipe:
            json.dump(answers(*json.loads(line)), pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        print(pipe.read(), flush=True)
    os.wait()
"""


@dataclass(frozen=True)
class Outcome:
    """Outcome of one command line."""

    code: int
    out: str
    err: str
    left: tuple[str, ...] = ()

    @property
    def last(self) -> str:
        """The last line of standard output."""
        return self.out.rstrip("\n").rpartition("\n")[2]


Command = Callable[..., Outcome]
Finished = tuple[Outcome, Path]
"""What a command said, and the folder of its run."""
Played = tuple[Path, list[Outcome]]
"""A folder, and what the commands said that were run there."""


@pytest.fixture(scope="session")
def fedsink() -> Command:
    """Runs the installed script once, in `cwd`."""
    return run_once


def run_once(*arguments: str, cwd: Path, stdin: str | None = None, **more: str) -> Outcome:
    """Runs the installed script in one process."""
    done = subprocess.run(
        [str(FEDSINK), *arguments],
        cwd=cwd,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        input=stdin,
        timeout=300,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@cache
def _prepared() -> subprocess.Popen[str]:
    """The process that has imported everything; it ends when its standard input does."""
    command = [sys.executable, "-c", _MANY]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    atexit.register(process.communicate)
    return process


def run_many(lines: Sequence[tuple[Path, Sequence[str]]]) -> list[Outcome]:
    """Runs many command lines in one process, each in a different folder."""
    asked = [[str(folder), list(arguments)] for folder, arguments in lines]
    process = _prepared()
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps([dict(os.environ), asked]) + "\n")
    process.stdin.flush()
    answer = json.loads(process.stdout.readline())
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return [Outcome(code, out, err, tuple(left)) for code, out, err, left in answer]


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with modules and a configuration of the user's own, under our names."""
    folder = tmp_path_factory.mktemp("foreign")
    for name in ("server.py", "strategies.py", "clients/__init__.py", "torchvision_of_mine.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text('raise RuntimeError("the user\'s own module was imported")\n')
    (folder / "conf").mkdir()
    (folder / "conf" / "config.yaml").write_text("mode: the user's own\n")
    return folder


@pytest.fixture(scope="session")
def finished(foreign: Path) -> Finished:
    """A finished central run, made by the installed script in the foreign folder."""
    outcome = run_once("simulate", "mode=central", *WITH_PAGE, cwd=foreign)
    return outcome, Path(outcome.last)


@pytest.fixture(scope="session")
def finished_ldp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished local run."""
    folder = tmp_path_factory.mktemp("ldp")
    (outcome,) = run_many([(folder, ["simulate", "mode=ldp", *SMALL])])
    if outcome.code != 0:
        raise RuntimeError(outcome.err)
    return Path(outcome.last)
