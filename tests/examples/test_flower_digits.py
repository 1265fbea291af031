"""The app for Flower, as `flwr run .` runs it: in Flower's simulation, and on nodes."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.constant import MAX_FILE_BYTES, MAX_TOTAL_BYTES

APP = Path(__file__).resolve().parents[2] / "examples" / "flower-digits"
BIN = Path(sys.executable).parent
NODES = 10
PATIENCE = 400.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Flower:
    """A SuperLink on 127.0.0.1 with its own home, and the nodes that are started beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        homes = {"FLWR_HOME": str(folder / "flwr"), "XDG_STATE_HOME": str(folder / "state")}
        path = os.pathsep.join((str(BIN), os.environ.get("PATH", "")))
        self.environment = {**os.environ, **quiet, **homes, "PATH": path, "OMP_NUM_THREADS": "1"}

    def start(self, program: str, *words: object) -> None:
        with (self.folder / f"{len(self._started)}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(word) for word in (BIN / program, *words)],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)

    def start_superlink(self, *words: object) -> str:
        """Starts a SuperLink, tells Flower's command about it, and waits; returns its address."""
        port = free_port()
        self.start(
            "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", port,
            "--disable-runtime-dependency-installation", *words,
        )  # fmt: skip
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\n'
            f'address = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as attempt:
                if attempt.connect_ex(("127.0.0.1", port)) == 0:
                    return f"127.0.0.1:{port}"
            time.sleep(0.2)
        raise AssertionError((self.folder / "0.log").read_text())

    def run(self, *words: str) -> Path:
        """`flwr run .` to the end of the run; returns the run folder that the server names."""
        command = [str(BIN / "flwr"), "run", ".", "--stream", *words]
        done = subprocess.run(
            command, cwd=APP, env=self.environment, capture_output=True, text=True, timeout=PATIENCE
        )
        said = done.stdout + done.stderr
        logs = "".join(path.read_text() for path in self.folder.glob("*.log"))
        found = re.search(r"Generator and guarantee: (\S+)", said)
        assert found is not None, said + logs
        return Path(found[1])

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in reversed(self._started):
                try:
                    os.killpg(process.pid, number)
                    process.wait(timeout=10)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    continue


@pytest.fixture
def flower(tmp_path: Path) -> Iterator[Flower]:
    flower = Flower(tmp_path)
    try:
        yield flower
    finally:
        flower.stop()


def check(flower: Flower, run: Path, rounds: int, epsilon: float) -> None:
    """The run has ended under its guarantee, and every node's ledger was charged for it."""
    assert json.loads((run / "metrics.json").read_text())["rounds"] == rounds
    stated = json.loads((run / "privacy.json").read_text())
    assert 0.9 * epsilon < stated["epsilon"] <= epsilon
    assert (run / "generator.safetensors").is_file()
    policy = flower.folder / "state" / "fedsink" / "flower-digits" / "policy.toml"
    shown = subprocess.run(
        [sys.executable, "-m", "fedsink", "ledger", "show", f"policy={policy}"],
        env=flower.environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "flower-digits" in shown.stdout, shown.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_runs_in_flowers_simulation(flower: Flower) -> None:
    flower.start_superlink("--simulation")
    run = flower.run(
        "--federation-config",
        f"num-supernodes={NODES} client-resources-num-cpus=1",
        "--run-config",
        "rounds=120",
    )
    check(flower, run, 120, 10.0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_runs_on_a_superlink_with_nodes(flower: Flower) -> None:
    address = flower.start_superlink()
    for number in range(NODES):
        flower.start(
            "flower-supernode", "--insecure", "--superlink", address,
            "--host", "127.0.0.1", "--port", free_port(),
            "--node-config", f"partition-id={number} num-partitions={NODES}",
        )  # fmt: skip
    run = flower.run("--run-config", "rounds=60 eps=5.0")
    check(flower, run, 60, 5.0)


def test_it_is_within_the_limits_of_flowers_hub() -> None:
    files = [path for path in APP.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    sizes = [path.stat().st_size for path in files]
    assert max(sizes) <= min(MAX_FILE_BYTES, 10**6)
    assert sum(sizes) <= min(MAX_TOTAL_BYTES, 10**7)
    project = tomllib.loads((APP / "pyproject.toml").read_text())["project"]
    assert [name for name in project["dependencies"] if re.match(r"fedsink\b", name)]


def test_flower_packs_code_and_policy() -> None:
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(APP))) as fab:
        names = set(fab.namelist())
    package = {"__init__.py", "client_app.py", "server_app.py", "policy.toml"}
    assert {f"flower_digits/{name}" for name in package} <= names
