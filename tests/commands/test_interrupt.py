"""Ctrl-C and kill -9 in the middle of a run, from outside, on the installed script."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from .conftest import FEDSINK, Command, run_many

_CONFIG = ("clients=4", "rounds=60", "seed=0", "report.checkpoint_seconds=0", "report.pictures=0")


def _signalled(arguments: list[str], cwd: Path, number: int, after: int) -> tuple[int, str]:
    """Exit code and standard error of a run that got a signal after that many rounds.

    The whole process group gets it, as from a terminal: Ray's processes too.
    """
    process = subprocess.Popen(
        [str(FEDSINK), "simulate", *arguments],
        cwd=cwd,
        env=dict(os.environ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    if process.stderr is None:
        raise RuntimeError("no standard error to read from")
    lines = []
    for line in process.stderr:
        lines.append(line)
        found = re.search(r"round (\d+)/", line)
        if found and int(found.group(1)) >= after:
            os.killpg(process.pid, number)
            break
    lines += process.stderr.readlines()
    return process.wait(timeout=120), "".join(lines)


def _rounds(folder: Path) -> int:
    return len((folder / "metrics.jsonl").read_text().splitlines())


def _compare(folder: Path, whole: Path) -> None:
    for name in ("generator.safetensors", "privacy.json"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(1, 61))
    ends = [json.loads((f / "metrics.json").read_text())["epsilon"] for f in (folder, whole)]
    assert ends[0] == ends[1]


@pytest.mark.slow
def test_a_run_stopped_by_ctrl_c_and_then_by_kill_9_ends_like_an_uninterrupted_one(
    tmp_path: Path,
) -> None:
    config = [*_CONFIG, "engine=local"]
    folder = tmp_path / "run"

    code, err = _signalled([*config, "hydra.run.dir=run"], tmp_path, signal.SIGINT, 5)
    assert code == 130
    last = err.splitlines()[-1]
    assert re.fullmatch(r"fedsink: Stopped after round \d+ of 60\. Continue with: .*", last)
    assert last.endswith(f"fedsink simulate resume={folder}")
    assert "Traceback" not in err
    stopped = _rounds(folder)
    assert 5 <= stopped < 60
    assert f"after round {stopped} of" in last

    code, _ = _signalled([f"resume={folder}"], tmp_path, signal.SIGKILL, stopped + 5)
    assert code == -signal.SIGKILL
    assert stopped + 5 <= _rounds(folder) < 60
    assert not (folder / "metrics.json").exists()

    torn = tmp_path / "torn"
    shutil.copytree(folder, torn)
    state = torn / "checkpoint" / "state.safetensors"
    content = bytearray(state.read_bytes())
    content[-1] ^= 1
    state.write_bytes(content)
    elsewhere = tmp_path / "elsewhere"
    refused, unfinished, whole, resumed = run_many(
        [
            (tmp_path, ["simulate", f"resume={torn}"]),
            (tmp_path, ["sample", f"run={folder}", "out=x.npz"]),
            (tmp_path, ["simulate", *config, "hydra.run.dir=whole"]),
            (elsewhere, ["simulate", "resume=../run"]),
        ]
    )
    for outcome, message in ((refused, "is corrupt"), (unfinished, "has not finished")):
        assert outcome.code == 2
        assert outcome.err.count("\n") == 1
        assert message in outcome.err

    assert whole.code == 0, whole.err
    assert (resumed.code, resumed.last) == (0, str(folder)), resumed.err
    assert list(elsewhere.iterdir()) == []
    _compare(folder, tmp_path / "whole")


@pytest.mark.slow
def test_ctrl_c_stops_a_run_on_ray_between_two_rounds(
    fedsink: Command, foreign: Path, tmp_path: Path
) -> None:
    """Ray's processes are in the group that a terminal interrupts; started among alien modules."""
    config = [*_CONFIG, "engine=ray"]
    folder = tmp_path / "run"
    code, err = _signalled([*config, f"hydra.run.dir={folder}"], foreign, signal.SIGINT, 5)
    assert code == 130, err
    assert "Stopped after round" in err.splitlines()[-1]
    resumed = fedsink("simulate", f"resume={folder}", cwd=foreign)
    assert (resumed.code, resumed.last) == (0, str(folder)), resumed.err
    whole = fedsink("simulate", *config, f"hydra.run.dir={tmp_path / 'whole'}", cwd=foreign)
    assert whole.code == 0, whole.err
    _compare(folder, tmp_path / "whole")
