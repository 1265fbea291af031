"""The identity of a simulated run: its name, its server's seed, and its secret noise key."""

from __future__ import annotations

import hmac
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.ledger.ledger import Ledger
from fedsink.errors import CheckpointError
from fedsink.privacy.randomness.keys import EntropyKey, ReproducibleKey, SecretKey
from fedsink.protocol.requests import given_name, new_run_name


@dataclass(frozen=True)
class RunIdentity:
    """The group `run` of a run folder's config.yaml, which names the secret key's file."""

    name: str  # public
    server_seed: int  # keys the server's latents and initial weights
    key_file: Path | None  # None where noise is reproducible (`seed=`)

    @property
    def ledger(self) -> Path | None:
        """The ledger of this run's charges and releases, beside the key."""
        return self.key_file.with_suffix(".sqlite") if self.key_file else None

    @property
    def states(self) -> Path:
        """The clients' states, for a run that is resumed: private, so beside the key."""
        place = self.key_file.parent if self.key_file else key_folder()
        return place / f"{self.name}.states"

    @classmethod
    def fresh(cls, seed: int | None) -> RunIdentity:
        name = new_run_name()
        if seed is not None:
            return cls(name, seed, None)
        return cls(name, secrets.randbits(62), key_folder() / f"{name}.key")

    @classmethod
    def from_config(cls, run: dict[str, Any], *, finished: bool = False) -> RunIdentity:
        """The identity that `to_config` wrote; only an unfinished run needs its key.

        Guarantees:
            - Its key, and what lies beside the key, are of that name in this user's `key_folder`,
              whatever a received folder says.
        """
        name, key_file = str(run["name"]), Path(run["key_file"]) if run["key_file"] else None
        try:
            given_name(name)
        except ValueError as error:
            raise CheckpointError(f"The run's name is {name[:64]!r}: {error}.") from None
        if key_file and key_file.resolve() != (key_folder() / f"{name}.key").resolve():
            raise CheckpointError(
                f"The run's key is said to be {key_file}, and this user's keys lie in "
                f"{key_folder()}: continue the run as the user who started it, with the same "
                "XDG_STATE_HOME."
            )
        identity = cls(name, int(run["server_seed"]), key_file)
        if key_file and not finished and not key_file.is_file():
            raise CheckpointError(
                f"The run's secret noise key {key_file} is missing: without it the rounds after "
                "the checkpoint would get other noise. Start a new run."
            )
        if identity.ledger and not finished and not identity.ledger.is_file():
            raise CheckpointError(
                f"The run's ledger {identity.ledger} is missing: without it rounds could be "
                "answered twice. Start a new run."
            )
        return identity

    def to_config(self) -> dict[str, Any]:
        key_file = str(self.key_file) if self.key_file else None
        return {"name": self.name, "server_seed": self.server_seed, "key_file": key_file}

    def seal(self, digest: str) -> str:
        """Returns a keyed hash of private content: without the key nobody can test a guess."""
        key = self.key_file.read_bytes() if self.key_file else b"reproducible"
        return hmac.new(key, digest.encode(), "sha256").hexdigest()

    def create_key(self) -> None:
        """Draws the secret key from the operating system, mode 0600, if this run has one.

        An empty ledger is made beside it: a run that is resumed without its ledger is refused.
        """
        if self.key_file and self.ledger:
            self.key_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            SecretKey.create(self.key_file, self.name)
            Ledger(self.ledger, durable=False).close()

    def delete_key(self) -> None:
        """Deletes key, ledger, stored replies and states, after the run's last release."""
        shutil.rmtree(self.states, ignore_errors=True)
        if self.key_file and self.ledger:
            for path in (self.key_file, *self.ledger.parent.glob(self.ledger.name + "*")):
                path.unlink(missing_ok=True)
            shutil.rmtree(self.ledger.with_suffix(".replies"), ignore_errors=True)


def key_folder() -> Path:
    """The folder of all keys: outside every run folder, readable only by the user."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "fedsink" / "keys"


def kind_of_noise(node: NodeSettings) -> str:
    """The kind of the simulated clients' noise key, as privacy.json names it."""
    if node.seed is not None:
        return ReproducibleKey.kind
    return EntropyKey.kind if node.noise == "secure" else SecretKey.kind
