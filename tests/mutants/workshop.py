"""Runs tests of a copy of the repository, over and over, each time in a fresh fork.

The libraries are imported once, before the first fork, and fedsink never: every fork imports what
the copy holds at that moment. `python workshop.py COPY` reads a JSON list of pytest's arguments a
line and answers each with a line.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

LIBRARIES = (
    "torch", "flwr.clientapp", "flwr.common.serde", "hydra", "scipy.stats",
    "dp_accounting.pld.privacy_loss_distribution", "opacus.accountants", "opendp.prelude",
)  # fmt: skip
OPTIONS = (
    "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-profile", "unshrunk",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",  # of plugins imported before pytest began
)  # fmt: skip
PATIENCE = 300  # seconds; a slower test has neither passed nor failed


class Outcomes:
    """A pytest plugin that keeps which tests ran, apart from their fixtures, and how that ended."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not report.skipped:
            (self.failed if report.failed else self.passed).append(report.nodeid)


def run(arguments: list[str], output: Path, answer: Connection) -> None:
    """Sends pytest's exit code, the outcomes and the place of the imported fedsink."""
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    outcomes = Outcomes()
    code = pytest.main([*OPTIONS, *arguments], [outcomes])
    origin = getattr(sys.modules.get("fedsink"), "__file__", None)
    answer.send({"code": int(code), "origin": origin, **vars(outcomes)})


def in_a_fork(arguments: list[str], output: Path) -> dict[str, Any]:
    """Returns what `run` sends, or a code of None where nothing comes in time."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=run, args=(arguments, output, sender))
    process.start()
    sender.close()
    try:
        if receiver.poll(PATIENCE):
            return dict(receiver.recv())
    except EOFError:
        pass
    finally:
        process.kill()
        process.join()
    return {"code": None, "origin": None, "passed": [], "failed": []}


def main() -> None:
    os.chdir(sys.argv[1])
    sys.dont_write_bytecode = True  # a cached module could outlive its mutant
    for name in LIBRARIES:
        importlib.import_module(name)
    # One failure is enough: no time is spent on finding its least example.
    phases = [Phase.explicit, Phase.generate]
    settings.register_profile("unshrunk", derandomize=True, deadline=None, phases=phases)
    for line in sys.stdin:
        print(json.dumps(in_a_fork(json.loads(line), Path("output.txt"))), flush=True)


if __name__ == "__main__":
    main()
