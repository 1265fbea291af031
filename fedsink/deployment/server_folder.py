"""The server's folder: its key, and runs by name, since a submitter names no path."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedsink.errors import ConfigError
from fedsink.protocol.signing import read_private_key
from fedsink.server.folder import RunFolder, locked

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_FILE = "operator.key"
"""Name of the operator's key in the server's folder."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PATIENCE_SECONDS = 30.0  # Flower ends the process of a stopped run some time after `flwr stop`


def deployed_name(value: object) -> str:
    """Returns the value, if it can name a deployed run: one part of a path on any disk."""
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise ConfigError(
            f"A run's name is 1 to 100 of A-Z a-z 0-9 . _ -, the first of them a letter or a "
            f"digit, not {str(value)[:120]!r}."
        )
    return value


def server_home() -> Path:
    """Returns $FEDSINK_STATE, or $XDG_STATE_HOME/fedsink/server (default ~/.local/state)."""
    if named := os.environ.get("FEDSINK_STATE"):
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base).absolute() / "fedsink" / "server"


@contextmanager
def held_run(name: object) -> Iterator[RunFolder]:
    """Yields the folder of a deployed run, held by this process only; it need not exist.

    Guarantees:
        - It lies in the folder `runs` of `server_home`, whatever the name says.
        - That folder has mode 0700; neither it nor the run's is a link.
        - A run that was stopped is waited for, half a minute at most, until its process has ended.
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
    continues = f"The run {name} continues: fetch it when it has ended, or stop it (flwr stop)."
    with locked(os.open(home / "locks" / name, flags, 0o600), continues, _PATIENCE_SECONDS):
        yield RunFolder(run)


def operator_key(path: Path) -> Ed25519PrivateKey | None:
    """Returns the key that signs requests; None where there is no file: nothing is signed."""
    if not path.exists():
        return None
    return read_private_key(path, "Make another one, and tell the owners of the nodes.")


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise ConfigError(f"{path} is a link, and the server's folder holds none: remove it.")
