"""A client's sessions of secure aggregation: one for each sum, kept between its trips."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedsink.errors import LedgerError
from fedsink.privacy.files import replace_with
from fedsink.protocol.aggregation import KEYS, SHARES, SURVIVORS, UNMASK
from fedsink.secagg.client import ClientSession
from fedsink.secagg.identities import Identity, Peers
from fedsink.secagg.parameters import Parameters, Rules
from fedsink.secagg.refusals import AnsweredError, OutOfTurnError

_IN_MEMORY = 8  # sessions of a simulated client: nobody asks for an older one
_DAY = 86_400.0


@dataclass
class Sessions:
    """Keeps one client's sessions.

    Guarantees:
        - A file is whole or does not exist, and has mode 0600.
        - While one process holds the sessions, no other process reads or stores them.

    Args:
        folder: as private as the records; None: sessions are kept in memory.
    """

    folder: Path | None
    _memory: dict[str, bytes] = field(default_factory=dict)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lets one process answer a trip at a time.

        Raises:
            LedgerError: the folder cannot be used.
        """
        if self.folder is None:
            yield
            return
        with _explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            os.close(lock)

    def get(self, name: str) -> bytes | None:
        """Returns a session; None where there is none, and b"" where it was wiped.

        Raises:
            LedgerError: it cannot be read.
        """
        if self.folder is None:
            return self._memory.get(name)
        with _explained(self.folder):
            path = self.folder / name
            return path.read_bytes() if path.exists() else None

    def put(self, name: str, content: bytes) -> None:
        """Stores a session in place of its former self.

        Raises:
            LedgerError: it cannot be stored; the answer must not leave.
        """
        if self.folder is None:
            self._memory.pop(name, None)
            self._memory[name] = content
            for old in list(self._memory)[:-_IN_MEMORY]:
                del self._memory[old]
            return
        with _explained(self.folder):
            replace_with(self.folder / name, content)

    def wipe(self, days: float) -> None:
        """Empties the sessions that were not stored for `days` days.

        An empty file stays: its request must not be masked a second time.

        Raises:
            LedgerError: one cannot be emptied.
        """
        if self.folder is None or not self.folder.is_dir():
            return
        with _explained(self.folder):
            if not any(_is_old(path, days) for path in self.folder.iterdir()):
                return  # nobody waits for the process that holds the sessions, to wipe nothing
        with self.held(), _explained(self.folder):
            for path in self.folder.iterdir():
                if _is_old(path, days):
                    replace_with(path, b"")


def _is_old(path: Path, days: float) -> bool:
    """Tells whether a file has content that was stored so long ago, and has not just been moved."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return False
    return stat.st_size > 0 and time.time() - stat.st_mtime >= days * _DAY


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LedgerError(
            f"a session in {folder} cannot be read or stored ({error.strerror}), and nothing "
            "leaves without that: make room or correct its permissions."
        ) from None


class Masking:
    """Answers the trips of secure aggregation for one client.

    Guarantees:
        - One request is masked in at most one session, whatever a server asks: two sums of one
          reply with different survivors would tell the difference.
        - A session masks one request.
        - A session is stored before the answer that it belongs to leaves.

    Args:
        client: its number.
        identity: its signing key.
        rules: its owner's.
        sessions: keeps sessions between trips.
    """

    def __init__(self, client: int, identity: Identity, rules: Rules, sessions: Sessions) -> None:
        self._client, self._identity, self._rules = client, identity, rules
        self._sessions = sessions

    def answer(self, trip: str, parameters: Parameters, content: bytes) -> bytes:
        """Returns the answer to a query.

        Raises:
            AggregationError: the owner's rules, or an earlier answer, forbid it.
            LedgerError: the session cannot be read or stored.
        """

        def ask(session: ClientSession) -> bytes:
            if trip == KEYS:
                return session.keys()
            methods = {SHARES: session.shares, SURVIVORS: session.survivors, UNMASK: session.unmask}
            return methods[trip](content)

        return self._step(parameters, ask, begins=trip == KEYS)

    def mask(
        self,
        parameters: Parameters,
        forwarded: bytes,
        request: bytes,
        vector: Callable[[], np.ndarray[Any, Any]],
    ) -> bytes:
        """Returns the masked vector of a request.

        Args:
            parameters: of the sum.
            forwarded: the clients that share, and the neighbours' shares.
            request: its digest.
            vector: charges and computes the reply's integers; called once everything that comes
                before it has been accepted.

        Raises:
            AggregationError: the owner's rules, or an earlier answer, forbid it.
            LedgerError: the session cannot be read or stored.
        """
        return self._step(parameters, lambda session: session.masked(forwarded, request, vector))

    def _step(
        self,
        parameters: Parameters,
        ask: Callable[[ClientSession], bytes],
        *,
        begins: bool = False,
    ) -> bytes:
        name = _name(self._client, parameters)
        with self._sessions.held():
            session = self._session(name, parameters, begins)
            answer = ask(session)
            self._sessions.put(name, session.to_bytes())
        return answer

    def _session(self, name: str, parameters: Parameters, begins: bool) -> ClientSession:
        content = self._sessions.get(name)
        if content is None:
            if not begins:
                raise OutOfTurnError("This client has sent no keys for this request.")
            return ClientSession(parameters, self._client, self._identity, self._rules)
        if not content:
            raise AnsweredError("This request was masked so long ago that its session is wiped.")
        session = ClientSession.from_bytes(content, self._identity, self._rules)
        if session.parameters != parameters:
            raise AnsweredError("This request was to be summed among others, or in another way.")
        return session


def simulated_identity(client: int) -> Identity:
    """Returns the signing key of a simulated client; anybody can compute it."""
    named = f"fedsink simulated client {client}".encode()
    return Identity.derived(hashlib.sha256(named).digest())


@lru_cache(maxsize=4)
def simulated_peers(clients: int) -> Peers:
    """Returns the public keys of all simulated clients."""
    return Peers({client: simulated_identity(client).public for client in range(clients)})


def _name(client: int, parameters: Parameters) -> str:
    named = json.dumps([client, parameters.run, parameters.message])
    return hashlib.sha256(named.encode()).hexdigest()
