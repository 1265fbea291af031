"""The kinds of noise key: reproducible (a simulation's seed), secret (a file), secure (entropy).

>>> ReproducibleKey(seed=7).stream("noise", client=3, round=12).normal(2).shape
torch.Size([2])
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from fedsink.errors import PrivacyError
from fedsink.files import write_once
from fedsink.privacy.randomness.noise import Numbers, Stream, Streams
from fedsink.privacy.randomness.secure import SecureStream
from fedsink.values import read_json

_SECRET_BYTES = 32


class Key(Protocol):
    """Interface of a noise key: a kind to report and a stream for each use.

    Attributes:
        kind: ``"reproducible"``, ``"secret"`` or ``"secure"``.
        repeatable: True if equal arguments give the same stream again. Otherwise a client must
            store its releases to answer a repeated request.
    """

    kind: ClassVar[str]
    repeatable: ClassVar[bool]

    def stream(self, purpose: str, *, client: int, round: int, request: bytes = b"") -> Stream:
        """Returns the stream for one purpose at one client in one round."""


@dataclass(frozen=True)
class ReproducibleKey:
    """Noise keyed by (seed, purpose, client, round): the same under every engine and cohort size.

    It is not secret: whoever knows the seed can subtract the noise. For simulations only.

    Args:
        seed: An integer ≥ 0.

    Raises:
        PrivacyError: If the seed is not an integer ≥ 0.
    """

    seed: int
    kind: ClassVar[str] = "reproducible"
    repeatable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise PrivacyError(f"seed must be an integer ≥ 0, received {self.seed!r}.")

    def stream(self, purpose: str, *, client: int, round: int, request: bytes = b"") -> Stream:
        """Returns the stream of (seed, purpose, client, round); see `streams`."""
        return self._all(purpose, round).of(client)

    def streams(
        self, purpose: str, clients: Numbers, *, round: int, request: bytes = b""
    ) -> Streams:
        """Returns each client's stream.

        `request` is ignored: engines sum floats in different orders, so the same round's images
        differ in their last bits between engines, and noise bound to those bytes would differ
        altogether.
        """
        return Streams(self._all(purpose, round), clients)

    def _all(self, purpose: str, round: int) -> Stream:
        """Returns the parent of all clients' streams; nothing is drawn from it."""
        return Stream(b"fedsink reproducible", self.seed, purpose, round)


@dataclass(frozen=True)
class SecretKey:
    """Noise from 32 secret bytes, bound to run, purpose, client, round and request.

    Guarantees:
        - An identical request gets the same bytes; a request that differs in one bit, in the
          run, the client or the round gets fresh noise.
        - The secret is not shown by repr and not written into errors.
        - A key file is created with mode 0600 and never overwritten; a file that others can
          read is refused.

    Args:
        secret: 32 bytes from the operating system.
        run: Public name that the key belongs to: of data set and run, ``"mnist/2024-05-01"``, or of
            a node's lineage.

    Raises:
        PrivacyError: If the secret is not 32 bytes or `run` is empty.
    """

    secret: bytes = field(repr=False)
    run: str
    kind: ClassVar[str] = "secret"
    repeatable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.secret, bytes) or len(self.secret) != _SECRET_BYTES:
            raise PrivacyError(
                f"a secret key holds {_SECRET_BYTES} bytes: make one with SecretKey.create."
            )
        if not isinstance(self.run, str) or not self.run:
            raise PrivacyError(
                f"a secret key belongs to a named run, received {self.run!r}: "
                "pass a non-empty name of data set and run."
            )

    def stream(self, purpose: str, *, client: int, round: int, request: bytes = b"") -> Stream:
        """Returns the stream of exactly this `request`, bytes (at a node their digest)."""
        return self._all(purpose, round, request).of(client)

    def streams(
        self, purpose: str, clients: Numbers, *, round: int, request: bytes = b""
    ) -> Streams:
        """Returns each client's stream of exactly this `request`."""
        return Streams(self._all(purpose, round, request), clients)

    def _all(self, purpose: str, round: int, request: bytes) -> Stream:
        digest = hashlib.sha256(request).digest()
        return Stream(self.secret, "fedsink secret", self.run, purpose, round, digest)

    @classmethod
    def create(cls, path: str | Path, run: str) -> SecretKey:
        """Draws a key from the operating system and writes it to a new file of mode 0600.

        The file appears complete or not at all. Raises PrivacyError if `path` already exists: a
        key is never replaced, because noise drawn from it may have been released.
        """
        path = Path(path)
        key = cls(os.urandom(_SECRET_BYTES), run)
        content = json.dumps({"run": run, "secret": key.secret.hex()}).encode() + b"\n"
        try:
            new = write_once(path, content)
        except OSError as error:
            raise PrivacyError(
                f"the key file {path} cannot be written ({error.strerror}): choose another folder."
            ) from None
        if not new:
            raise PrivacyError(
                f"the key file {path} exists already: load it, or choose another path."
            )
        return key

    @classmethod
    def load(cls, path: str | Path) -> SecretKey:
        """Reads a key file; raises PrivacyError if it is missing, damaged or readable by others."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                content = file.read()
        except OSError as error:
            raise PrivacyError(
                f"the key file {path} cannot be read ({error.strerror}): "
                "check the path, or make one with SecretKey.create."
            ) from None
        if os.name == "posix" and mode & 0o077:
            raise PrivacyError(
                f"the key file {path} has mode {mode:04o}, so others can read or write it: "
                "its noise is no longer secret, so make a new key (files need mode 0600)."
            )
        try:
            fields = read_json(content)
            return cls(bytes.fromhex(fields["secret"]), fields["run"])
        except (ValueError, KeyError, TypeError):
            raise PrivacyError(
                f"the key file {path} is damaged: restore it, or make a new one with "
                "SecretKey.create."
            ) from None


@dataclass(frozen=True)
class EntropyKey:
    """No key at all: every stream is fresh from the operating system and float-safe.

    For real devices. Nothing is kept from which released noise could be recomputed, so the same
    request asked twice would be noised twice: the client stores its reply and sends that again.

    Guarantees:
        - Two streams never share noise, whatever their arguments.
        - A device without the float-safe sampler is refused when its key is made, before any
          record is read.

    Raises:
        PrivacyError: If OpenDP is not installed.
    """

    kind: ClassVar[str] = "secure"
    repeatable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        SecureStream()

    def stream(
        self, purpose: str, *, client: int, round: int, request: bytes = b""
    ) -> SecureStream:
        """Returns a fresh stream; the arguments name its use and do not enter it."""
        return SecureStream()
