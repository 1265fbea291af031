"""Memory of one client's answers from message to message: as private as its records."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from fedsink.clients.owner.replies import seal, unseal
from fedsink.errors import CheckpointError, LedgerError
from fedsink.files import write_once

log = logging.getLogger("fedsink.clients")

Tensors = Mapping[str, Tensor]
_DAY = 86_400.0


class State:
    """State of answers of one kind in one run: tensors, by the round after which they hold.

    The state after round t is put before the reply of round t is stored. The earlier state stays
    until the client is asked again: where a process ends between the two, both are computed again
    from the earlier state.

    Guarantees:
        - A file of a state is whole or does not exist, has mode 0600, and lies in a folder of mode
          0700.
        - The state that `before` gives is never one of that round or a later one.
        - A damaged file, or one of another state or round, is passed over for an earlier one.
        - A simulation ends where a state is lost: a round computed again from another state
          could draw the same noise for another total.

    Args:
        folder: the folder of this state's files; None: the state is kept only in memory.
        at_once: write every state to a file at once; else `keep` writes files.
        rewinds: answered rounds may be asked and computed again.
        simulated: the client is a simulation's: its files need not outlast a power cut, and a
            state that is `lost` is an error.
    """

    def __init__(
        self, folder: Path | None, *, at_once: bool, rewinds: bool, simulated: bool
    ) -> None:
        self.simulated = simulated
        self._folder = folder
        self._at_once, self._rewinds = at_once, rewinds
        self._memory: dict[int, Tensors] = {}
        self._last: int | None = None

    def before(self, round: int) -> Tensors | None:
        """Returns the state of the last round before this one, and forgets older ones."""
        if (last := _last(self._memory, round)) is not None:
            self._memory = {t: state for t, state in self._memory.items() if t >= last}
            return self._memory[last]
        for last in sorted(self._rounds(), reverse=True):
            if last >= round or (state := self._read(last)) is None:
                continue
            self._last = last
            if self._at_once and not self._rewinds:
                self._remove(t for t in self._rounds() if t < last)
            return state
        return None

    def put(self, round: int, state: Tensors) -> None:
        """Puts the state after a round, replacing one that was put before."""
        if self._at_once:
            self._write(round, state)
        else:
            self._memory[round] = state

    def lost(self, what: str) -> None:
        """Reports a missing state: a simulation ends; a real node logs it, and starts anew.

        The server is not told. A real node stores every reply, so a released reply is never
        computed again.
        """
        if self.simulated:
            raise CheckpointError(
                f"{what}: continue from the checkpoint with resume=, or start again."
            )
        log.error("%s: it starts again", what)

    def keep(self, round: int) -> None:
        """Writes a state in memory to a file, for a run that continues after this round.

        The previous file stays until the next one is written: the server may end before it has
        finished this checkpoint.
        """
        last = _last(self._memory, round + 1)
        if last is None or last == self._last or self._folder is None:
            return
        self._write(last, self._memory[last])
        self._remove(t for t in self._rounds() if t not in (last, self._last))
        self._last = last

    def _rounds(self) -> list[int]:
        if self._folder is None or not self._folder.is_dir():
            return []
        return [int(path.stem) for path in self._folder.glob("*.state")]

    def _read(self, round: int) -> Tensors | None:
        path = self._path(round)
        try:
            state = unseal(path.read_bytes(), self._sealed_for(path))
        except (OSError, SafetensorError) as error:
            raise LedgerError(f"the state {path} cannot be read: {error}.") from None
        if state is None:
            log.error("the state %s is damaged and counts as lost", path)
        return state

    def _write(self, round: int, state: Tensors) -> None:
        path = self._path(round)
        try:
            for folder in (path.parent.parent, path.parent):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.unlink(missing_ok=True)
            write_once(path, seal(state, self._sealed_for(path)), durable=not self.simulated)
        except OSError as error:
            raise LedgerError(
                f"a state cannot be stored in {path.parent} ({error.strerror}), and nothing is "
                "released without that: make room or correct its permissions."
            ) from None

    def _remove(self, rounds: Iterable[int]) -> None:
        for round in rounds:
            try:
                self._path(round).unlink(missing_ok=True)
            except OSError as error:
                raise LedgerError(
                    f"the old state {self._path(round)} cannot be removed ({error.strerror}): "
                    "correct the permissions of its folder."
                ) from None

    @staticmethod
    def _sealed_for(path: Path) -> str:
        return f"{path.parent.name}/{path.name}"

    def _path(self, round: int) -> Path:
        if self._folder is None:
            raise ValueError("This state has no folder.")
        return self._folder / f"{round}.state"


class States:
    """The states of one client's answers: each belongs to one kind of answer in one reservation.

    Guarantees:
        - No answer is given a state of another client, lineage, account, run, plan or version of
          the data.

    `folder` is of all clients' states, `owner` names the client and its lineage; see `State` for
    the others.
    """

    def __init__(
        self, folder: Path | None, owner: str, *, simulated: bool, at_once: bool, rewinds: bool
    ) -> None:
        self._folder, self._owner, self._simulated = folder, owner, simulated
        self._at_once, self._rewinds = at_once and folder is not None, rewinds
        self._states: dict[tuple[str, ...], State] = {}

    def of(self, reservation: bytes, kind: str, *names: str) -> State:
        """Returns the state of a kind of answer under a reservation; each `names` has its own."""
        key = (reservation.hex(), kind, *names)
        if key not in self._states:
            folder = None
            if self._folder is not None:
                place = json.dumps([self._owner, *key])
                folder = self._folder / hashlib.sha256(place.encode()).hexdigest()
            self._states[key] = State(
                folder, at_once=self._at_once, rewinds=self._rewinds, simulated=self._simulated
            )
        return self._states[key]

    def keep(self, round: int) -> None:
        """Calls `State.keep` of all states."""
        for state in self._states.values():
            state.keep(round)


def forget(folder: Path, days: float = 0.0) -> int:
    """Removes the states that were not written for `days` days; returns their number."""
    forgotten = 0
    try:
        for state in folder.iterdir() if folder.is_dir() else ():
            written = max((path.stat().st_mtime for path in state.iterdir()), default=0.0)
            if time.time() - written >= days * _DAY:
                shutil.rmtree(state)
                forgotten += 1
    except OSError as error:
        raise LedgerError(
            f"the states in {folder} cannot be removed ({error}): correct their permissions."
        ) from None
    return forgotten


def _last(states: Iterable[int], round: int) -> int | None:
    return max((t for t in states if t < round), default=None)
