"""Sweeps: all runs are checked before the first, and their folders name the differences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsink.commands.simulate import LONGEST_NAME, folder_names, sweep_of

from .conftest import SMALL, Outcome, run_many

_SMALL = [*SMALL[:2], "rounds=3", "report.pictures=0", "--multirun"]


def test_names_are_of_what_differs() -> None:
    runs = sweep_of(["clients=2", "eps=1,3", "data.root='/a b/é','/c'", "+x=1"])
    assert list(runs) == [
        "eps=1,data.root=-a-b-é", "eps=1,data.root=-c", "eps=3,data.root=-a-b-é",
        "eps=3,data.root=-c",
    ]  # fmt: skip
    assert runs["eps=3,data.root=-c"] == ["clients=2", "eps=3", "data.root='/c'", "+x=1"]
    assert list(sweep_of(["eps=range(1,3)", "mode=central,ldp"]))[-1] == "eps=2,mode=ldp"
    assert list(sweep_of(["eps=3"])) == ["0"]


def test_another_sweeper_or_launcher_names_its_own() -> None:
    assert sweep_of(["eps=1,3", "hydra/launcher=joblib"]) == {}


def test_names_are_fit_for_any_file_system() -> None:
    long = [[f"data.root=/{'é' * 300}/{end}"] for end in "ab"]
    names = folder_names([["a=B"], ["a=b"], ["a=../.."], ["a=b*?:|"], *long])
    assert len({name.casefold() for name in names}) == len(names)
    assert names[1] == "a=b-1"
    for name in names:
        assert len(name.encode()) <= LONGEST_NAME
        assert not set(name) & set("/\\:*?\"<>|' ")
        assert Path(name).name == name


_BAD = {
    "eps=3,0": "eps=0 of this sweep cannot run: eps must be a finite number > 0",
    "clients=2,5000": "clients=5000 of this sweep cannot run: 5000 clients cannot share",
    "data=digits,mnits": "There is no data=mnits",
    "generator=dct_mlp,dcgan": "generator=dcgan of this sweep cannot run: dcgan makes",
    "policy=null,no.toml": "no.toml cannot be read",
    "eps=1,3 hydra.sweep.dir=taken": "is not an empty folder",
}


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the sweep of four runs."""
    return tmp_path_factory.mktemp("sweep")


@pytest.fixture(scope="module")
def played(four: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Every command line of this module, played by one process."""
    lines = [
        (four, ["simulate", *_SMALL, "eps=1,3", "seed=0,1", "hydra.sweep.dir=four"]),
        (four, ["simulate", "resume=four/eps=3,seed=1"]),
    ]
    for text in _BAD:
        folder = tmp_path_factory.mktemp("refused")
        (folder / "taken" / "eps=3").mkdir(parents=True)
        (folder / "taken" / "eps=3" / "notes.txt").touch()
        keys = text.split()
        base = [key for key in _SMALL if not text.startswith(key.partition("=")[0])]
        seed = [] if "policy" in text else ["seed=0"]
        lines.append((folder, ["simulate", *base, *seed, *keys]))
    return dict(zip(["sweep", "resume", *_BAD], run_many(lines), strict=True))


@pytest.mark.slow
def test_a_sweep_trains_in_folders_that_say_what_differs(
    played: dict[str, Outcome], four: Path
) -> None:
    done, again = played["sweep"], played["resume"]
    assert done.code == again.code == 0, done.err
    names = [f"eps={eps},seed={seed}" for eps in (1, 3) for seed in (0, 1)]
    assert [Path(line) for line in done.out.splitlines()] == [four / "four" / n for n in names]
    for name in names:
        assert json.loads((four / "four" / name / "metrics.json").read_text())["rounds"] == 3
    assert [line for line in done.err.splitlines() if line.startswith("Run ")] == [
        f"Run {name}, {number} of 4" for number, name in enumerate(names, 1)
    ]
    assert again.last == str(four / "four" / names[-1])


@pytest.mark.slow
@pytest.mark.parametrize("keys", _BAD)
def test_one_bad_run_of_a_sweep_leaves_nothing(played: dict[str, Outcome], keys: str) -> None:
    outcome = played[keys]
    assert outcome.code == 2
    assert outcome.out == ""
    assert _BAD[keys] in outcome.err
    assert outcome.err.count("\n") == 1
    assert outcome.left == ("taken", "taken/eps=3", "taken/eps=3/notes.txt")
