"""The actors of all cohorts: asked together, compared before they are used, replaced when lost."""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flwr.app import Error, RecordDict

from fedsink.clients.node import grant, keep_states
from fedsink.data.labelled import LabelledData
from fedsink.data.sources import give, load
from fedsink.data.spec import DataSpec
from fedsink.errors import ClientError, FedsinkError
from fedsink.protocol.exchange import Content
from fedsink.simulation.ray.cluster import (
    CohortPlaces,
    NodeRecords,
    first_line,
    node_in_words,
    refuse_unencrypted,
    refuse_versions,
    versions,
)

if TYPE_CHECKING:
    from fedsink.simulation.grid import Portion
    from fedsink.simulation.virtual_clients import Cohort, Job

log = logging.getLogger("fedsink.simulation")

_PAUSE = 0.2  # seconds before an actor that died at once is replaced again


class Question(NamedTuple):
    """The part of one round's messages that is sent to all cohorts alike."""

    contents: list[Any]  # the distinct ones of the messages, or `Content.said` of the broadcasts
    passes: list[bytes]  # digests of the uses that are charged, where the cohorts have no ledger


class Actor:
    """Runs one cohort in a separate process.

    Before `host` only `place`, `versions`, `digest` and `hold` may be called: the cohort's key and
    settings are sent to a process that has shown its node, its versions and its records.

    Arguments and answers are pickled, except that tensors travel as NumPy arrays, which Ray copies
    directly.
    """

    def __init__(self, debug: bool) -> None:
        logging.getLogger("fedsink").setLevel(logging.DEBUG if debug else logging.ERROR)
        self._cohort: Cohort

    def place(self) -> str:
        """The id of the Ray node that this process is on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def digest(self, data: DataSpec) -> str:
        """The digest of the records as they are read here, or an error in words."""
        try:
            return load(data).digest()
        except FedsinkError as error:
            return f"none ({error})"

    def hold(self, data: DataSpec, arrays: Mapping[str, np.ndarray]) -> None:
        """Takes the records from Ray's memory, where all processes of a node share them."""
        give(data, "train", LabelledData.of_arrays(arrays))

    def versions(self) -> dict[str, str]:
        return versions()

    def host(self, build: Callable[[], Cohort]) -> None:
        self._cohort = build()

    def process(self) -> int:
        return os.getpid()

    def answer(self, said: bytes, jobs: list[Job]) -> list[tuple[int, RecordDict | Error]]:
        """Answers messages one by one."""
        question: Question = pickle.loads(said)
        grant(question.passes)
        return self._cohort.answer_jobs(question.contents, jobs)

    def keep(self, said: bytes, rounds: list[int]) -> None:
        """Stores the states of this cohort's clients after a round."""
        keep_states(rounds[0])

    def add_up(self, said: bytes, portions: Sequence[Portion], message_type: str) -> list[Any]:
        """Answers portions of broadcasts: the values of a `PartialSum` for each."""
        question: Question = pickle.loads(said)
        grant(question.passes)
        received = [Content.received(content) for content in question.contents]
        return [
            ([(block, values.numpy()) for block, values in p.sums], p.clients, p.failures)
            for p in self._cohort.add_up(message_type, received, portions)
        ]


class _LostError(Exception):
    """Some of the actors are gone: Ray's errors, and the answers of the others, by place."""

    def __init__(self, answers: Mapping[int, Any], errors: Mapping[int, Any]) -> None:
        super().__init__(f"{len(errors)} actors are gone")
        self.answers, self.errors = answers, errors


