"""The rounds of a plan in a loop of one's own: each gives a secret sample and one noisy release.

>>> import torch
>>> from fedsink.privacy import NoiseKey, PrivacyPlan, RecordClip
>>> plan = PrivacyPlan.solve(rate=0.1, clip=RecordClip(1.0), delta=1e-5, eps=3, rounds=2)
>>> data, released = torch.ones(50, 4), []
>>> for step in plan.steps(NoiseKey.reproducible(0)):
...     gradients = data[step.sample(len(data))]  # one row a record; there may be none
...     released.append(step.release(plan.clip.sum(gradients)))
>>> [tuple(noised.shape) for noised in released]
[(4,), (4,)]
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import torch

from fedsink.errors import PrivacyError
from fedsink.files import write_atomic
from fedsink.privacy.clips import Clipped, clipped_by
from fedsink.privacy.randomness.keys import EntropyKey, Key, ReproducibleKey, SecretKey
from fedsink.values import privacy_checks as checks
from fedsink.values import read_json

if TYPE_CHECKING:
    from fedsink.privacy.plan import PrivacyPlan


class NoiseKey:
    """The key of samples and noise: it gives every round of a client once.

    `secret` is for one process, `reproducible` for experiments whose noise anybody may subtract,
    `secure` is float-safe. `kept` also outlives a crash: noise drawn a second time under another
    total would show the data by their difference, so it notes each round before it is released.

    Guarantees:
        - No two clients, rounds or plans of one key have the same sample or noise.
        - A round is released once, also by a key that was kept and read again.
        - The rounds of a client belong to one plan: under another, its ε would be left out.
        - A key that is kept is open in one place at a time, and never without its journal.
        - It is neither copied nor pickled.
    """

    def __init__(self, key: Key) -> None:
        self._key = key
        self._journal: Path | None = None
        self._lock: IO[bytes] | None = None  # held as long as this object lives
        self._released: dict[str, tuple[int, str]] = {}  # last round and its plan, by client

    @classmethod
    def secret(cls) -> NoiseKey:
        """Returns a key from the operating system's random bytes, forgotten with this process."""
        return cls(SecretKey(os.urandom(32), "loop"))

    @classmethod
    def reproducible(cls, seed: int) -> NoiseKey:
        """Returns a key that gives the same noise again for the same seed: it protects nothing."""
        return cls(ReproducibleKey(seed))

    @classmethod
    def secure(cls) -> NoiseKey:
        """Returns a key for float-safe noise, which is never drawn again; needs OpenDP."""
        return cls(EntropyKey())

    @classmethod
    def kept(cls, path: str | Path) -> NoiseKey:
        """Returns the key in the file PATH, made if it is missing; PATH.released notes its rounds.

        Raises:
            PrivacyError: Another `NoiseKey` has the file open, a file is damaged, the journal is
                missing, or others can read the key.
        """
        path = Path(path)
        if not path.parent.is_dir():
            raise PrivacyError(
                f"the key {path} has no folder {path.parent}: make it, or choose another."
            )
        journal = path.with_name(f"{path.name}.released")
        if not path.exists() and not journal.exists():
            write_atomic(journal, b"{}", mode=0o600)  # first: a key without one is refused
            SecretKey.create(path, "loop")
        key = cls(SecretKey.load(path))
        key._lock = path.open("rb")
        try:
            fcntl.flock(key._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PrivacyError(
                f"the key {path} is open already: two loops would draw the same noise. End the "
                "other one, or take another key."
            ) from None
        try:
            read = read_json(journal.read_bytes()).items()
            released = {str(k): (int(last), str(plan)) for k, (last, plan) in read}
        except (OSError, ValueError, AttributeError, TypeError):
            raise PrivacyError(
                f"{journal}, which notes the rounds that the key has released, is missing or "
                "damaged: take another key, and add up the ε of both."
            ) from None
        key._journal, key._released = journal, released
        return key

    @property
    def kind(self) -> str:
        """One of reproducible, secret and secure."""
        return self._key.kind

    def last(self, client: int) -> int:
        """Returns the last round that was released for a client; 0 before the first."""
        return self._released.get(str(client), (0, ""))[0]

    def expect(self, client: int, plan: PrivacyPlan) -> str:
        """Returns the plan's digest; raises PrivacyError where the client's rounds are another's.

        ε, δ and the sensitivity follow from what is digested, the number of rounds among it.
        """
        values = json.dumps(plan.to_dict(), sort_keys=True).encode()
        digest = hashlib.sha256(values).hexdigest()
        last, before = self._released.get(str(client), (0, digest))
        if before != digest:
            key = (
                "this key" if self._journal is None else f"the key {self._journal.with_suffix('')}"
            )
            raise PrivacyError(
                f"{key} has released {last} rounds of another plan for client {client}, whose ε "
                "would be missing from this plan's: continue that plan, unchanged down to its "
                "number of rounds, or make another key and add up the two ε."
            )
        return digest

    def note(self, client: int, round: int, plan: PrivacyPlan) -> None:
        """Notes that a plan's round is released; raises PrivacyError for one that was before."""
        digest = self.expect(client, plan)
        if round <= self.last(client):
            raise PrivacyError(
                f"round {round} of client {client} was released before, and its noise is never "
                f"drawn again: continue with after={self.last(client)}, or take another key."
            )
        self._released[str(client)] = round, digest
        if self._journal is not None:
            write_atomic(self._journal, json.dumps(self._released).encode(), mode=0o600)

    def stream(self, purpose: str, client: int, round: int) -> Any:
        """Returns the randomness of one purpose."""
        return self._key.stream(purpose, client=client, round=round)

    def __reduce__(self) -> NoReturn:
        raise PrivacyError(
            "a noise key is neither copied nor pickled, as its copy would draw the same noise: "
            "give each process a client of its own and a key of its own."
        )

    def __copy__(self) -> NoReturn:
        self.__reduce__()

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__reduce__()


class Step:
    """One round: `sample`, then `release`, once each.

    Attributes:
        round: t from 1 to T.
    """

    def __init__(self, plan: PrivacyPlan, key: NoiseKey, client: int, round: int) -> None:
        self.round = round
        self._plan, self._key, self._client = plan, key, client
        self._sampled: tuple[int, torch.Tensor] | None = None
        self.released = False

    def sample(self, n: int) -> torch.Tensor:
        """Returns which of n records take part, int64 indices; there may be none of them.

        Every record takes part with the plan's rate, and at most `capacity` of them do. The same
        n gives the same indices; another n is refused.
        """
        plan = self._plan
        if plan.nominal_records is not None and n > plan.nominal_records:
            raise PrivacyError(
                f"the plan accounts for {plan.nominal_records} records, received n={n}: make a "
                "plan for more."
            )
        if self._sampled is None:
            stream = self._key.stream("sample", self._client, self.round)
            if plan.capacity is None:
                self._sampled = n, plan.sampler.draw(n, stream)
            else:
                places, taken = plan.sampler.draw_at_most(n, plan.capacity, stream)
                self._sampled = n, places[taken]
        if self._sampled[0] != n:
            raise PrivacyError(
                f"round {self.round} was sampled from {self._sampled[0]} records, received n={n}: "
                "a round has one sample."
            )
        return self._sampled[1]

    def release(self, total: Clipped) -> torch.Tensor | dict[str, torch.Tensor]:
        """Returns the total plus the plan's noise, float32, in the form that was clipped.

        Raises:
            PrivacyError: The round was released before or never sampled, or the total was made by
                another clip or of more gradients than records were sampled (a capacity's places
                may be filled with zeros).
        """
        if self.released:
            raise PrivacyError(
                f"round {self.round} was released: a second release costs ε again and is no part "
                "of the plan."
            )
        clipped_by(self._plan.clip, total)  # before the round is noted
        if self._sampled is None:
            raise PrivacyError(
                f"round {self.round} was released without step.sample(n): the plan's ε counts on "
                "that secret sample."
            )
        sampled = len(self._sampled[1])
        if total.records is not None and total.records > (self._plan.capacity or sampled):
            raise PrivacyError(
                f"the total is of {total.records} gradients, and round {self.round} sampled "
                f"{sampled} records: pass one gradient for each record of step.sample(n), not the "
                "batch's summed .grad."
            )
        self._key.note(self._client, self.round, self._plan)
        self.released = True
        noised = self._plan.release(total, self._key.stream("noise", self._client, self.round))
        return total.formed(noised)


def steps(plan: PrivacyPlan, key: NoiseKey, client: int, after: int) -> Iterator[Step]:
    """Yields a plan's rounds, see `PrivacyPlan.steps`."""
    if not isinstance(key, NoiseKey):
        raise PrivacyError(
            f"steps takes a key, as NoiseKey.secret() or NoiseKey.kept(PATH), received {key!r}."
        )
    checks.count("client", client, minimum=0)
    checks.count("after", after, minimum=0)
    key.expect(client, plan)
    if after != key.last(client):
        raise PrivacyError(
            f"client {client} has had {key.last(client)} rounds of this key, received "
            f"after={after}: a second loop would cost ε again. Continue with "
            f"after={key.last(client)}, or make another key and add up the two ε."
        )
    return _rounds(plan, key, client, after)


def _rounds(plan: PrivacyPlan, key: NoiseKey, client: int, after: int) -> Iterator[Step]:
    for round in range(after + 1, plan.rounds + 1):
        step = Step(plan, key, client, round)
        yield step
        if not step.released:
            raise PrivacyError(
                f"round {round} was not released: release an empty sample like any other, or its "
                "absence tells that it was empty."
            )
