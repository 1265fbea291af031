"""Processes of this machine, as Linux shows them."""

from __future__ import annotations

import time
from pathlib import Path


def children(pid: int) -> list[int]:
    """The processes that a process has started and not yet waited for."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


def runners(pid: int) -> list[int]:
    """The fork server of a node's process; beside it is a tracker of multiprocessing's."""
    paths = {child: Path(f"/proc/{child}/cmdline") for child in children(pid)}
    return [child for child, path in paths.items() if b"forkserver" in path.read_bytes()]


def gone(pid: int) -> bool:
    """Waits some seconds for a process; tells whether it ended."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False