@dataclass(eq=False, repr=False)  # `build` may hold a key
class Cohorts:
    """Keeps one actor for each place. The first question waits until all actors have started."""

    ray: Any  # the module, connected
    places: CohortPlaces
    build: Callable[[], Cohort]  # in the actor's process; picklable
    _: KW_ONLY
    versions: Mapping[str, str] | None  # of every node; None where all run this process's files
    records: NodeRecords | None  # None where the nodes need not be compared
    secret: bool  # `build` holds a key, which only this node, or a cluster with TLS, may be sent
    timeout: float | None  # seconds to wait for answers; None waits for ever
    revive_seconds: float  # to wait until actors have started
    revivals: int  # number of times that one question is asked again because actors were lost
    inline: int  # bytes that a question carries by itself; more go through Ray's memory
    debug: bool  # print the clients' logs

    def __post_init__(self) -> None:
        self._gone = self.ray.exceptions.RayActorError, self.ray.exceptions.ObjectLostError
        self._actor = self.ray.remote(Actor).options(**self.places.options())
        self.actors = [self._actor.remote(self.debug) for _ in range(self.places.count)]
        self._ready = False

    def __len__(self) -> int:
        return len(self.actors)

    def ask(self, method: str, shared: Any, work: Sequence[Sequence[Any]], *more: Any) -> list[Any]:
        """Calls a method of every actor that has work; the answers of the others are empty.

        Its arguments are what is `shared`, pickled once, the work of each place, and `more`.
        """
        if not self._ready:
            self._start(range(len(self.actors)))
            self._ready = True
        said: Any = pickle.dumps(shared, protocol=pickle.HIGHEST_PROTOCOL)
        if len(said) > self.inline:
            said = self.ray.put(said)
        answers: dict[int, Any] = {}
        places: Collection[int] = [place for place, items in enumerate(work) if items]
        for attempt in range(1 + self.revivals):
            if attempt:
                log.warning("%d actors died; new ones host their clients", len(places))
                self._replace(places)
                self._start(places)
            calls = {
                place: getattr(self.actors[place], method).remote(said, work[place], *more)
                for place in places
            }
            try:
                answers |= self._received(calls)
                return [answers.get(place, []) for place in range(len(work))]
            except _LostError as lost:
                answers |= lost.answers
                places, last = lost.errors, lost
        raise _died() from last

    def close(self) -> None:
        """Ends the actors."""
        for actor in self.actors:
            self.ray.kill(actor)

    def _received(self, calls: Mapping[int, Any]) -> dict[int, Any]:
        """The answers to calls by their place, or a `_LostError`."""
        deadline = None if self.timeout is None else time.monotonic() + self.timeout

        def get(received: Any) -> Any:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            return self.ray.get(received, timeout=left)

        answers, errors = {}, {}
        try:
            try:
                return dict(zip(calls, get(list(calls.values())), strict=True))
            except self._gone:
                pass  # a `get` for each call tells which actors are gone
            for place, call in calls.items():
                try:
                    answers[place] = get(call)
                except self._gone as error:
                    errors[place] = error
        except self.ray.exceptions.GetTimeoutError as error:
            raise ClientError(
                f"Clients did not answer within engine.timeout={self.timeout:g} seconds: "
                "raise it, then continue from the checkpoint with resume=."
            ) from error
        raise _LostError(answers, errors)

    def _replace(self, places: Collection[int]) -> None:
        for place in places:
            self.ray.kill(self.actors[place])
            self.actors[place] = self._actor.remote(self.debug)

    def _start(self, places: Collection[int]) -> None:
        """Waits for new actors, checks their nodes, and has them build their cohorts."""
        deadline = time.monotonic() + self.revive_seconds
        while True:
            try:
                nodes = self._started(places, deadline)
                actors = {place: self.actors[place] for place in nodes}
                if self.versions is not None:
                    calls = {place: actor.versions.remote() for place, actor in actors.items()}
                    for place, there in self._received(calls).items():
                        node = node_in_words(self.ray, nodes[place])
                        refuse_versions(node, self.versions, there)
                if self.secret:
                    here = self.ray.get_runtime_context().get_node_id()
                    refuse_unencrypted(here, nodes.values())
                if self.records is not None:
                    calls = {place: self.records.call(actor) for place, actor in actors.items()}
                    read = self._received(calls).items()
                    self.records.check({node_in_words(self.ray, nodes[p]): a for p, a in read})
                built = {place: actor.host.remote(self.build) for place, actor in actors.items()}
                try:
                    self._received(built)
                except self.ray.exceptions.RayTaskError as error:
                    raise ClientError(
                        "A Ray actor could not build the apps of its clients; --debug shows why."
                    ) from error
                return
            except _LostError as lost:  # Ray may have put actors on a node that is going down
                if time.monotonic() > deadline:
                    raise _died() from lost
                time.sleep(_PAUSE)
                self._replace(lost.errors)

    def _started(self, places: Collection[int], deadline: float) -> dict[int, str]:
        """The nodes that new actors are on, by place."""
        nodes: dict[int, str] = {}
        calls = {self.actors[place].place.remote(): place for place in places}
        try:
            while calls:
                left = max(0.0, deadline - time.monotonic())
                started, waiting = self.ray.wait(list(calls), timeout=left)
                if not started:
                    raise ClientError(
                        f"{len(waiting)} of {len(self)} cohorts did not start within engine."
                        f"revive_seconds={self.revive_seconds:g}: {self.places.shortage()}; add "
                        "nodes or lower engine.actors, or continue from the checkpoint with "
                        "resume=."
                    )
                # One that is lost is replaced while the others wait.
                nodes |= self._received({calls.pop(call): call for call in started})
            return nodes
        except self.ray.exceptions.RuntimeEnvSetupError as error:
            raise ClientError(
                f"Ray could not send fedsink to a node of the cluster: {first_line(error)}."
            ) from error
        except _LostError as lost:
            for cause in lost.errors.values():
                if getattr(cause, "actor_init_failed", False):
                    raise ClientError(
                        f"A Ray actor could not be started ({str(cause).strip().splitlines()[-1]})"
                        ": install fedsink's requirements on every node."
                    ) from cause
            raise


def _died() -> ClientError:
    return ClientError(
        "Ray actors that hosted clients died again and again, most likely for lack of memory: use "
        "fewer actors (engine.actors=1) or continue from the checkpoint with resume=."
    )
