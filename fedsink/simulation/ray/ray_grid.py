"""The grid of `engine=ray`: one call and one answer per cohort and round.

`RayGrid` asks the `Cohorts`: actors that are compared before they are used, and replaced when lost.
On a cluster `DriverAdmission` first charges the messages.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from flwr.app import Error, Message, RecordDict

from fedsink.clients.answers.registry import find_answer
from fedsink.clients.node import grant, keep_states, open_node
from fedsink.clients.node_cohort import NodeCohort
from fedsink.clients.node_settings import NodeSettings
from fedsink.data.labelled import LabelledData
from fedsink.data.sources import give, load
from fedsink.data.spec import DataSpec
from fedsink.environment import ray_is_connected
from fedsink.errors import ClientError, FedsinkError, PrivacyError
from fedsink.privacy import SecretKey
from fedsink.protocol.exchange import Content, Exchange, Uploads
from fedsink.protocol.failure_codes import failure_code
from fedsink.protocol.tree_sum import BLOCK, summed_block
from fedsink.simulation.grid import (
    NO_REPLIES,
    PartialSum,
    Portion,
    SimulationGrid,
    client_of,
    divide,
)
from fedsink.simulation.ray.cluster import (
    INLINE,
    INLINE_JOINED,
    CohortPlaces,
    NodeRecords,
    first_line,
    node_in_words,
    refuse_unencrypted,
    refuse_versions,
    start,
    versions,
)
from fedsink.simulation.virtual_clients import Cohort, Hosted, Job, fedsink_apps, keep_freed_memory

log = logging.getLogger("fedsink.simulation")
_PAUSE = 0.2  # seconds before an actor that died at once is replaced again


class RayGrid(SimulationGrid):
    """Hosts the clients in cohorts, each in a Ray actor; a round's distinct contents travel once.

    A cohort whose actor died, or whose node is gone, is built again in a new one, which answers the
    same requests. That charges no client twice: its ledger knows an identical request.

    Most arguments are as in `EngineSettings`; without an address it takes the Ray instance that
    this process is connected to already. Ray shows a GPU only to its cohort's actor
    (CUDA_VISIBLE_DEVICES), where `settings.device` is "cuda". `host` builds its apps from the
    settings, and is picklable; `debug` prints the clients' logs; `revivals` says how often a
    round's requests are sent again because cohorts were lost.
    """

    def __init__(
        self,
        settings: NodeSettings,
        *,
        actors: int | None = None,
        address: str | None = None,
        num_cpus: int | None = None,
        num_gpus: float = 0.0,
        data: Literal["path", "object_store"] = "path",
        timeout: float | None = None,
        revive_seconds: float = 300.0,
        debug: bool = False,
        host: Callable[[Any], Hosted] = fedsink_apps,
        revivals: int = 3,
    ) -> None:
        super().__init__(settings.clients)
        keep_freed_memory()
        self._is_ours = not ray_is_connected()
        self._ray = start(address, num_cpus, debug)
        self._admission: DriverAdmission | None = None
        records = None
        try:
            self.batched = host(settings).batched
            joined = address is not None or len(self._ray.nodes()) > 1
            if joined:  # no path of this disk is for other machines
                if settings.seed is None:
                    self._admission = DriverAdmission(settings)
                    settings = self._admission.settings
                settings = replace(settings, key_file=None, ledger=None)
            places = CohortPlaces(self._ray, settings.clients, actors, num_gpus)
            if joined or data == "object_store":
                records = NodeRecords(self._ray, settings.data, sent=data == "object_store")
            self.cohorts = Cohorts(
                self._ray,
                places,
                partial(cohort_of, host, settings),
                # Processes of this machine start from the files that this one has started from.
                versions=versions() if joined else None,
                records=records,
                secret=self._admission is not None,
                timeout=timeout,
                revive_seconds=revive_seconds,
                revivals=revivals,
                inline=INLINE if self._is_ours and not joined else INLINE_JOINED,
                debug=debug,
            )
        except BaseException:
            if self._is_ours:
                self._ray.shutdown()
            raise

    def execute(self, messages: Sequence[Message]) -> list[Message]:
        places: dict[int, int] = {}
        contents: list[RecordDict] = []
        jobs: list[list[Job]] = [[] for _ in range(len(self.cohorts))]
        for place, message in enumerate(messages):
            content, meta = message.content, message.metadata
            if id(content) not in places:
                places[id(content)] = len(contents)
                contents.append(content)
            job = (place, meta.dst_node_id, places[id(content)], meta.message_type, meta.group_id)
            jobs[client_of(meta.dst_node_id) * len(jobs) // self.clients].append(job)
        passes = [] if self._admission is None else self._admission.admit_each(messages)
        answered = self.cohorts.ask("answer", Question(contents, passes), jobs)
        return [
            Message(answer, reply_to=messages[place]) for part in answered for place, answer in part
        ]

    def partial_sums(self, exchange: Exchange) -> list[list[PartialSum]]:
        block = BLOCK if self.batched is None else self.batched.block
        shares = divide(exchange, len(self.cohorts), block)
        question = self._question(exchange)
        answered = self.cohorts.ask("add_up", question, shares, exchange.message_type)
        partial_sums = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns of memory that is not writable
            for portions, answers in zip(shares, answered, strict=True):
                of_cohort = [NO_REPLIES] * len(exchange.broadcasts)
                for portion, (sums, counted, failures) in zip(portions, answers, strict=True):
                    # An array that Ray received may not be written: `TreeSum` copies it.
                    tensors = [(block, torch.from_numpy(values)) for block, values in sums]
                    of_cohort[portion.place] = PartialSum(tensors, counted, failures)
                partial_sums.append(of_cohort)
        return partial_sums

    def uploaded(self, exchange: Exchange) -> Uploads:
        shares = divide(exchange, len(self.cohorts), summed_block(self.clients))
        question = self._question(exchange)
        parts = [
            part
            for answered in self.cohorts.ask("upload", question, shares, exchange.message_type)
            for part in answered
        ]
        failures = {client: code for _, failed in parts for client, code in failed.items()}
        arrays = zip(*(arrays for arrays, _ in parts if arrays), strict=True)
        return Uploads([torch.from_numpy(np.concatenate(each)) for each in arrays], failures)

    def _question(self, exchange: Exchange) -> Question:
        """Returns the contents of broadcasts, and the passes of those that are admitted."""
        passes = [] if self._admission is None else self._admission.admit(exchange)
        return Question([broadcast.content.payload for broadcast in exchange.broadcasts], passes)

    def keep(self, round: int) -> None:
        self.cohorts.ask("keep", Question([], []), [[round] for _ in range(len(self.cohorts))])

    def close(self) -> None:
        """Ends the actors, and the Ray instance or the connection to it, except a caller's own."""
        self.cohorts.close()
        if self._is_ours:
            self._ray.shutdown()


