"""A run's secret key: its place, its readers, its end."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fedsink.errors import CheckpointError
from fedsink.simulation.run_identity import RunIdentity, key_folder


def test_a_seed_needs_no_key_and_is_the_servers_seed() -> None:
    run = RunIdentity.fresh(7)
    assert (run.server_seed, run.key_file, run.ledger) == (7, None, None)
    run.create_key()
    run.delete_key()
    assert not key_folder().exists()


def test_a_key_is_readable_by_its_owner_alone_in_the_users_state_folder(state: Path) -> None:
    run = RunIdentity.fresh(None)
    assert run.key_file is not None
    assert not run.key_file.exists()
    run.create_key()
    assert run.key_file.is_relative_to(state)
    assert stat.S_IMODE(run.key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(run.key_file.parent.stat().st_mode) == 0o700


def test_without_a_state_folder_the_key_lies_under_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    assert key_folder() == Path.home() / ".local" / "state" / "fedsink" / "keys"


def test_two_runs_share_neither_name_nor_key_nor_server_seed() -> None:
    one, two = RunIdentity.fresh(None), RunIdentity.fresh(None)
    for run in (one, two):
        run.create_key()
    assert one.name != two.name
    assert one.server_seed != two.server_seed
    assert one.key_file is not None
    assert two.key_file is not None
    assert one.key_file.read_text() != two.key_file.read_text()


def test_the_configuration_holds_the_place_of_the_key_and_not_the_key() -> None:
    run = RunIdentity.fresh(None)
    run.create_key()
    stored = run.to_config()
    assert run.key_file is not None
    assert set(stored) == {"name", "server_seed", "key_file"}
    secret = run.key_file.read_text().split('"secret": "')[1][:64]
    assert len(secret) == 64
    assert secret not in str(stored)
    assert RunIdentity.from_config(stored) == run


def test_deleting_the_key_deletes_ledger_and_replies_and_no_other_run() -> None:
    run, other = RunIdentity.fresh(None), RunIdentity.fresh(None)
    for each in (run, other):
        each.create_key()
        assert each.ledger is not None
        for suffix in ("", "-wal", "-shm"):
            each.ledger.with_name(each.ledger.name + suffix).touch()
    assert run.ledger is not None
    replies = run.ledger.with_suffix(".replies")
    replies.mkdir()
    (replies / "one.reply").touch()
    run.delete_key()
    left = {path.name for path in key_folder().iterdir()}
    ends = (".key", ".sqlite", ".sqlite-wal", ".sqlite-shm")
    assert left == {f"{other.name}{end}" for end in ends}
    run.delete_key()  # again is no error


@pytest.mark.parametrize(("part", "told"), [("key_file", "secret noise key"), ("ledger", "ledger")])
def test_a_run_whose_key_or_ledger_is_gone_cannot_go_on(part: str, told: str) -> None:
    """Without its ledger, its rounds could be answered twice."""
    run = RunIdentity.fresh(None)
    run.create_key()
    getattr(run, part).unlink()
    with pytest.raises(CheckpointError, match=rf"{told} .* is missing.*Start a new run"):
        RunIdentity.from_config(run.to_config())


@pytest.mark.parametrize(
    ("name", "key_file"),
    [
        ("../../other", None),
        ("..", None),
        ("", None),
        ("a.b", None),
        ("a/b", None),
        ("a\n", None),
        ("run", "{keys}/other.key"),
        ("run", "{keys}/sub/run.key"),
        ("run", "{keys}/../../run.key"),
        ("run", "{keys}/../keys/other.key"),
        ("run", "/home/other/run.key"),
        ("run", "run.key"),
        ("run", "{keys}/run.sqlite"),
    ],
)
@pytest.mark.parametrize("finished", [False, True])
def test_a_received_identity_names_no_other_file(
    name: str, key_file: str | None, finished: bool
) -> None:
    place = None if key_file is None else key_file.format(keys=key_folder())
    stored = {"name": name, "server_seed": 1, "key_file": place}
    with pytest.raises(CheckpointError, match=r"fedsink gives no run such a name|keys lie in"):
        RunIdentity.from_config(stored, finished=finished)
