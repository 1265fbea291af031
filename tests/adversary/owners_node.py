"""A node under its owner's policy; a new process answers each message."""

from __future__ import annotations

import gc
import multiprocessing
import shutil
import signal
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.common.serde import recorddict_to_proto

from fedsink.clients.app import app
from fedsink.clients.node import close_nodes
from fedsink.clients.owner.ledger.database import Database, problems
from fedsink.clients.owner.replies import unseal
from fedsink.privacy import BatchClip, JointSchedule, PrivacyPlan
from fedsink.protocol.dp_sinkhorn import GradientRequest, Objective
from fedsink.protocol.failure_codes import MEANING, REFUSED
from fedsink.protocol.gs_wgan import CriticRequest

from ..support.policies import CENTRAL, limits, policy
from ..support.requests import gradient_request
from ..support.tiny import CLASSES
from .faults import AtStep, Fault, nothing
from .honest import SHAPES, Honest

Place = tuple[str, int]
"""A run and a round."""

PLAN = PrivacyPlan(1.0, 1.0, 51, BatchClip(0.5), JointSchedule(), 1e-6)
Asked = GradientRequest | CriticRequest
_TYPES: dict[type, str] = {GradientRequest: "train.dp_sinkhorn", CriticRequest: "train.gs_wgan"}
_PATIENCE = 60.0
_FORK = multiprocessing.get_context("fork")


def request(round: int, run: str = "run", rows: int = 6) -> GradientRequest:
    """Returns one use of `PLAN`, equal for equal arguments."""
    objective = Objective(lam=5.0, classes=CLASSES, label_weight=1.0)
    return gradient_request(PLAN, objective, round=round, rows=rows, run=run)


def critic_request(round: int, run: str = "run") -> CriticRequest:
    """Returns one use of `CRITIC_PLAN`, equal for equal arguments."""
    return Honest(SHAPES["points"]).critic(round, run=run, rounds=51, delta=1e-6)


CRITIC_PLAN = critic_request(1).plan


def other(asked: Asked) -> Asked:
    """Another request for the same place."""
    return replace(asked, rows=asked.rows + 1)


def in_processes(*calls: Callable[[], Any]) -> list[Any]:
    """Runs each call in a new process, all at once. Returns their results; None: it was killed."""
    running = []
    for call in calls:
        reader, writer = _FORK.Pipe(duplex=False)
        process = _FORK.Process(target=_send, args=(writer, call))
        process.start()
        writer.close()
        running.append((process, reader))
    results = []
    for process, reader in running:
        assert reader.poll(_PATIENCE), "the process hangs"
        try:
            results.append(reader.recv())
        except EOFError:
            results.append(None)
        process.join(_PATIENCE)
        assert process.exitcode in (0, -signal.SIGKILL, -signal.SIGXFSZ), "the process failed"
    return results


def _send(writer: Connection, call: Callable[[], Any]) -> None:
    writer.send(call())


def barrier(processes: int) -> Barrier:
    """Barrier at which that many processes wait for each other."""
    return _FORK.Barrier(processes, timeout=_PATIENCE)


@dataclass(frozen=True)
class Answer:
    """A reply's bytes, or the code of an error."""

    reply: bytes | None
    code: int | None = None


