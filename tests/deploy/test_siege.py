"""Eight nodes under more than twenty kills, one for good: the run ends, the ledgers hold.

Each node has its own folder, TLS and a key that the SuperLink knows. The kills come between
and inside messages: `fedsink node`, its runner, or the fork that answers. A supervisor starts a
node again whenever it ends, ten seconds later, as deploy/node/fedsink-node.service does.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fedsink.clients.owner.gate import round_digests
from fedsink.clients.owner.ledger.account_report import report
from fedsink.clients.owner.ledger.database import Database, problems
from fedsink.clients.owner.replies import ReplyStore
from fedsink.models import load

from ..support.processes import children, gone, runners
from .test_absent_node import lines
from .test_demo import check_fetched, left_over, pytestmark  # noqa: F401 (the same needs)

CLIENTS, LOST = 8, 8
MESSAGES, USES = 40, 4
QUORUM = 3
MOST_DOWN = 3  # of the seven that come back: the quorum stays within reach
CEILING = 10.0
KINDS = ("node",) * 7 + ("runner",) * 8 + ("fork",) * 8
RESTART_SECONDS = 10.0
PATIENCE = 1200.0


@pytest.fixture
def lab(demo: Any, tmp_path: Path) -> Iterator[Any]:
    """A SuperLink with TLS and eight hospitals that it knows."""
    lab = demo.Lab(tmp_path, (CEILING,) * CLIENTS)
    try:
        lab.prepare("fast")
        lab.start_superlink()
        for number in lab.hospitals:
            lab.register(number)
        yield lab
    finally:
        lab.stop()
        assert left_over(tmp_path) == []


class Siege:
    """The nodes of a deployment, a supervisor that restarts them, and kills.

    Args:
        lab: of the deployment.
        seed: of the kills' order, victims and moments.
    """

    def __init__(self, lab: Any, seed: int) -> None:
        self._lab = lab
        self._random = random.Random(seed)
        self._kinds = self._random.sample(KINDS, len(KINDS))
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        self._runs: dict[int, int] = dict.fromkeys(lab.hospitals, 0)  # node → lines seen in its log
        self._ended: dict[int, float] = {}
        self._lost: set[int] = set()
        self._next: tuple[str, float] | None = None
        self._messages = 0
        self.killed: Counter[str] = Counter()
        self.pids: list[int] = []
        self.replies: dict[Path, bytes] = {}
        """SHA-256 of every stored reply when it was seen first."""

    def start(self) -> None:
        """Starts all nodes, and waits until the SuperLink has taken each."""
        for number in self._lab.hospitals:
            self._start(number)
        deadline = time.monotonic() + PATIENCE
        while len(self._up()) < CLIENTS:
            assert time.monotonic() < deadline, "the nodes did not start"
            time.sleep(0.2)

    def run(self, *keys: str) -> tuple[Path, Path]:
        """Deploys a run and takes steps until it has ended well.

        Args:
            keys: beside those of every siege.

        Returns:
            Its folders where it was fetched to, and at the SuperLink.
        """
        keys = (
            "mode=central", "eps=5", f"rounds={MESSAGES * USES}", "capacity=auto",
            "report.pictures=0", f"strategy.uses_per_message={USES}", "engine.round_timeout=8",
            "engine.ask_again=15", "engine.wait=90", *keys,
        )  # fmt: skip
        outcome: list[tuple[int, str, str]] = []
        run = threading.Thread(
            target=lambda: outcome.append(self._lab.deploy("siege", *keys)), daemon=True
        )
        self.start()
        run.start()
        at_server = self._lab.folder / "flwr-superlink" / "runs" / "runs" / "siege"
        deadline = time.monotonic() + PATIENCE
        while run.is_alive():
            assert time.monotonic() < deadline, "the run did not end"
            self.step(len(lines(at_server / "metrics.jsonl")))
            time.sleep(0.02)
        ((code, out, last),) = outcome
        assert code == 0, last
        return Path(out), at_server

    def step(self, messages: int) -> None:
        """Looks after the nodes, and kills once for each message, each time at another moment.

        Args:
            messages: number that the server has finished.
        """
        self._supervise()
        if messages > self._messages:
            self._messages = messages
            self._look_at_replies()
            if messages == 3:
                self._lost.add(LOST)
                self._kill("node", LOST)
            elif messages > 0 and self._kinds and self._next is None:
                self._next = self._kinds.pop(), time.monotonic() + self._random.uniform(0, 1)
        if self._next is not None and time.monotonic() > self._next[1]:
            kind, up = self._next[0], [number for number in self._up() if number not in self._lost]
            enough = len(up) > CLIENTS - 1 - MOST_DOWN
            if up and (enough or kind != "node") and self._kill(kind, self._random.choice(up)):
                self._next = None

    def _kill(self, kind: str, number: int) -> bool:
        """Kills a process of this kind; False if there was none."""
        node = self._nodes[number]
        runner = runners(node.pid)
        forks = [fork for pid in runner for fork in children(pid)]
        victims = {"node": [node.pid], "runner": runner, "fork": forks}[kind]
        try:
            os.kill(victims[0], signal.SIGKILL)
        except (IndexError, ProcessLookupError):
            return False
        self.killed[kind] += 1
        self.pids += [victims[0], *(runner if kind == "node" else ())]
        return True

    def _supervise(self) -> None:
        now = time.monotonic()
        for number, node in self._nodes.items():
            if number in self._lost or node.poll() is None:
                continue
            if now - self._ended.setdefault(number, now) >= RESTART_SECONDS:
                del self._ended[number]
                self._start(number)

    def _start(self, number: int) -> None:
        log = self._lab.folder / f"hospital-{number}.log"
        self._runs[number] = log.stat().st_size if log.exists() else 0
        self._nodes[number] = self._lab.start_hospital(number)

    def _up(self) -> list[int]:
        """Nodes that run and that the SuperLink has taken since they were started."""
        said = f" of 127.0.0.1:{self._lab.port}"
        return [
            number
            for number, node in self._nodes.items()
            if node.poll() is None and said in self._log(number)
        ]

    def _log(self, number: int) -> str:
        content = (self._lab.folder / f"hospital-{number}.log").read_bytes()
        return content[self._runs[number] :].decode()

    def _look_at_replies(self) -> None:
        for path in self._lab.folder.glob("hospital-*/state/**/*.reply"):
            if path not in self.replies:
                self.replies[path] = hashlib.sha256(path.read_bytes()).digest()


def all_records(folder: Path) -> list[dict[str, Any]]:
    """The metrics of all messages of a siege."""
    records = lines(folder / "metrics.jsonl")
    assert [record["round"] for record in records] == [
        USES * message for message in range(1, MESSAGES + 1)
    ]
    return records


def used_rounds(records: list[dict[str, Any]], client: int) -> set[int]:
    """The rounds of all messages that the server has had from a client."""
    return {
        round
        for record in records
        if client not in record.get("absent", ())
        for round in range(record["round"] - USES + 1, record["round"] + 1)
    }


def check_owner(state: Path, used: set[int], stated: Mapping[str, Any]) -> int:
    """Compares one ledger's charges with the replies that left the node. Returns their number."""
    database = Database(state / "ledger.sqlite", writable=False)
    try:
        assert problems(database) == []
        (account,) = report(database)
        claimed = dict(database.rows("SELECT digest, round FROM claims"))
        released = {round for (round,) in database.rows("SELECT round FROM claims WHERE released")}
    finally:
        database.close()
    (run,) = account.runs
    # A place has one digest, a digest one stored reply: no place was answered in two ways.
    assert len(set(claimed.values())) == len(claimed) == run.claimed
    (folder,) = {path.parent for path in state.rglob("*.reply")}
    digests = [use for reply in ReplyStore(folder).digests() for use in round_digests(reply, USES)]
    answered = {claimed[digest] for digest in digests}
    assert len(answered) == len(digests)

    assert run.rounds == MESSAGES * USES
    assert used <= released <= answered <= set(claimed.values()) <= set(range(1, run.rounds + 1))
    assert run.epsilon is not None
    assert 0.0 < run.epsilon <= CEILING == account.epsilon
    assert run.epsilon == pytest.approx(stated["epsilon"], rel=1e-6)
    return len(digests) // USES


