from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsink.clients.journal import ReleaseJournal, ReleaseRefusedError

_PREAMBLE = """
import os, sys, time
from pathlib import Path
from fedsink.clients.journal import ReleaseJournal, ReleaseRefusedError
path = Path(sys.argv[1])
"""


def run(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _PREAMBLE + code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_the_digest_that_claimed_a_place_may_come_again(tmp_path: Path) -> None:
    journal = ReleaseJournal(tmp_path / "j.sqlite")
    for _ in range(3):
        journal.claim(0, "gradient", 1, b"a")


def test_a_place_once_claimed_is_answered_only_for_the_digest_that_claimed_it(
    tmp_path: Path,
) -> None:
    journal = ReleaseJournal(tmp_path / "j.sqlite")
    journal.claim(3, "gradient", 7, b"a")
    with pytest.raises(
        ReleaseRefusedError, match="Client 3 has already answered another gradient request in rou"
    ):
        journal.claim(3, "gradient", 7, b"b")
    journal.claim(3, "gradient", 7, b"a")  # a refusal changes nothing


def test_places_are_told_apart_by_client_purpose_and_round(tmp_path: Path) -> None:
    journal = ReleaseJournal(tmp_path / "j.sqlite")
    places = [(0, "gradient", 1), (1, "gradient", 1), (0, "privatize", 1), (0, "gradient", 2)]
    for number, place in enumerate(places):
        journal.claim(*place, bytes([number]))
    for number, place in enumerate(places):
        with pytest.raises(ReleaseRefusedError):
            journal.claim(*place, bytes([number + 1]))


def test_claims_survive_the_end_of_the_process_however_it_ends(tmp_path: Path) -> None:
    """Pitfall 12: a crash between claim and answer must not free the place."""
    path = tmp_path / "j.sqlite"
    process = run(
        "j = ReleaseJournal(path); j.claim(0, 'gradient', 1, b'a'); os.kill(os.getpid(), 9)",
        str(path),
    )
    assert process.wait() == -9
    with pytest.raises(ReleaseRefusedError):
        ReleaseJournal(path).claim(0, "gradient", 1, b"b")
    ReleaseJournal(path).claim(0, "gradient", 1, b"a")


def test_of_processes_that_claim_at_once_one_wins(tmp_path: Path) -> None:
    """Each process claims 200 places for itself; every place must go to exactly one of them."""
    path, rounds = tmp_path / "j.sqlite", 200
    code = f"""
me = sys.argv[2].encode()
while time.time() < float(sys.argv[3]):
    pass
journal = ReleaseJournal(path)
for number in range({rounds}):
    try:
        journal.claim(0, "gradient", number, me)
        print(number)
    except ReleaseRefusedError:
        pass
"""
    start = str(time.time() + 2.0)
    processes = [run(code, str(path), name, start) for name in ("a", "b")]
    won = [list(map(int, p.communicate(timeout=60)[0].split())) for p in processes]
    assert [p.returncode for p in processes] == [0, 0]
    assert sorted(won[0] + won[1]) == list(range(rounds))


def test_processes_may_open_a_new_journal_at_once(tmp_path: Path) -> None:
    """Cohorts start together: turning a new file to write-ahead logging is where they collide."""
    code = """
for number in range(60):
    while time.time() < float(sys.argv[2]) + 0.05 * number:
        pass
    ReleaseJournal(path.with_name(f"{number}.sqlite")).claim(0, "gradient", 1, b"same")
"""
    start = str(time.time() + 4.0)
    processes = [run(code, str(tmp_path / "j.sqlite"), start) for _ in range(2)]
    for process in processes:
        process.communicate(timeout=60)
    assert [p.returncode for p in processes] == [0, 0]
