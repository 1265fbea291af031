"""Decisions of a node's owner: its data, its place, its noise. Never taken from a message."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from fedsink.clients.owner.policy import Policy
from fedsink.data.partition import PartitionSpec
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, PrivacyError
from fedsink.privacy import ReproducibleKey, SecretKey
from fedsink.privacy.randomness.keys import EntropyKey

Noise = Literal["fast", "secure"]


@dataclass(frozen=True)
class NodeSettings:
    """Settings of one node; small and picklable, because engines send them to workers.

    Attributes:
        data: names the records, with their public description.
        partition: rule by which a simulation deals the records out to `clients` virtual clients;
            None: all records are this client's.
        clients: number of clients; a class schedule tells them apart by their numbers.
        partition_seed: public seed of the deal.
        keep: the numbers of the clients of a simulation that hold what is dealt to them, while the
            others hold nothing; None: all of them.
        seed: reproducible noise keyed by (seed, client, round). It is not secret: for
            simulations whose numbers must be rerun. None: noise that nobody can draw again.
        noise: "fast" draws it in floating point from `key_file`; "secure" is float-safe and from
            the operating system's entropy.
        key_file: the operating system's 32 random bytes, mode 0600, outside the run folder.
        lent: the key itself, for a simulation's processes on other machines than the ledger: they
            answer only uses admitted there (`node.grant`). None: the key is in `key_file`.
        ledger: SQLite file of charges and releases; needed wherever there is neither a seed nor a
            `lent` key.
        states: folder where a simulation keeps its clients' states from message to message, for a
            run that continues; None: in memory only. Under a policy it is the policy's.
        states_at_once: write states after every message, because any process may get the client's
            next one; else when the server makes a checkpoint.
        masked: a simulated client answers the trips of secure aggregation; under a policy its
            table [aggregation] decides.
        policy: the owner's policy file; None in a simulation that needs none.
        unprotected: answer plans without clip and noise: only in simulations of public data, and
            never under a policy.
        pooled: a simulation answers for a block of clients by one sum, and draws the noise of a
            whole cohort's sum once (`BatchedAnswer.compute_each`); such clients have no replies.
        device: "cpu", "cuda" or "cuda:N", of the records and of everything computed from them.
            Draws are those of the CPU on every device.
        threads: torch threads a client may use.

    Raises:
        ConfigError: a client is to be kept that does not exist, or twice.
        PrivacyError: secure noise was asked for without OpenDP, or reproducible noise together with
            secure noise or a policy, or unprotected answers together with a policy, or a lent key
            together with any other source of noise, a ledger or a policy.
    """

    data: DataSpec
    partition: PartitionSpec | None
    clients: int
    partition_seed: int = 0
    keep: tuple[int, ...] | None = None
    seed: int | None = None
    noise: Noise = "fast"
    key_file: Path | None = None
    lent: SecretKey | None = None
    ledger: Path | None = None
    states: Path | None = None
    states_at_once: bool = False
    masked: bool = False
    policy: Path | None = None
    unprotected: bool = False
    pooled: bool = False
    device: str = "cpu"
    threads: int = 1

    def __post_init__(self) -> None:
        if self.noise not in ("fast", "secure"):
            raise PrivacyError(f"noise is fast or secure, not {self.noise!r}.")
        if self.seed is not None and self.noise == "secure":
            raise PrivacyError(
                f"noise=secure comes from the operating system and cannot be repeated: leave out "
                f"seed={self.seed}."
            )
        if self.noise == "secure":
            EntropyKey()  # refused now where OpenDP is missing, not at the first answer
        if self.seed is not None and self.policy is not None:
            raise PrivacyError("A node under a policy never uses a seed's noise: leave it out.")
        if self.unprotected and self.policy is not None:
            raise PrivacyError("A node under a policy never answers without protection.")
        if self.pooled and (self.policy is not None or self.noise == "secure"):
            raise PrivacyError(
                "Clients under a policy or with secure noise have replies of their own: "
                "noise.draw=clients."
            )
        others = (self.seed, self.key_file, self.ledger, self.policy)
        if self.lent is not None and (self.noise != "fast" or any(o is not None for o in others)):
            raise PrivacyError("A lent key replaces a key file and a ledger: leave both out.")
        seen = set[object]()
        for number in self.keep or ():
            if type(number) is not int or not 0 <= number < self.clients or number in seen:
                raise ConfigError(
                    f"partition.keep must list numbers of clients from 0 to {self.clients - 1}, "
                    f"each once: {number!r} is repeated or none of them."
                )
            seen.add(number)

    @classmethod
    def from_policy(
        cls,
        policy: Policy,
        *,
        clients: int = 1,
        partition: PartitionSpec | None = None,
        partition_seed: int = 0,
        device: str = "cpu",
        threads: int = 1,
    ) -> NodeSettings:
        """Returns the settings of a node under a policy; makes the state folder and its key.

        Args:
            policy: the owner's policy, as read from the file.
            clients: number of clients that take part; a node's own number is below it.
            partition: rule that deals the policy's records out in a simulation.
            partition_seed: public seed of the deal.
            device: "cpu", "cuda" or "cuda:N".
            threads: torch threads a client may use.

        Raises:
            ConfigError: a simulation under a policy that names operators: nobody signs there.
            PrivacyError: the state folder cannot be made, or secure noise needs OpenDP.
        """
        if partition is not None and policy.operators:
            raise ConfigError(
                f"{policy.path.name} names operators, and a simulation's requests are "
                "unsigned: leave [operators.keys] out of a copy for it."
            )
        key_file = policy.key_file if policy.noise == "fast" else None
        try:
            policy.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise PrivacyError(
                f"the state folder {policy.state} cannot be made ({error.strerror}): fix "
                "state.folder in the policy."
            ) from None
        if key_file is not None and not key_file.exists():
            # Another process may be first; otherwise loading raises.
            with contextlib.suppress(PrivacyError):
                SecretKey.create(key_file, policy.lineage)
        return cls(
            data=policy.data,
            partition=partition,
            clients=clients,
            partition_seed=partition_seed,
            noise=cast("Noise", policy.noise),
            key_file=key_file,
            ledger=policy.ledger,
            policy=policy.path,
            device=device,
            threads=threads,
        )

    @property
    def replies(self) -> Path | None:
        """Folder of released replies, beside the ledger."""
        if self.ledger is None:
            return None
        if self.policy is not None:
            return self.ledger.with_name("replies")
        return self.ledger.with_suffix(".replies")

    def key(self) -> ReproducibleKey | SecretKey | EntropyKey:
        """Returns the key of this node's noise and batch draws.

        Raises:
            PrivacyError: there is neither a seed nor a readable key file nor secure noise, or
                noise without a ledger.
        """
        if self.seed is not None:
            return ReproducibleKey(self.seed)
        if self.lent is not None:
            return self.lent
        if self.key_file is None and self.noise == "fast":
            raise PrivacyError("A node needs a seed (reproducible noise) or a key_file (secret).")
        if self.ledger is None:
            raise PrivacyError(
                "A node without a seed needs a ledger: without one it would answer one round "
                "twice with fresh noise."
            )
        if self.noise == "secure":
            return EntropyKey()
        return SecretKey.load(cast(Path, self.key_file))
