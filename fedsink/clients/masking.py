"""A client's sessions of secure aggregation: one for each request, kept between its trips."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedsink.errors import LedgerError
from fedsink.privacy.files import write_once
from fedsink.protocol.aggregation import KEYS, SHARES, SURVIVORS, UNMASK
from fedsink.secagg.client import ClientSession, Rules
from fedsink.secagg.identities import Identity, Peers
from fedsink.secagg.parameters import Parameters
from fedsink.secagg.refusals import AnsweredError, RosterError

_MASKED = "masked"
_ORDER = (KEYS, SHARES, _MASKED, SURVIVORS, UNMASK)


@dataclass
class Sessions:
    """Stores each session behind each of its trips, before the trip's answer leaves.

    Of two processes that answer one trip the first one's session is kept, and both answer from it.

    Args:
        folder: as private as the records; None: sessions are kept in memory.
    """

    folder: Path | None
    _memory: dict[str, bytes] = field(default_factory=dict)

    def get(self, name: str) -> bytes | None:
        """Returns the session behind its last trip; None where there is none.

        Raises:
            LedgerError: it cannot be read.
        """
        if self.folder is None:
            return self._memory.get(name)
        try:
            for trip in reversed(range(len(_ORDER))):
                if (path := self._path(name, trip)).exists():
                    return path.read_bytes()
        except OSError as error:
            raise LedgerError(f"a session in {self.folder} cannot be read: {error}.") from None
        return None

    def put(self, name: str, trip: str, content: bytes) -> bytes:
        """Stores a session behind a trip, and returns the stored one.

        Raises:
            LedgerError: it cannot be stored; the answer must not leave.
        """
        if self.folder is None:
            self._memory[name] = content
            return content
        place = _ORDER.index(trip)
        path = self._path(name, place)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_once(path, content)
            if trip == UNMASK:  # the sessions before it hold secrets
                for earlier in range(place):
                    self._path(name, earlier).unlink(missing_ok=True)
            return path.read_bytes()
        except OSError as error:
            raise LedgerError(
                f"a session cannot be stored in {self.folder} ({error.strerror}), and nothing "
                "leaves without that: make room or correct its permissions."
            ) from None

    def _path(self, name: str, trip: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.{trip}"


class Masking:
    """Answers the trips of secure aggregation for one client.

    Guarantees:
        - One request is masked in at most one session, whatever a server asks: two sums of one
          reply with different survivors would tell the difference.
        - A session is on the disk before the answer that it belongs to leaves.

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

        return self._step(trip, parameters, ask)

    def mask(
        self,
        parameters: Parameters,
        forwarded: bytes,
        vector: Callable[[], np.ndarray[Any, Any]],
    ) -> bytes:
        """Returns the masked vector of a request.

        Args:
            parameters: of the sum.
            forwarded: the neighbours' shares.
            vector: charges and computes the reply's integers; called once the session exists.

        Raises:
            AggregationError: the owner's rules, or an earlier answer, forbid it.
            LedgerError: the session cannot be read or stored.
        """
        session = self._session(parameters, started=True)
        if not session.has_roster:
            raise RosterError("This client has seen no roster for this request.")
        values = vector()
        return self._step(
            _MASKED, parameters, lambda session: session.masked(forwarded, values).tobytes()
        )

    def _step(
        self, trip: str, parameters: Parameters, ask: Callable[[ClientSession], bytes]
    ) -> bytes:
        session = self._session(parameters, started=trip != KEYS)
        answer = ask(session)
        name = _name(self._client, parameters)
        stored = self._sessions.put(name, trip, session.to_bytes())
        if stored == session.to_bytes():
            return answer
        return ask(self._opened(stored))  # another process was first

    def _session(self, parameters: Parameters, *, started: bool) -> ClientSession:
        content = self._sessions.get(_name(self._client, parameters))
        if content is None:
            if started:
                raise RosterError("This client has sent no keys for this request.")
            return ClientSession(parameters, self._client, self._identity, self._rules)
        session = self._opened(content)
        if session.parameters != parameters:
            raise AnsweredError("This request was to be summed among others, or in another way.")
        return session

    def _opened(self, content: bytes) -> ClientSession:
        return ClientSession.from_bytes(content, self._identity, self._rules)


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