def test_a_run_outlives_kills_of_its_nodes_and_every_ledger_holds(lab: Any) -> None:
    siege = Siege(lab, seed=14)
    folder, at_server = siege.run(f"strategy.quorum={QUORUM}")
    logs = [path.read_text() for path in lab.folder.glob("hospital-*.log")]
    # A fork that had just answered when it was killed does not count.
    siege.killed["fork"] = sum(
        log.count("the process that answered a message died") for log in logs
    )
    print(siege.killed)
    assert siege.killed.total() >= 20
    assert min(siege.killed[kind] for kind in KINDS) >= 4
    lab.stop()
    assert all(gone(pid) for pid in siege.pids)

    assert folder == lab.folder / "submitter" / "runs" / "siege"
    check_fetched(folder, at_server)
    assert all(weights.isfinite().all() for weights in load(folder).parameters())

    records = all_records(folder)
    assert all(CLIENTS - len(record.get("absent", ())) >= QUORUM for record in records)
    ends = [0.0, *(record["seconds"] for record in records)]
    # The SuperLink keeps a reply whose node died in the upload for three minutes.
    assert max(end - start for start, end in pairwise(ends)) < 120
    assert all(LOST - 1 in record["absent"] for record in records[5:])
    stated = json.loads((folder / "privacy.json").read_text())
    missed = {row["client"]: row["messages"] for row in stated["participation"]["missed"]}
    assert missed == Counter(c for record in records for c in record.get("absent", ()))
    for number in lab.hospitals:
        used = used_rounds(records, number - 1)
        state = lab.folder / f"hospital-{number}" / "state"
        replies = check_owner(state, used, stated)
        print(f"hospital {number}: {len(used) // USES} used of {replies} replies")
    for path, content in siege.replies.items():
        assert hashlib.sha256(path.read_bytes()).digest() == content
