"""Cost of one message for a node: Flower's own isolation against `fedsink node`.

A SuperLink and two nodes with TLS and node keys on this machine, pictures of the embedded digits.
Node 1 is `flower-supernode` as it comes (a process for each message), node 2 is `fedsink node` (a
fork for each message). A ServerApp asks them in turn for one use of a small plan, and thinks for
half a second before each message. Time is from the message's arrival at the SuperLink to its
reply's.

    python benchmarks/node_message.py [--repeats 10]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from interleaved import arguments, table

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "deploy"))

from demo import Lab  # noqa: E402

NAMES = {0: "flower-supernode", 1: "fedsink node"}
TICK = os.sysconf("SC_CLK_TCK")

PROJECT = """\
[project]
name = "fedsink-node-message"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.flwr.app]
publisher = "fedsink"
fab-include = ["/**/*.py"]

[tool.flwr.app.components]
serverapp = "asking:app"
clientapp = "fedsink.clients.app:app"

[tool.flwr.app.config]
folder = ""
repeats = 0
"""

ASKING = '''\
import json
import time
from pathlib import Path

import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

from fedsink.privacy import JointSchedule, PrivacyPlan, RecordClip
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.dp_sinkhorn import Objective

app = ServerApp()


def asked(grid, node, kind, content):
    """The reply of a node, and the seconds until it was there."""
    message = Message(content, dst_node_id=node, message_type=kind)
    start = time.monotonic()
    (number,) = grid.push_messages([message])
    while not (replies := list(grid.pull_messages([number]))):
        time.sleep(0.02)
    return replies[0], time.monotonic() - start


@app.main()
def main(grid, context):
    folder = Path(context.run_config["folder"])
    repeats = context.run_config["repeats"]
    while len(list(grid.get_node_ids())) < 2:
        time.sleep(0.2)
    nodes = {}
    for node in grid.get_node_ids():
        reply, _ = asked(grid, node, "query.identity", RecordDict())
        nodes[reply.content.config_records["identity"]["client"]] = node
    plan = PrivacyPlan(
        rate=0.1, noise_multiplier=2.0, rounds=200, clip=RecordClip(3.0),
        schedule=JointSchedule(), delta=1e-5, capacity=128, nominal_records=719,
    )
    random = torch.Generator().manual_seed(0)
    for number in range(repeats + 1):
        if number == 1:
            (folder / "warm").touch()
        for client, node in sorted(nodes.items()):
            time.sleep(0.5)
            rows = torch.rand(60, 64, generator=random)
            request = GradientRequest(
                round=number + 1, plan=plan, objective=Objective(lam=0.05, classes=10),
                view={"name": "pixel", "shape": [1, 8, 8]}, rows=rows,
                row_labels=torch.arange(60) % 10, potentials=torch.zeros(60),
                self_gradient=torch.zeros_like(rows), run="node-message",
            )
            reply, seconds = asked(grid, node, "train.dp_sinkhorn", request.to_record())
            code = reply.error.code if reply.has_error() else 0
            with (folder / "seconds.jsonl").open("a") as file:
                file.write(json.dumps([number, client, seconds, code]) + "\\n")
    (folder / "done").touch()
'''


class Meter:
    """Processor time and memory of a process and all that came from it.

    A process that ended counts, as long as its parent has not: it is a zombie, or in its parent's
    sum. Memory is the proportional set size: pages that processes share count once.
    """

    def __init__(self, root: int) -> None:
        self.root = root
        self.peak = 0.0

    def seconds(self) -> float:
        """Processor time so far."""
        return sum(sum(ticks) for ticks in self._tree().values()) / TICK

    def memory(self) -> float:
        """Megabytes now."""
        held = 0
        for pid in self._tree():
            try:
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            held += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        self.peak = max(self.peak, held / 1024)
        return held / 1024

    def _tree(self) -> dict[int, list[int]]:
        parents: dict[int, int] = {}
        ticks: dict[int, list[int]] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(path.parent.name)] = int(fields[1])
            ticks[int(path.parent.name)] = [int(field) for field in fields[11:15]]
        tree = {self.root}
        while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
            tree |= more
        return {pid: ticks[pid] for pid in tree if pid in ticks}


def measure(folder: Path, repeats: int) -> None:
    lab = Lab(folder)
    try:
        lab.prepare("fast")
        lab.start_superlink()
        stock = start_stock(lab)
        lab.register(2)
        ours = lab.start_hospital(2)
        app = folder / "app"
        app.mkdir()
        (app / "pyproject.toml").write_text(PROJECT)
        (app / "asking.py").write_text(ASKING)
        meters = {0: Meter(stock.pid), 1: Meter(ours.pid)}
        stop = threading.Event()
        watching = threading.Thread(target=watch, args=(meters, stop))
        watching.start()
        try:
            idle, cost = ask(lab, app, meters, repeats)
        finally:
            stop.set()
            watching.join()
        report(folder, meters, idle, cost, repeats)
    finally:
        lab.stop()


def start_stock(lab: Lab) -> subprocess.Popen[bytes]:
    hospital = lab.register(1)
    certificate = lab.folder / "certs" / "ca.crt"
    return lab.start_process(
        hospital.name, "flower-supernode", "--superlink", f"127.0.0.1:{lab.port}",
        "--root-certificates", certificate, "--auth-supernode-private-key", hospital / "node-key",
        "--port", lab.port - 1 if lab.port > 2000 else lab.port + 1, "--node-config",
        f'policy="{hospital / "policy.toml"}" partition-id=0 num-partitions=2',
    )  # fmt: skip


def watch(meters: dict[int, Meter], stop: threading.Event) -> None:
    while not stop.wait(0.1):
        for meter in meters.values():
            meter.memory()


def ask(
    lab: Lab, app: Path, meters: dict[int, Meter], repeats: int
) -> tuple[dict[int, float], dict[int, float]]:
    """Megabytes of each node at rest, and its processor seconds for all messages but the first."""
    config = lab.folder / "bench.toml"
    config.write_text(f"folder = {json.dumps(str(lab.folder))}\nrepeats = {repeats}\n")
    lab.submitter(Path(sys.executable).with_name("flwr"), "run", app, "lab", "-c", config)
    wait_for(lab.folder / "warm")
    idle = {client: meter.memory() for client, meter in meters.items()}
    before = {client: meter.seconds() for client, meter in meters.items()}
    wait_for(lab.folder / "done")
    return idle, {client: meter.seconds() - before[client] for client, meter in meters.items()}


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 1800
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path.name} did not appear: see the logs in {path.parent}.")
        time.sleep(0.1)


def report(
    folder: Path,
    meters: dict[int, Meter],
    idle: dict[int, float],
    cost: dict[int, float],
    repeats: int,
) -> None:
    seconds: dict[int, list[float]] = {0: [], 1: []}
    for line in (folder / "seconds.jsonl").read_text().splitlines():
        number, client, taken, code = json.loads(line)
        if code:
            raise RuntimeError(f"{NAMES[client]} answered with code {code}: see its log.")
        if number:
            seconds[client].append(taken)
    rows = [
        [
            name,
            f"{statistics.mean(seconds[client]):.2f}",
            f"{min(seconds[client]):.2f} to {max(seconds[client]):.2f}",
            f"{cost[client] / repeats:.2f}",
            f"{idle[client]:.0f}",
            f"{meters[client].peak:.0f}",
        ]
        for client, name in NAMES.items()
    ]
    header = [
        "node",
        "s a message, mean",
        "s, range",
        "CPU-s a message",
        "MB at rest",
        "MB at most",
    ]
    table(header, rows)
    print(
        f"\nratio node-message-time {statistics.mean(seconds[0]) / statistics.mean(seconds[1]):.1f}"
    )
    print(f"ratio node-message-cpu {cost[0] / cost[1]:.1f}")


def main() -> None:
    repeats = arguments(__doc__, 10).repeats
    with tempfile.TemporaryDirectory(prefix="fedsink-node-message-") as folder:
        measure(Path(folder), repeats)


if __name__ == "__main__":
    main()
