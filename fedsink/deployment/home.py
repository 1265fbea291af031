"""The server's own folder, and the runs in it by their names: a submitter names no path."""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsink.errors import ClientError, ConfigError
from fedsink.server.folder import RunFolder

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def deployed_name(value: object) -> str:
    """The value, if it can name a deployed run: one part of a path on any disk.

    Raises:
        ConfigError: it cannot.
    """
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise ConfigError(
            f"A run's name is 1 to 100 of A-Z a-z 0-9 . _ -, the first of them a letter or a "
            f"digit, not {str(value)[:120]!r}."
        )
    return value


def server_home() -> Path:
    """$FEDSINK_STATE, or $XDG_STATE_HOME/fedsink/server (default ~/.local/state)."""
    if named := os.environ.get("FEDSINK_STATE"):
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base).absolute() / "fedsink" / "server"


@contextmanager
def run_at_home(name: object) -> Iterator[RunFolder]:
    """The folder of a deployed run, held by this process alone; it need not exist.

    Guarantees:
        - It lies in the folder `runs` of `server_home`, whatever the name says.
        - That folder has mode 0700; neither it nor the run's is a link.

    Raises:
        ConfigError: the name cannot name a run, or the server's folder is not its own.
        ClientError: another process holds the run.
    """
    name, home = deployed_name(name), server_home()
    for folder in (home / "runs", home / "locks"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _refuse_link(folder)
        if stat.S_IMODE(folder.stat().st_mode) & 0o077:
            raise ConfigError(f"{folder} is open to others: chmod 700 it.")
    run = home / "runs" / name
    _refuse_link(run)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    held = os.open(home / "locks" / name, flags, 0o600)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClientError(
                f"The run {name} still goes on: fetch it when it has ended, or stop it (flwr stop)."
            ) from None
        yield RunFolder(run)
    finally:
        os.close(held)


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise ConfigError(f"{path} is a link, and the server's folder holds none: remove it.")
