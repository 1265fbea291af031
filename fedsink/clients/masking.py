"""A client's sessions of secure aggregation: one for each sum, kept between its trips."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np

from fedsink.errors import LedgerError, RunTakenError
from fedsink.files import write_atomic
from fedsink.protocol.aggregation import KEYS, SHARES, SURVIVORS, UNMASK
from fedsink.secagg.client import ClientSession
from fedsink.secagg.identities import Identity, Peers
from fedsink.secagg.parameters import Parameters, Rules
from fedsink.secagg.refusals import AnsweredError, OutOfTurnError
from fedsink.values import check_format, read_json

FORMAT = 1
_IN_MEMORY = 8  # sessions of a simulated client: nobody asks for an older one
_OPEN = 32  # sessions of a node that have masked nothing yet
_DAY = 86_400.0


@dataclass
class Sessions:
    """Keeps one client's sessions: open ones, and those that have masked a request.

    Their folder is as private as the records; without one they are kept in memory.

    Guarantees:
        - A file is whole or does not exist, and has mode 0600.
        - While one process holds the sessions, no other process reads or stores them.
        - There are at most 32 open sessions; the oldest is forgotten, one without an admitted run
          before any other.
    """

    folder: Path | None
    _memory: dict[str, bytes] = field(default_factory=dict)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lets one process answer a trip at a time."""
        if self.folder is None:
            yield
            return
        with _explained(self.folder):
            for folder in (self.folder, self.folder / _OPEN_FOLDER):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            os.close(lock)

    def get(self, name: str) -> bytes | None:
        """Returns a session; None where there is none, and b"" where it was wiped."""
        if self.folder is None:
            return self._memory.get(name)
        with _explained(self.folder):
            path = self.folder / name
            return path.read_bytes() if path.exists() else None

    def put(self, name: str, content: bytes) -> None:
        """Stores a session in place of its former self."""
        if self.folder is None:
            self._memory.pop(name, None)
            self._memory[name] = content
            for old in list(self._memory)[:-_IN_MEMORY]:
                del self._memory[old]
            return
        with _explained(self.folder):
            write_atomic(self.folder / name, content, 0o600)

    def make_room(self, admitted: Callable[[str], bool]) -> None:
        """Forgets an open session where there are so many that no other may be opened."""
        if self.folder is None:
            return
        with _explained(self.folder):
            paths = sorted(
                (self.folder / _OPEN_FOLDER).iterdir(), key=lambda path: path.stat().st_mtime_ns
            )
            while len(paths) >= _OPEN:
                sums = ((path, read_json(path.read_bytes())["parameters"]) for path in paths)
                strangers = (path for path, parameters in sums if not admitted(parameters["run"]))
                oldest = next(strangers, paths[0])
                oldest.unlink()
                paths.remove(oldest)

    def forget(self, name: str) -> None:
        """Forgets the open sessions of a sum."""
        if self.folder is None:
            for key in [key for key in self._memory if key.startswith(_open_name(name, ""))]:
                del self._memory[key]
            return
        with _explained(self.folder):
            for path in self.folder.glob(_open_name(name, "*")):
                path.unlink()

    def wipe(self, days: float) -> None:
        """Deletes open sessions last stored `days` days ago, and the content of masked ones.

        An empty file stays: its request must not be masked a second time.
        """
        if self.folder is None or not self.folder.is_dir():
            return
        with _explained(self.folder):
            if not any(_is_old(path, days) for path in self.folder.rglob("*")):
                return  # nobody waits for the process that holds the sessions, to wipe nothing
        with self.held(), _explained(self.folder):
            for path in self.folder.rglob("*"):
                if _is_old(path, days) and path.parent != self.folder:
                    path.unlink()
                elif _is_old(path, days):
                    write_atomic(path, b"", 0o600)


def _is_old(path: Path, days: float) -> bool:
    """Tells whether a file has content that was stored so long ago, and has not just been moved."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return False
    return S_ISREG(stat.st_mode) and stat.st_size > 0 and time.time() - stat.st_mtime >= days * _DAY


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
        - No session continues under other words of the policy than it began under.
        - A query for a sum under wrong numbers changes nothing for the sum under right ones.

    `words` are those of the owner's policy that the price of the client's replies depends on;
    `admitted` tells whether the ledger has admitted a run.
    """

    def __init__(
        self,
        client: int,
        identity: Identity,
        rules: Rules,
        sessions: Sessions,
        words: Mapping[str, Any] | None = None,
        admitted: Callable[[str], bool] = lambda run: False,
    ) -> None:
        self._client, self._identity, self._rules = client, identity, rules
        self._sessions, self._admitted = sessions, admitted
        self._words = dict(words or {})

    def answer(self, trip: str, parameters: Parameters, content: bytes) -> bytes:
        """Returns the answer to a query."""

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
        """Returns the masked vector of a request; `vector` charges and computes it, at the end."""
        return self._step(parameters, lambda session: session.masked(forwarded, request, vector))

    def _step(
        self, parameters: Parameters, ask: Callable[[ClientSession], bytes], *, begins: bool = False
    ) -> bytes:
        name, sessions = _name(self._client, parameters), self._sessions
        opened = _open_name(name, parameters.digest.hex())
        with sessions.held():
            # A sum that was masked has one session; until then each set of numbers has its own.
            masked, content = sessions.get(name), sessions.get(opened)
            if masked is None and content is None:
                if not begins:
                    raise OutOfTurnError("This client has sent no keys for this request.")
                session = ClientSession(parameters, self._client, self._identity, self._rules)
            else:
                session = self._read(content if masked is None else masked)
            if session.parameters != parameters:
                raise AnsweredError("This request was summed among others, or in another way.")
            answer = ask(session)
            if session.has_masked:
                sessions.put(name, self._content(session))
                if masked is None:
                    sessions.forget(name)
            else:
                if content is None:
                    sessions.make_room(self._admitted)
                sessions.put(opened, self._content(session))
        return answer

    def _read(self, content: bytes | None) -> ClientSession:
        if not content:
            raise AnsweredError("This request was masked so long ago that its session is wiped.")
        stored = read_json(content)
        check_format(
            "A stored session of secure aggregation", stored.get("format", 1), FORMAT,
            error=LedgerError,
        )  # fmt: skip
        if stored.get("words") != self._words:
            raise RunTakenError(
                "This sum began under other words of the policy, or under another version of "
                "fedsink: set them back, or start another run."
            )
        return ClientSession.from_bytes(content, self._identity, self._rules)

    def _content(self, session: ClientSession) -> bytes:
        values = {"format": FORMAT, **read_json(session.to_bytes()), "words": self._words}
        return json.dumps(values).encode()


def simulated_identity(client: int) -> Identity:
    """Returns the signing key of a simulated client; anybody can compute it."""
    name = f"fedsink simulated client {client}".encode()
    return Identity.derived(hashlib.sha256(name).digest())


@lru_cache(maxsize=4)
def simulated_peers(clients: int) -> Peers:
    """Returns the public keys of all simulated clients."""
    return Peers({client: simulated_identity(client).public for client in range(clients)})


_OPEN_FOLDER = "open"


def _open_name(name: str, parameters: str) -> str:
    """Returns the name of a session that has masked nothing yet."""
    return f"{_OPEN_FOLDER}/{name}.{parameters}"


def _name(client: int, parameters: Parameters) -> str:
    text = json.dumps([client, parameters.run, parameters.message])
    return hashlib.sha256(text.encode()).hexdigest()