class OwnersNode:
    """The deployed app with its state on the disk; every answer is checked where it arrives.

    An error is a code without a word and leaves no half of a file. Where a reply leaves, the
    ledger is sound and holds the charge of every reply that has ever left, and no place is
    answered with two different byte strings.
    """

    def __init__(
        self, folder: Path, noise: str = "fast", epsilon: float = 1e6, plan: PrivacyPlan = PLAN
    ) -> None:
        folder.mkdir(parents=True)
        self._plan = plan
        self.policy = folder / "policy.toml"
        self.state = folder / "state"
        self.ledger = self.state / "ledger.sqlite"
        allow = {
            "maximum_images": 4096, "maximum_critics": 4, "maximum_critic_width": 5,
            "maximum_critic_steps": 4,
        }  # fmt: skip
        budget = {"add-remove": limits(epsilon)}
        text = policy(backend=noise, budget=budget, mechanisms=(*CENTRAL, "critic"), allow=allow)
        self.policy.write_text(text)
        self.left: dict[Place, bytes] = {}

    def ask(self, asked: Asked, fault: Fault = nothing, *, stop: bool = True) -> Answer | None:
        """The answer of a new process, which suffers the fault first; None: it was killed.

        Without `stop` the process does not close its files before it ends.
        """
        [answers] = self.ask_at_once([asked], fault=fault, stop=stop)
        return None if answers is None else answers[0]

    def ask_at_once(
        self, *messages: Sequence[Asked], fault: Fault = nothing, stop: bool = True
    ) -> list[list[Answer] | None]:
        """The answers of as many processes: all to their first message at once, and so on."""
        together = barrier(len(messages))
        calls = [partial(_answers, self.policy, each, fault, stop, together) for each in messages]
        leftovers = self.leftovers()
        results = in_processes(*calls)
        if None not in results:
            assert self.leftovers() <= leftovers, "half of a file"
        for asked, answers in zip(messages, results, strict=True):
            for each, answer in zip(asked, answers or (), strict=answers is not None):
                self._check(each, answer)
        return results

    def steps(self, asked: Asked) -> int:
        """Number of steps between the charge of this request and its reply."""
        counter = AtStep(0, nothing)

        def count() -> int:
            _answers(self.policy, [asked], counter, True, barrier(1))
            return counter.taken

        [taken] = in_processes(count)
        return int(taken)

    def recovers(self, asked: Asked) -> None:
        """Checks that, with the fault gone, the place is charged once and answered with one reply.

        No charge is lost or made twice, and the stored reply is the one that leaves.
        """
        claims, stored = self.claims(), self.stored()
        place = (asked.run, asked.round)
        if place in claims:
            [[refused, answer, again]] = self.ask_at_once([other(asked), asked, asked])
            assert refused == Answer(None, REFUSED)
        else:
            [[answer, again]] = self.ask_at_once([asked, asked])
        assert answer.reply is not None
        assert again == answer
        assert self.claims() == claims | {place: True}
        assert stored.items() <= self.stored().items()
        assert self.leftovers() == set()

    def claims(self) -> dict[Place, bool]:
        """Every charged place and whether its reply may have left; each run is charged once."""
        if not self._has_tables():
            return {}
        with closing(Database(self.ledger, writable=False)) as database:
            assert problems(database) == []
            charged = {epsilon for (epsilon,) in database.rows("SELECT epsilon FROM runs")}
            assert charged <= {self._plan.epsilon()}
            rows = database.rows("SELECT name, round, released FROM claims JOIN runs ON run = id")
        return {(run, round): bool(released) for run, round, released in rows}

    def stored(self) -> dict[str, bytes]:
        """The stored replies, each whole."""
        paths = list(self.state.glob("replies/[!.]*"))
        assert all(unseal(path.read_bytes(), path.stem) is not None for path in paths)
        return {path.name: path.read_bytes() for path in paths}

    def leftovers(self) -> set[Path]:
        """Half-written files: whole ones get a name that does not begin with a dot."""
        return set(self.state.rglob(".*"))

    def back_up(self) -> Callable[[], None]:
        """Copies the state folder; the function returned puts it back."""
        copy = self.state.with_name("backup")
        shutil.copytree(self.state, copy)
        left = dict(self.left)

        def restore() -> None:
            shutil.rmtree(self.state)
            shutil.copytree(copy, self.state)
            self.left = dict(left)

        return restore

    def _has_tables(self) -> bool:
        if not self.ledger.exists():
            return False
        reader = sqlite3.connect(f"{self.ledger.as_uri()}?mode=ro", uri=True)
        with closing(reader) as connection:
            return connection.execute("SELECT 1 FROM sqlite_master").fetchone() is not None

    def _check(self, asked: Asked, answer: Answer) -> None:
        if answer.reply is None:
            assert answer.code in MEANING
            return
        place = (asked.run, asked.round)
        assert self.left.setdefault(place, answer.reply) == answer.reply, "a second answer"
        claims = self.claims()
        assert claims[place], "it left without a charge"
        assert self.left.keys() <= claims.keys(), "a charge is lost"


def _answers(
    policy: Path, messages: Sequence[Asked], fault: Fault, stop: bool, together: Barrier
) -> list[Answer]:
    gc.freeze()  # objects from before the fork are not searched below
    fault()
    answers = []
    for asked in messages:
        together.wait()
        answers.append(answer(policy, asked))
    if stop:
        close_nodes()
        gc.collect()  # the ledger's connection, too
    if isinstance(fault, AtStep):
        fault.before_the_reply_leaves()
    return answers


def answer(policy: Path, asked: Asked) -> Answer:
    """Returns the answer of the deployed app, computed in this process."""
    node_config = {"policy": str(policy), "partition-id": 0, "num-partitions": 1}
    context = Context(1, 1, node_config, {}, {})
    message = Message(asked.to_record(), dst_node_id=1, message_type=_TYPES[type(asked)])
    reply = app(message, context)
    if reply.has_error():
        assert not reply.error.reason
        return Answer(None, reply.error.code)
    return Answer(recorddict_to_proto(reply.content).SerializeToString(deterministic=True))
