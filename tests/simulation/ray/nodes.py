"""A Ray cluster of several nodes on this machine, each with its own processes and id."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

# A lost node is noticed within some seconds; a new one on a busy machine has time to answer.
_WATCHFUL = {
    "health_check_initial_delay_ms": 5000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 3,
}
_START = 60.0
_TRIES = 4


class Nodes:
    """A head without room for any cohort, and nodes as `ray start` starts them; all write logs."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", **(environment or {})}
        self._lock = threading.Lock()
        self._started: list[subprocess.Popen[bytes]] = []
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        # Short, for the sockets in it; Ray's own would tell other processes of this head.
        self._session = tempfile.mkdtemp(prefix="ray-")
        self._start(
            "--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false",
            f"--temp-dir={self._session}",
            f"--system-config={json.dumps(_WATCHFUL)}",
        )  # fmt: skip

    @property
    def workers(self) -> list[subprocess.Popen[bytes]]:
        """All nodes except the head."""
        return self._started[1:]

    def add(self, cpus: int = 2, **environment: str) -> subprocess.Popen[bytes]:
        """Starts one more node, with an environment that differs from the others'."""
        return self._start(f"--address={self.address}", f"--num-cpus={cpus}", **environment)

    def kill(self, node: subprocess.Popen[bytes]) -> None:
        """Ends all processes of a node at once, as a power cut does."""
        self._started.remove(node)
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()

    def head_seconds(self) -> float:
        """CPU time that the head's processes have taken so far."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                _, _, group, *_, user, system = stat.read_text().rpartition(")")[2].split()[:13]
                if int(group) == self._started[0].pid:
                    ticks += int(user) + int(system)
        return ticks / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """Ends all processes."""
        for node in reversed(self._started):
            node.terminate()
        for node in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            node.wait()
        shutil.rmtree(self._session, ignore_errors=True)

    def _start(self, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        """Starts a node, again if Ray's 15 seconds were too few for it: the machine may be busy."""
        command = [
            str(Path(sys.executable).with_name("ray")), "start", *words, "--block",
            "--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0",
            f"--object-store-memory={100 << 20}", "--disable-usage-stats",
        ]  # fmt: skip
        for _ in range(_TRIES):
            with self._lock:
                log = self._folder / f"node-{len(list(self._folder.glob('node-*.log')))}.log"
                with log.open("wb") as file:
                    node = subprocess.Popen(
                        command,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        env=self._environment | environment,
                        start_new_session=True,
                    )
                self._started.append(node)
            deadline = time.monotonic() + _START
            while node.poll() is None and time.monotonic() < deadline:
                if "Ray runtime started" in log.read_text():
                    return node
                time.sleep(0.1)
            with contextlib.suppress(ProcessLookupError, ValueError):  # killed by a siege
                self.kill(node)
        raise RuntimeError(f"A node did not start:\n{log.read_text()}")
