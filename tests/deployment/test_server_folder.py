"""The server's own folder: a submitter's name leads nowhere else."""

from __future__ import annotations

from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsink.deployment import server_folder
from fedsink.deployment.server_folder import deployed_name, held_run, server_home
from fedsink.errors import ClientError, ConfigError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSINK_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    assert server_home() == home
    monkeypatch.delenv("FEDSINK_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert server_home() == tmp_path / "xdg" / "fedsink" / "server"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../run", "/tmp/run", "a/b", "a\\b", ".hidden", "-flag", "~", "a b", "a\0b",
     "a\n", "ä", "x" * 101, None, 3],
)  # fmt: skip
def test_names_that_are_no_part_of_a_path_are_refused(home: Path, name: Any) -> None:
    with pytest.raises(ConfigError, match="A run's name is 1 to 100 of"), held_run(name):
        pass
    assert not home.exists()


@given(st.text())
def test_a_name_that_is_taken_stays_one_part_of_a_path(name: str) -> None:
    try:
        deployed_name(name)
    except ConfigError:
        return
    assert (Path("/home") / name).resolve().parent == Path("/home")


def test_a_run_lies_in_a_folder_of_the_server_alone(home: Path) -> None:
    with held_run("2026-01.a_b") as folder:
        assert folder.path == home / "runs" / "2026-01.a_b"
        assert not folder.path.exists()
    for name in ("runs", "locks"):
        assert (home / name).stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_open_is_refused(home: Path) -> None:
    (home / "runs").mkdir(parents=True, mode=0o755)
    with pytest.raises(ConfigError, match="is open to others"), held_run("run"):
        pass


@pytest.mark.parametrize("place", ["runs", "runs/run", "locks/run"])
def test_links_are_not_followed(home: Path, tmp_path: Path, place: str) -> None:
    with held_run("other"):
        pass
    link = home / place
    if link.is_dir():
        link.rmdir()
    target = tmp_path / "elsewhere"
    link.symlink_to(target)
    with pytest.raises((ConfigError, OSError)), held_run("run"):
        pass
    assert not target.exists()


def test_a_run_is_held_by_one_process(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_folder, "_PATIENCE_SECONDS", 0.2)
    goes_on = pytest.raises(ClientError, match="The run run continues")
    with held_run("run"), held_run("other"), goes_on, held_run("run"):
        pass
    with held_run("run"):
        pass


def test_a_run_that_was_stopped_is_waited_for_until_its_process_has_ended(home: Path) -> None:
    stopped = held_run("run")
    stopped.__enter__()
    Timer(0.3, stopped.__exit__, (None, None, None)).start()
    with held_run("run") as folder:
        assert folder.path == home / "runs" / "run"
