"""A SuperLink and two nodes on separate folders; one node is killed in the middle of a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedsink.clients.owner.ledger.account_report import report
from fedsink.clients.owner.ledger.database import Database

from .test_demo import DEMO, left_over, pytestmark  # noqa: F401 (the same needs)

KEYS = (
    "mode=central", "eps=5", "rounds=240", "capacity=auto", "strategy.uses_per_message=60",
    "report.pictures=0",
)  # fmt: skip
PATIENCE = 600.0


@pytest.fixture
def lab(demo: ModuleType, tmp_path: Path) -> Iterator[Any]:
    made = demo.Lab(tmp_path)
    try:
        made.prepare("fast")
        made.start()
        yield made
    finally:
        made.stop()
        assert left_over(tmp_path) == []


def lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def start_again(lab: Any, number: int) -> None:
    """Restarts a node as a supervisor does, once the SuperLink has noticed that it was gone."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            lab.start_hospital(number).wait(20)
        except subprocess.TimeoutExpired:
            return
    pytest.fail("the SuperLink did not take the node back")


def deployed(lab: Any, name: str, *keys: str) -> Iterator[Path]:
    """The server's metrics after each message, then the submitter's folder."""
    outcome: list[tuple[int, str, str]] = []
    thread = threading.Thread(target=lambda: outcome.append(lab.deploy(name, *KEYS, *keys)))
    thread.start()
    metrics = lab.folder / "flwr-superlink" / "runs" / "runs" / name / "metrics.jsonl"
    deadline, seen = time.monotonic() + PATIENCE, 0
    while thread.is_alive() and time.monotonic() < deadline:
        if len(lines(metrics)) > seen:
            seen += 1
            yield metrics
        time.sleep(0.2)
    thread.join(30)
    assert outcome, "the run did not end"
    code, out, last = outcome[0]
    assert code == 0, last
    yield Path(out)


def check_ledger(folder: Path, claimed: int, epsilon: float) -> None:
    database = Database(folder / "state" / "ledger.sqlite", writable=False)
    (account,) = report(database)
    (run,) = account.runs
    database.close()
    assert run.claimed >= claimed
    assert run.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert run.epsilon <= account.epsilon <= 10.0


def test_a_run_with_a_quorum_ends_without_a_node_that_was_killed(lab: Any) -> None:
    hospital = lab._started[2]
    quorum = ("strategy.quorum=1", "engine.round_timeout=30", "engine.wait=30")
    messages = deployed(lab, "killed", *quorum)
    next(messages)
    kill(hospital)
    *_, folder = messages
    assert sorted(path.name for path in folder.iterdir()) == [
        "SHA256SUMS", "config.yaml", "generator.json", "generator.safetensors", "metrics.json",
        "metrics.jsonl", "nodes.json", "privacy.json", "report.html", "samples",
    ]  # fmt: skip
    at_server = lab.folder / "flwr-superlink" / "runs" / "runs" / "killed"
    weights = (folder / "generator.safetensors").read_bytes()
    assert weights == (at_server / "generator.safetensors").read_bytes()
    records = lines(folder / "metrics.jsonl")
    assert [record["round"] for record in records] == [60, 120, 180, 240]
    assert "absent" not in records[0]
    assert records[-1]["absent"] == [1]
    stated = json.loads((folder / "privacy.json").read_text())
    (missed,) = stated["participation"]["missed"]
    assert missed == {"client": 1, "messages": sum("absent" in record for record in records)}
    check_ledger(lab.folder / "hospital-1", 240, stated["epsilon"])
    check_ledger(lab.folder / "hospital-2", 60, stated["epsilon"])

    fetched = lab.folder / "submitter" / "fetched"
    fedsink = Path(sys.executable).with_name("fedsink")
    words = (fedsink, "fetch", f"app={DEMO.parent}", "superlink=lab", "run=killed")
    out = lab.submitter(*words, f"folder={fetched}")
    assert out.strip() == str(fetched)
    for path in folder.rglob("*.*"):
        assert (fetched / path.relative_to(folder)).read_bytes() == path.read_bytes()


def test_a_node_that_comes_back_is_asked_again_and_charged_once(lab: Any) -> None:
    """Nobody is missing from any round, and no round is charged twice."""
    hospital = lab._started[2]
    messages = deployed(lab, "restarted", "engine.ask_again=20")
    next(messages)
    time.sleep(0.5)
    kill(hospital)
    start_again(lab, 2)
    *_, folder = messages
    records = lines(folder / "metrics.jsonl")
    assert [record["round"] for record in records] == [60, 120, 180, 240]
    assert not any("absent" in record for record in records)
    stated = json.loads((folder / "privacy.json").read_text())
    assert "participation" not in stated
    for number in (1, 2):
        check_ledger(lab.folder / f"hospital-{number}", 240, stated["epsilon"])
