"""The actors of all cohorts: asked together, compared before they are used, replaced when lost."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedsink.errors import ClientError
from fedsink.simulation.ray.actor import Actor
from fedsink.simulation.ray.cluster import (
    CohortPlaces,
    NodeRecords,
    first_line,
    node_in_words,
    refuse_unencrypted,
    refuse_versions,
)

if TYPE_CHECKING:
    from fedsink.simulation.virtual_clients import Cohort

log = logging.getLogger("fedsink.simulation")

_PAUSE = 0.2  # seconds before an actor that died at once is replaced again


class _LostError(Exception):
    """Some of the actors that were asked are gone.

    Args:
        answers: of the other actors, by place.
        errors: Ray's, by place.
    """

    def __init__(self, answers: Mapping[int, Any], errors: Mapping[int, Any]) -> None:
        super().__init__(f"{len(errors)} actors are gone")
        self.answers, self.errors = answers, errors


class Cohorts:
    """Keeps one actor for each place. The first question waits until all actors have started.

    Args:
        ray: the module, connected.
        places: of the cohorts.
        build: makes the cohort, in the actor's process; picklable.
        versions: those that every node must have; None where all run this process's files.
        records: of the clients; None where the nodes need not be compared.
        secret: `build` holds a key, which only this node, or a cluster with TLS, may be sent.
        timeout: seconds to wait for answers; None waits for ever.
        revive_seconds: time to wait until actors have started.
        revivals: number of times that one question is asked again because actors were lost.
        inline: bytes that a question may carry by itself; a larger one goes through Ray's memory.
        debug: print the clients' logs.
    """

    def __init__(
        self,
        ray: Any,
        places: CohortPlaces,
        build: Callable[[], Cohort],
        *,
        versions: Mapping[str, str] | None,
        records: NodeRecords | None,
        secret: bool,
        timeout: float | None,
        revive_seconds: float,
        revivals: int,
        inline: int,
        debug: bool,
    ) -> None:
        self._ray = ray
        self._places = places
        self._build = build
        self._versions = versions
        self._records = records
        self._secret = secret
        self._timeout = timeout
        self._revive_seconds = revive_seconds
        self._revivals = revivals
        self._inline = inline
        self._gone = ray.exceptions.RayActorError, ray.exceptions.ObjectLostError
        remote = ray.remote(Actor)
        self._new: Callable[[], Any] = lambda: remote.options(**places.options()).remote(debug)
        self.actors = [self._new() for _ in range(places.count)]
        self._ready = False

    def __len__(self) -> int:
        return len(self.actors)

    def ask(self, method: str, shared: Any, work: Sequence[Sequence[Any]], *more: Any) -> list[Any]:
        """Calls a method of every actor that has work; the answers of the others are empty.

        Args:
            method: of `Actor`.
            shared: its first argument, pickled once.
            work: its second argument, for each place.
            more: its other arguments.

        Raises:
            ClientError: actors died again and again, found no place, or did not answer in time.
        """
        if not self._ready:
            self._start(range(len(self.actors)))
            self._ready = True
        said: Any = pickle.dumps(shared, protocol=pickle.HIGHEST_PROTOCOL)
        if len(said) > self._inline:
            said = self._ray.put(said)
        answers: dict[int, Any] = {}
        places: Collection[int] = [place for place, items in enumerate(work) if items]
        for attempt in range(1 + self._revivals):
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
            self._ray.kill(actor)

    def _received(self, calls: Mapping[int, Any]) -> dict[int, Any]:
        """The answers to calls by their place.

        Raises:
            _LostError: actors are gone.
            ClientError: actors did not answer in time.
        """
        deadline = None if self._timeout is None else time.monotonic() + self._timeout

        def get(received: Any) -> Any:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            return self._ray.get(received, timeout=left)

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
        except self._ray.exceptions.GetTimeoutError as error:
            raise ClientError(
                f"Clients did not answer within engine.timeout={self._timeout:g} seconds: "
                "raise it, then continue from the checkpoint with resume=."
            ) from error
        raise _LostError(answers, errors)

    def _replace(self, places: Collection[int]) -> None:
        for place in places:
            self._ray.kill(self.actors[place])
            self.actors[place] = self._new()

    def _start(self, places: Collection[int]) -> None:
        """Waits for new actors, checks their nodes, and has them build their cohorts.

        Raises:
            ClientError: they found no place in time, died, or cannot be used.
            PrivacyError: a secret would be sent to other nodes in the clear.
        """
        deadline = time.monotonic() + self._revive_seconds
        while True:
            try:
                nodes = self._started(places, deadline)
                if self._versions is not None:
                    self._compare(nodes, self._versions)
                if self._secret:
                    here = self._ray.get_runtime_context().get_node_id()
                    refuse_unencrypted(here, nodes.values())
                if self._records is not None:
                    self._hand_out(nodes, self._records)
                self._host(places)
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
                started, waiting = self._ray.wait(list(calls), timeout=left)
                if not started:
                    raise ClientError(
                        f"{len(waiting)} of {len(self)} cohorts did not start within engine."
                        f"revive_seconds={self._revive_seconds:g}: {self._places.shortage()}; add "
                        "nodes or lower engine.actors, or continue from the checkpoint with "
                        "resume=."
                    )
                # One that is lost is replaced while the others wait.
                nodes |= self._received({calls.pop(call): call for call in started})
            return nodes
        except self._ray.exceptions.RuntimeEnvSetupError as error:
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

    def _compare(self, nodes: Mapping[int, str], versions: Mapping[str, str]) -> None:
        """Refuses nodes that have other versions than this process."""
        calls = {place: self.actors[place].versions.remote() for place in nodes}
        for place, there in self._received(calls).items():
            refuse_versions(node_in_words(self._ray, nodes[place]), versions, there)

    def _hand_out(self, nodes: Mapping[int, str], records: NodeRecords) -> None:
        """Has new actors read or take the records; refuses nodes that have others."""
        calls = {place: records.call(self.actors[place]) for place in nodes}
        answers = self._received(calls)
        records.check({node_in_words(self._ray, nodes[p]): a for p, a in answers.items()})

    def _host(self, places: Collection[int]) -> None:
        try:
            self._received({place: self.actors[place].host.remote(self._build) for place in places})
        except self._ray.exceptions.RayTaskError as error:
            raise ClientError(
                "A Ray actor could not build the apps of its clients; --debug shows why."
            ) from error


def _died() -> ClientError:
    return ClientError(
        "Ray actors that hosted clients died again and again, most likely for lack of memory: use "
        "fewer actors (engine.actors=1) or continue from the checkpoint with resume=."
    )
