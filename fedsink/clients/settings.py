"""What the owner of a node decides: its data, its place, its noise. Never taken from a message."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedsink.data.partition import PartitionSpec
from fedsink.data.spec import DataSpec
from fedsink.errors import PrivacyError
from fedsink.privacy import ReproducibleKey, SecretKey


@dataclass(frozen=True)
class NodeSettings:
    """One node's own settings; small and picklable, because engines ship it to their workers.

    Attributes:
        data: which records, and their public description.
        partition: how a simulation deals the records out to `clients` virtual clients.
        clients: number of virtual clients.
        partition_seed: public seed of the deal.
        seed: reproducible noise keyed by (seed, client, round). It is not secret: for
            simulations whose numbers must be rerun. None: secret noise from `key_file`.
        key_file: the operating system's 32 random bytes, mode 0600, outside the run folder.
        journal: SQLite file of what was released under that key (beside it).
        device: "cpu" or "cuda".
        threads: torch threads a client may use.
    """

    data: DataSpec
    partition: PartitionSpec
    clients: int
    partition_seed: int = 0
    seed: int | None = None
    key_file: Path | None = None
    journal: Path | None = None
    device: str = "cpu"
    threads: int = 1

    def key(self) -> ReproducibleKey | SecretKey:
        """The key of this node's noise and batch draws.

        Raises:
            PrivacyError: neither a seed nor a readable key file was given, or a key file
                without a journal.
        """
        if self.seed is not None:
            return ReproducibleKey(self.seed)
        if self.key_file is None:
            raise PrivacyError("A node needs a seed (reproducible noise) or a key_file (secret).")
        if self.journal is None:
            raise PrivacyError(
                "A node with a key_file needs a journal: without one it would answer one round "
                "twice with fresh noise."
            )
        return SecretKey.load(self.key_file)