class DriverAdmission:
    """Admits messages at the driver, to clients in cohorts on other machines with a secret key.

    Key file and ledger stay on this machine's disk. The cohorts get the key and, with each
    message, a pass for every use that was charged. Noise is a function of key, client, round and
    charge: a cohort that is started again draws the same.

    Guarantees:
        - A charge is committed before its message is sent to any cohort.
        - The key is given only to processes on this machine's node, or over TLS.
    """

    def __init__(self, settings: NodeSettings) -> None:
        key = SecretKey.load(self.lendable(settings))
        self._settings = replace(settings, device="cpu")  # clients compute nothing here
        self._cohort = NodeCohort(self._settings)
        # Of the cohorts: with the key, and without a path of this disk.
        self.settings = replace(settings, lent=key, key_file=None, ledger=None)

    @staticmethod
    def lendable(settings: NodeSettings) -> Path:
        """Returns the key file; raises PrivacyError where replies are stored on this disk."""
        if settings.policy is not None or settings.noise == "secure" or settings.key_file is None:
            kept = "policy=" if settings.policy is not None else "noise=secure"
            raise PrivacyError(
                f"{kept} keeps its replies on this machine's disk, where a cluster's nodes cannot "
                "store any: leave out engine.address, or use the fast noise of a run without it."
            )
        return settings.key_file

    def admit(self, exchange: Exchange) -> list[bytes]:
        """Charges a round of broadcasts; returns the passes of those that are admitted."""
        return [
            digest
            for broadcast in exchange.broadcasts
            for digest in self._cohort.admit(
                exchange.message_type, broadcast.content, broadcast.clients
            )
        ]

    def admit_each(self, messages: Sequence[Message]) -> list[bytes]:
        """Charges single messages; returns the passes of the admitted clients."""
        passes: list[bytes] = []
        for message in messages:
            client, kind = client_of(message.metadata.dst_node_id), message.metadata.message_type
            try:
                answer = find_answer(kind, None).read(message.content, None)
                node = open_node(self._settings, client)
                passes += node.admit(answer, answer.digest(message.content)).digests
            except Exception as error:  # a refused one has no pass
                failure_code(error, client)
        return passes


def cohort_of(host: Callable[[Any], Hosted], settings: Any) -> Cohort:
    """The cohort that an actor builds in its process."""
    return Cohort(host(settings), settings.clients, run_id=1)


class Question(NamedTuple):
    """The part of one round's messages that is sent to all cohorts alike."""

    contents: list[Any]  # the distinct ones of the messages, or `Content.payload` of the broadcasts
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

    def upload(self, said: bytes, portions: Sequence[Portion], message_type: str) -> list[Any]:
        """Uploads the records of portions of one broadcast: the values of `Uploads` for each."""
        question: Question = pickle.loads(said)
        grant(question.passes)
        [content] = map(Content.received, question.contents)
        found = self._cohort.upload(message_type, content, [p.clients for p in portions])
        return [([t.numpy() for t in u.tensors], u.failures) for u in found]


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
