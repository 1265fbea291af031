"""What makes one run itself: its name, the server's seed, and where its secret key lies."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsink.errors import CheckpointError
from fedsink.privacy import SecretKey


@dataclass(frozen=True)
class RunIdentity:
    """Stored in the run folder's config.yaml under `run`, except for the key itself.

    Attributes:
        name: public name of the run.
        server_seed: keys the server's latents and initial weights.
        key_file: None where noise is reproducible (`seed=`).
    """

    name: str
    server_seed: int
    key_file: Path | None

    @property
    def journal(self) -> Path | None:
        """What was released under the key, beside it."""
        return self.key_file.with_suffix(".sqlite") if self.key_file else None

    @classmethod
    def fresh(cls, seed: int | None) -> RunIdentity:
        """A new run; no key is made yet."""
        name = time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(4)
        if seed is not None:
            return cls(name, seed, None)
        return cls(name, secrets.randbits(62), key_folder() / f"{name}.key")

    @classmethod
    def from_config(cls, run: dict[str, Any], *, finished: bool = False) -> RunIdentity:
        """The identity that `to_config` wrote; a finished run needs its key no more.

        Raises:
            CheckpointError: the secret key is gone, so the run cannot go on.
        """
        key_file = Path(run["key_file"]) if run["key_file"] else None
        if key_file and not finished and not key_file.is_file():
            raise CheckpointError(
                f"The run's secret noise key {key_file} is missing: without it the rounds after "
                "the checkpoint would get other noise, so this run cannot go on. Start a new one."
            )
        return cls(str(run["name"]), int(run["server_seed"]), key_file)

    def to_config(self) -> dict[str, Any]:
        """For config.yaml."""
        return {
            "name": self.name,
            "server_seed": self.server_seed,
            "key_file": str(self.key_file) if self.key_file else None,
        }

    def create_key(self) -> None:
        """Draw the secret key from the operating system, mode 0600, if this run has one."""
        if self.key_file:
            self.key_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            SecretKey.create(self.key_file, self.name)

    def delete_key(self) -> None:
        """Forget key and journal; nothing more can be released under them."""
        if self.key_file and self.journal:
            for path in (self.key_file, *self.journal.parent.glob(self.journal.name + "*")):
                path.unlink(missing_ok=True)


def key_folder() -> Path:
    """Where keys live: outside every run folder, readable by the user alone."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "fedsink" / "keys"
