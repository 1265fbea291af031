from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .surroundings import clean

HOSTILE = {
    "FEDSINK_COMPILE": "yes", "FEDSINK_STATE": "/nowhere", "RAY_ADDRESS": "10.255.255.1:1",
    "HYDRA_FULL_ERROR": "yes", "MPLBACKEND": "nowhere", "PYTHONOPTIMIZE": "2",
    "PYTHONWARNINGS": "error", "LC_ALL": "C", "LANG": "xx", "GIT_DIR": "/nowhere",
    "XDG_CACHE_HOME": "/nowhere", "XDG_STATE_HOME": "/nowhere", "COLUMNS": "3", "TZ": "x",
    "OMP_NUM_THREADS": "64", "COMP_LINE": "fedsink s", "FLWR_HOME": "/nowhere",
}  # fmt: skip


def test_what_is_a_users_own_is_forgotten_and_the_rest_stays() -> None:
    kept = {
        "PATH": "/bin", "TMPDIR": "/t", "PYTHONPATH": "/copy", "FEDSINK_TEST_DATA": "/d",
        "FEDSINK_GPU": "cpu",
    }  # fmt: skip
    found = {**HOSTILE, **kept}
    clean(found)
    assert kept.items() <= found.items()
    assert not HOSTILE.items() & found.items()
    assert set(found) - set(kept) == {
        "LC_ALL", "OMP_NUM_THREADS", "FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK",
        "FLWR_LOG_LEVEL",
    }  # fmt: skip


def test_a_test_sees_nothing_of_its_user() -> None:
    assert not HOSTILE.items() & os.environ.items()
    homes = [os.environ[name] for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")]
    assert len({Path(home).parent for home in [*homes, Path.cwd()]}) == 1
    assert "runs" not in os.listdir()


@pytest.mark.slow
def test_pytest_may_be_started_anywhere_by_anybody(tmp_path: Path) -> None:
    """With no home, no room to write, and everything set that a user could have set."""
    for name in ("runs", "site", "dist", "multirun"):
        (tmp_path / "closed" / name).mkdir(parents=True)
    (tmp_path / "closed").chmod(0o500)
    test = f"{__file__}::{test_a_test_sees_nothing_of_its_user.__name__}"
    with_path = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        cwd=tmp_path / "closed", env=HOSTILE | with_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
