"""`fedsink node` with a SuperLink, TLS and node keys: two owners, kills, a hostile submitter."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ..support.processes import children, gone, runners

BIN = Path(sys.executable).parent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not (shutil.which("openssl") and shutil.which("ssh-keygen")),
        reason="certificates and keys are made with openssl and ssh-keygen",
    ),
]

_PROJECT = """
[project]
name = "hostile"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.flwr.app]
publisher = "hostile"
fab-include = ["/**/*.py"]

[tool.flwr.app.components]
serverapp = "hostile_server:app"
clientapp = "hostile_client:app"
"""

_CLIENT = """
import os
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

Path({folder!r}, "ran-in-" + Path(os.environ["FLWR_HOME"]).name).touch()
app = ClientApp()


@app.query("identity")
def identity(message, context):
    record = RecordDict({{"identity": ConfigRecord({{"client": 99}})}})
    return Message(record, reply_to=message)
"""

_SERVER = """
import json
import time
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < 2:
        time.sleep(0.5)
    asked = [Message(RecordDict(), dst_node_id=n, message_type="query.identity") for n in nodes]
    replies = grid.send_and_receive(asked)
    told = [r.content.config_records["identity"]["client"] for r in replies]
    Path({folder!r}, "told.tmp").write_text(json.dumps(sorted(told)))
    Path({folder!r}, "told.tmp").rename(Path({folder!r}, "told"))
"""

_DIES_IN_AN_UPLOAD = """
import os
import signal
import sys

from fedsink import flower_internals
from fedsink.commands import cli

uploads = 0


def push_objects(*words, **keys):
    global uploads
    uploads += 1
    if uploads == 3:  # who it is, a first answer, and the second of which only the head arrives
        os.kill(os.getpid(), signal.SIGKILL)
    whole(*words, **keys)


