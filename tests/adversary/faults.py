"""Faults of a node's process: death, a full disk, closed doors, a clock that jumps."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from types import FrameType
from typing import Any

import fedsink
from fedsink.clients.owner.ledger.ledger import Ledger

Fault = Callable[[], object]
"""What a process does to itself."""

_PACKAGE = str(Path(str(fedsink.__file__)).parent)
_LIBC = ctypes.CDLL(None, use_errno=True)
_CAPABILITIES_3 = 0x20080522  # the layout of three pairs of words, see capset(2)
_NEW_USER_AND_MOUNTS = 0x10000000 | 0x00020000


class AtStep:
    """Lets a fault happen at one step of the way from the committed charge to the reply.

    A step, from 1, is a line of fedsink that is reached for the first time, or an instruction of
    SQLite; one beyond the last is the last (SQLite takes some more or less of them).
    """

    def __init__(self, step: int, fault: Fault) -> None:
        self.taken = 0
        self._step = step
        self._fault = fault
        self._seen: set[tuple[str, int]] = set()

    def __call__(self) -> None:
        claim = Ledger.claim

        def claim_and_count(ledger: Ledger, *arguments: Any) -> Any:
            claims = claim(ledger, *arguments)
            ledger._database.connection.set_progress_handler(self._take, 1)
            sys.settrace(self._trace)
            frame = sys._getframe().f_back
            while frame is not None:
                frame.f_trace = self._trace
                frame = frame.f_back
            return claims

        Ledger.claim = claim_and_count  # type: ignore[method-assign]

    def before_the_reply_leaves(self) -> None:
        """The last step."""
        if self.taken < self._step:
            self._fault()

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        place = (frame.f_code.co_filename, frame.f_lineno)
        if not place[0].startswith(_PACKAGE):
            return None
        if place not in self._seen:
            self._seen.add(place)
            self._take()
        return self._trace

    def _take(self) -> None:
        self.taken += 1
        if self.taken == self._step:
            self._fault()


def nothing() -> None:
    """No fault."""


def kill_9() -> None:
    """The process ends here."""
    os.kill(os.getpid(), signal.SIGKILL)


class FullDisk:
    """No file of the process grows beyond so many bytes: a write stops in its midst and fails.

    `deadly`: the process ends in the midst of that write.
    """

    def __init__(self, size: int, *, deadly: bool = False) -> None:
        self._size = size
        self._deadly = deadly

    def __call__(self) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if self._deadly else signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._size, self._size))


def lose_privileges() -> None:
    """Permissions hold for this process, even if its user is the superuser."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0)
    if os.geteuid() == 0 and _LIBC.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "the process keeps its capabilities")


def jumping_clock() -> None:
    """Every look at the clock shows another time, decades or a day apart."""
    times = cycle([1.7e9, 0.0, 4.1e9, 1.6e9, 1.7e9 + 86400.0, 1.7e9 - 86400.0])
    time.time = lambda: next(times)
    time.time_ns = lambda: int(next(times) * 1e9)


def mount_small_disk(folder: Path, size: int) -> bool:
    """Mounts a small disk for this process and its children; False if the system forbids it."""
    user, group = os.getuid(), os.getgid()
    if _LIBC.unshare(_NEW_USER_AND_MOUNTS) != 0:
        return False
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    options = f"size={size},mode=0700,uid={user},gid={group}"
    return _LIBC.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, options.encode()) == 0
