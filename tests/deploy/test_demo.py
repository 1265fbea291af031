"""deploy/demo.py as a whole: TLS, node keys, both modes, both ledgers, a refusal, no leftovers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parent.parent.parent / "deploy" / "demo.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not (shutil.which("openssl") and shutil.which("ssh-keygen")),
        reason="the demonstration makes its certificates and keys with openssl and ssh-keygen",
    ),
]


def left_over(folder: Path) -> list[str]:
    """Command lines of processes with Flower's files in this folder that do not end in 30 s.

    A SuperLink's executor has a session of its own: it ends by itself once its parent is gone.
    """
    deadline = time.monotonic() + 30
    while (found := _running(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def _running(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"FLWR_HOME={folder}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def read(path: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads(path.read_text())
    return content


def check_fetched(run: Path, at_server: Path) -> None:
    """All files are the server's, except the report, which the submitter adds."""
    assert (run / "report.html").is_file()
    for path in run.rglob("*"):
        if path.is_file() and path.name not in ("report.html", "SHA256SUMS"):
            assert path.read_bytes() == (at_server / path.relative_to(run)).read_bytes()
    ours, theirs = ((folder / "SHA256SUMS").read_text() for folder in (run, at_server))
    (added,) = set(ours.splitlines()) - set(theirs.splitlines())
    assert added.endswith("  report.html")
    assert set(theirs.splitlines()) < set(ours.splitlines())


def test_the_demonstration_goes_as_promised(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, str(DEMO), str(folder)], capture_output=True, text=True, timeout=1700
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert left_over(folder) == []

    central, local = (folder / "submitter" / "runs" / name for name in ("central", "ldp"))
    for run in (central, local):
        assert (run / "generator.safetensors").is_file()
        assert not (run / "checkpoint").exists()
        at_server = folder / "flwr-superlink" / "runs" / "runs" / run.name
        assert at_server.parent.stat().st_mode & 0o077 == 0
        check_fetched(run, at_server)
    lines = (central / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(60, 601, 60))
    assert 4.9 < float(str(read(central / "privacy.json")["epsilon"])) <= 5.0
    assert not (folder / "submitter" / "runs" / "refused").exists()

    assert done.stdout.count("600 of 600") == 2  # both ledgers hold the whole plan
    assert done.stdout.count("replace-one") >= 2
    assert "refuses by allow.maximum_clip_bound: Δ = 6." in done.stdout
    fedsink = Path(sys.executable).with_name("fedsink")
    for number in (1, 2):
        state = folder / f"hospital-{number}" / "state"
        assert (state / "ledger.sqlite").stat().st_mode & 0o077 == 0
        check = subprocess.run(
            [str(fedsink), "ledger", "check", f"file={state / 'ledger.sqlite'}"],
            capture_output=True,
            text=True,
        )
        assert check.returncode == 0, check.stdout


def test_three_hospitals_add_up_under_masks(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, str(DEMO), "--masked", str(folder)],
        capture_output=True,
        text=True,
        timeout=1700,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert left_over(folder) == []
    run = folder / "submitter" / "runs" / "masked"
    check_fetched(run, folder / "flwr-superlink" / "runs" / "runs" / "masked")
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == list(range(60, 601, 60))
    assert not any("void" in record or "absent" in record for record in records)
    assert done.stdout.count("charged as a sum of 3") == 3
    assert "The last 5 messages were void" in done.stdout
    refused = (folder / "hospital-3.log").read_text()
    assert "the owner demands 4" in refused
    for number in (1, 2, 3):
        sessions = folder / f"hospital-{number}" / "state" / "sessions"
        assert sessions.stat().st_mode & 0o077 == 0
        kept = [path for path in sessions.iterdir() if path.is_file() and path.stat().st_size]
        memories = [json.loads(path.read_bytes())["memory"] for path in kept]
        summed = [memory for memory in memories if memory["roster"]]
        assert len(summed) == 10
        assert not any(memory["seed"] or memory["mask"] or memory["shares"] for memory in summed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_demonstration_leaves_no_process(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "demo"
    process = subprocess.Popen(
        [sys.executable, str(DEMO), str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ,
    )
    deadline = time.monotonic() + 300
    while not (folder / "hospital-2.log").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert _running(folder) != []
    process.send_signal(number)
    assert process.wait(120) in (130, 143)
    assert left_over(folder) == []