whole, flower_internals.push_objects = flower_internals.push_objects, push_objects
sys.exit(cli.main(sys.argv[1:]))
"""


def wait_for(path: Path, seconds: float = 300) -> str:
    deadline = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    return path.read_text()


def wait_for_line(path: Path, word: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while word not in path.read_text():
        assert time.monotonic() < deadline, path.read_text()
        time.sleep(0.2)


def test_what_a_submitter_ships_runs_under_flowers_supernode_and_not_here(
    lab: Any, tmp_path: Path
) -> None:
    lab.register(1)
    lab.start_hospital(1)
    hospital = lab.register(2)
    lab.start_process(
        hospital.name, "flower-supernode", "--superlink", f"127.0.0.1:{lab.port}",
        "--root-certificates", tmp_path / "certs" / "ca.crt",
        "--auth-supernode-private-key", hospital / "node-key", "--port", lab.port - 1,
        "--node-config", f'policy="{hospital / "policy.toml"}" partition-id=1 num-partitions=2',
    )  # fmt: skip
    app = tmp_path / "app"
    app.mkdir()
    (app / "pyproject.toml").write_text(_PROJECT)
    (app / "hostile_client.py").write_text(_CLIENT.format(folder=str(tmp_path)))
    (app / "hostile_server.py").write_text(_SERVER.format(folder=str(tmp_path)))
    lab.submitter(BIN / "flwr", "run", app, "lab")
    assert json.loads(wait_for(tmp_path / "told")) == [0, 99]
    assert [path.name for path in tmp_path.glob("ran-in-*")] == ["ran-in-flwr-hospital-2"]
    assert not (tmp_path / "flwr-hospital-1" / "apps").exists()


def test_kills_of_runners_and_forks_cost_a_run_nothing_and_a_stop_leaves_no_process(
    lab: Any, tmp_path: Path
) -> None:
    for number in (1, 2):
        lab.register(number)
    nodes = [lab.start_hospital(number) for number in (1, 2)]
    killed: list[int] = []
    over = threading.Event()

    def kill() -> None:
        """The first node's runner and the second's fork, each while it answers, twice."""
        logs = [tmp_path / f"hospital-{number}.log" for number in (1, 2)]
        for count in (1, 3):
            for node, log, fork in zip(nodes, logs, (False, True), strict=True):
                while not over.is_set() and log.read_text().count("train.dp_sinkhorn") < count:
                    time.sleep(0.1)
                while not over.is_set() and (runner := runners(node.pid)):
                    if forks := children(runner[0]):
                        victim = forks[0] if fork else runner[0]
                        os.kill(victim, signal.SIGKILL)
                        killed.append(victim)
                        break

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        code, _, last = lab.deploy(
            "killed", "mode=central", "eps=5", "rounds=60", "capacity=auto",
            "strategy.uses_per_message=10",
        )  # fmt: skip
    finally:
        over.set()
        killing.join()
    assert code == 0, last
    assert len(killed) == 4
    assert "the runner died; another has started." in (tmp_path / "hospital-1.log").read_text()
    assert "the process that answered a message died" in (tmp_path / "hospital-2.log").read_text()
    for number in (1, 2):
        policy = tmp_path / f"hospital-{number}" / "policy.toml"
        check = subprocess.run(
            [BIN / "fedsink", "ledger", "show", f"policy={policy}"], capture_output=True, text=True
        )
        assert "60 of 60" in check.stdout, check.stderr

    started = [pid for node in nodes for pid in children(node.pid)]
    for node, number, expected in zip(
        nodes, (signal.SIGINT, signal.SIGTERM), (130, 0), strict=True
    ):
        node.send_signal(number)
        assert node.wait(30) == expected
    assert all(gone(pid) for pid in started)


def test_a_node_that_dies_in_its_upload_holds_up_no_round(lab: Any, tmp_path: Path) -> None:
    """Flower would wait for the rest of the reply: three minutes, and for nothing else."""
    lab.register(1)
    lab.start_hospital(1)
    hospital = lab.register(2)
    node = lab.start_process(
        hospital.name, "python", "-c", _DIES_IN_AN_UPLOAD, "node",
        f"superlink=127.0.0.1:{lab.port}", f"certificate={tmp_path / 'certs' / 'ca.crt'}",
        f"key={hospital / 'node-key'}", f"policy={hospital / 'policy.toml'}", "client=1",
        "clients=2",
    )  # fmt: skip
    code, folder, last = lab.deploy(
        "half", "mode=central", "eps=5", "rounds=40", "capacity=auto", "report.pictures=0",
        "strategy.uses_per_message=10", "strategy.quorum=1", "engine.round_timeout=10",
    )  # fmt: skip
    assert code == 0, last
    assert node.wait(10) == -signal.SIGKILL
    lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record.get("absent", []) for record in records] == [[], [1], [1], [1]]
    assert records[-1]["seconds"] < 100


def test_a_key_that_the_superlink_does_not_know_is_refused(lab: Any, tmp_path: Path) -> None:
    hospital = tmp_path / "hospital-1"  # no node is registered with this key
    node = lab.start_process(
        "stranger", "fedsink", "node", f"superlink=127.0.0.1:{lab.port}",
        f"certificate={tmp_path / 'certs' / 'ca.crt'}", f"key={hospital / 'node-key'}",
        f"policy={hospital / 'policy.toml'}", "client=0", "clients=2",
    )  # fmt: skip
    assert node.wait(120) == 1
    last = (tmp_path / "stranger.log").read_text().splitlines()[-1]
    assert "did not accept this node:" in last


def test_without_tls_and_key_a_node_registers_itself(demo: Any, tmp_path: Path) -> None:
    lab = demo.Lab(tmp_path)
    try:
        lab.prepare("fast")
        lab.superlink = lab.start_process(
            "superlink", "flower-superlink", "--host", "127.0.0.1", "--port", lab.port,
            "--insecure", "--disable-runtime-dependency-installation",
        )  # fmt: skip
        lab._wait_for_port()
        policy = tmp_path / "hospital-1" / "policy.toml"
        node = lab.start_process(
            "hospital-1", "fedsink", "node", f"superlink=127.0.0.1:{lab.port}",
            f"policy={policy}", "client=0", "clients=2", "insecure=true",
        )  # fmt: skip
        log = tmp_path / "hospital-1.log"
        wait_for_line(log, f" of 127.0.0.1:{lab.port}")
        assert "WARNING: insecure=true" in log.read_text()
        node.terminate()
        assert node.wait(30) == 0
    finally:
        lab.stop()


def test_a_superlink_that_comes_back_without_its_memory_ends_the_node(
    lab: Any, tmp_path: Path
) -> None:
    lab.register(1)
    node = lab.start_hospital(1)
    log = tmp_path / "hospital-1.log"
    wait_for_line(log, "node ")
    wait_for_line(log, " of 127.0.0.1")
    os.killpg(lab.superlink.pid, signal.SIGKILL)
    wait_for_line(log, "waiting for 127.0.0.1")
    lab.start_superlink()
    assert node.wait(120) == 1
    last = log.read_text().splitlines()[-1]
    assert "no longer" in last
