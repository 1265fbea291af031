"""Sweeps: a folder for each run, by its number; what Hydra cannot compose starts none of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import SMALL, Played, run_many

_SMALL = [*SMALL[:2], "rounds=3", "report.pictures=0", "--multirun"]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder, bad = (tmp_path_factory.mktemp(name) for name in ("sweep", "refused"))
    lines = [
        (folder, ["simulate", *_SMALL, "eps=1,0,3", "seed=0", "hydra.sweep.dir=three"]),
        (folder, ["simulate", "resume=three/2"]),
        (bad, ["simulate", *_SMALL, "seed=0", "data=digits,mnits"]),
    ]
    return folder, run_many(lines)


@pytest.mark.slow
def test_the_runs_of_a_sweep_go_on_where_one_is_refused(played: Played) -> None:
    folder, (done, again, _) = played
    refused = "eps must be a finite number > 0, received 0."
    assert done.code == 2
    assert done.err.splitlines()[-1] == f"fedsink: {refused}"
    assert f"Run 1 failed: {refused}" in done.err.splitlines()
    assert [Path(line) for line in done.out.splitlines()] == [folder / "three" / n for n in "02"]
    for name in "02":
        assert json.loads((folder / "three" / name / "metrics.json").read_text())["rounds"] == 3
    assert not (folder / "three" / "1").exists()
    told = [
        line for line in done.err.splitlines() if line.startswith("Run ") and "failed" not in line
    ]
    assert [line.partition(": ")[0] for line in told] == ["Run 0", "Run 1", "Run 2"]
    assert all(f"eps={eps} seed=0" in line for eps, line in zip((1, 0, 3), told, strict=True))
    assert (again.code, again.last) == (0, str(folder / "three" / "2"))


@pytest.mark.slow
def test_a_sweep_that_cannot_be_composed_leaves_nothing(played: Played) -> None:
    outcome = played[1][2]
    assert (outcome.code, outcome.out, outcome.left) == (2, "", ())
    assert "There is no data=mnits" in outcome.err
    assert outcome.err.count("\n") == 1
