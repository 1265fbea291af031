from __future__ import annotations

import ctypes
import os
import re
import shutil
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


ROOT = Path(__file__).resolve().parents[2]
LEFT_BEHIND = ("runs", "site", "dist", "build", "multirun")
"""Folders that commands leave in a checkout: `make docs`, `make release`, `fedsink simulate`."""
FILES = (
    "tests/test_layout.py", "tests/test_claims.py", "tests/docs/test_map.py",
    "tests/commands/test_cli.py", "tests/conf/test_loading.py", "tests/server/test_folder.py",
    "tests/clients/answers/test_dp_sinkhorn.py",
)  # fmt: skip


def _like_anybody() -> None:
    """Takes from root, in a child process, the right to write where permissions forbid it."""
    drop, overrides = 24, (1, 2)  # PR_CAPBSET_DROP; CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    for capability in overrides:
        ctypes.CDLL(None).prctl(drop, capability, 0, 0, 0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="root's rights are taken by Linux's prctl")
def test_tests_run_in_a_checkout_that_is_not_writable_and_full_of_leftovers(tmp_path: Path) -> None:
    """Twice, as after a first run; neither the checkout nor its parent takes a file."""
    checkout = tmp_path / "parent" / "checkout"
    ignored = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", *LEFT_BEHIND)
    shutil.copytree(ROOT, checkout, ignore=ignored, symlinks=True)
    for name in LEFT_BEHIND:
        (checkout / name / "deep").mkdir(parents=True)
        for file in ("page.md", "config.yaml", "test_page.py", "page.ipynb"):
            (checkout / name / "deep" / file).write_text("[no](where.md): {[")
    paths = [tmp_path / "parent", *(tmp_path / "parent").rglob("*")]
    closed = [path for path in paths if not path.is_symlink()]
    for path in closed:
        path.chmod(path.stat().st_mode & ~0o222)

    def ran(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command], cwd=checkout, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(checkout)}, preexec_fn=_like_anybody,
        )  # fmt: skip

    try:
        if ran("-c", "open('new', 'w')").returncode == 0:
            pytest.skip("the permissions of files bind nobody here")
        for _ in range(2):
            done = ran("-m", "pytest", "-q", *FILES)
            assert done.returncode == 0, done.stdout + done.stderr
    finally:
        for path in closed:
            path.chmod(path.stat().st_mode | 0o200)


_SKIPS = """
import pytest

{module}

@pytest.mark.skipif(True, reason="no compiler: install g++")
def test_an_install_gives_it(): ...

@pytest.mark.skipif(True, reason="it wants a GPU")
def test_nothing_gives_it(): ...

@pytest.mark.xfail
def test_known(): assert False

def test_fine(): ...
"""


@pytest.mark.medium
@pytest.mark.parametrize(
    ("module", "counts"),
    [
        ("", {"skipped": 1, "xfailed": 1, "passed": 1, "error": 1}),
        ('pytest.importorskip("no_such_package")', {"error": 1}),
    ],
)
def test_where_every_test_is_to_run_a_skip_that_an_install_prevents_is_an_error(
    tmp_path: Path, module: str, counts: dict[str, int]
) -> None:
    (tmp_path / "test_it.py").write_text(_SKIPS.format(module=module))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "test_it.py"],
        cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "FEDSINK_TEST_ALL": "1"},
    )  # fmt: skip
    found = re.findall(r"(\d+) (skipped|xfailed|passed|failed|error)", done.stdout)
    assert {what: int(number) for number, what in found} == counts
