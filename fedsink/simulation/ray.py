"""`engine=ray`: cohorts of virtual clients in Ray actors, on fractions of GPUs or on CPU cores."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from flwr.app import Error, Message, RecordDict

from fedsink.clients.settings import NodeSettings
from fedsink.errors import ClientError, ConfigError
from fedsink.protocol.exchange import Content, Exchange
from fedsink.simulation.cohort import Cohort, Hosted, Job, fedsink_apps
from fedsink.simulation.grid import SimulationGrid, client_of
from fedsink.simulation.partial import Part, Partial, parts

log = logging.getLogger("fedsink.simulation")


class Actor:
    """One cohort in a process of its own.

    What comes and goes is pickled, but tensors travel as NumPy arrays: Ray copies these without
    a detour.
    """

    def __init__(
        self,
        host: Callable[[Any], Hosted],
        settings: Any,
        run_id: int,
        debug: bool,
    ) -> None:
        logging.getLogger("fedsink").setLevel(logging.DEBUG if debug else logging.ERROR)
        self._cohort = Cohort(host(settings), settings.clients, run_id)

    def process(self) -> int:
        """The id of the actor's process."""
        return os.getpid()

    def answer(
        self, contents: list[RecordDict], jobs: list[Job]
    ) -> list[tuple[int, RecordDict | Error]]:
        """Answer messages one by one."""
        return self._cohort.answer_jobs(contents, jobs)

    def add_up(
        self, contents: list[RecordDict], parts: Sequence[Part], message_type: str
    ) -> list[Any]:
        """Answer broadcasts; what `partials` reads."""
        received = [_received(record) for record in contents]
        return [
            ([(client, values.numpy()) for client, values in p.sums], p.clients, p.failures)
            for p in self._cohort.add_up(message_type, received, parts)
        ]


def _received(record: RecordDict) -> Content:
    return Content(None, lambda: record)


class RayGrid(SimulationGrid):
    """One `ray.put` of a round's distinct contents, one call and one answer per cohort.

    A cohort whose actor died lives on in a new one, which answers the same requests again. That
    charges no client twice: its ledger knows an identical request.

    Args:
        settings: what each cohort builds its apps from; `settings.clients` is how many clients
            there are.
        actors: number of cohorts; None means one per CPU core, at most one per client.
        num_cpus: CPU cores of the Ray instance; None means all.
        num_gpus: fraction of a GPU that each cohort holds; Ray shows it to the cohort's actor
            alone (CUDA_VISIBLE_DEVICES), where `settings.device` is "cuda".
        timeout: seconds to wait for a round's replies; None waits for ever.
        debug: print what clients log.
        host: builds a cohort's apps from the settings; picklable.
        revivals: how many deaths of actors a run survives.

    Raises:
        ConfigError: the machine lacks the GPUs that the cohorts ask for.
    """

    def __init__(
        self,
        settings: NodeSettings,
        *,
        actors: int | None = None,
        num_cpus: int | None = None,
        num_gpus: float = 0.0,
        timeout: float | None = None,
        run_id: int = 1,
        debug: bool = False,
        host: Callable[[Any], Hosted] = fedsink_apps,
        revivals: int = 3,
    ) -> None:
        super().__init__(settings.clients, run_id)
        self._ray = _start(num_cpus, debug)
        self._timeout = timeout
        self._revivals = revivals
        self._batched = host(settings).batched
        resources = self._ray.cluster_resources()
        cores = int(resources.get("CPU", 1))
        count = min(settings.clients, actors or cores)
        if num_gpus > 0 and count > _room(resources.get("GPU", 0.0), num_gpus):
            self._ray.shutdown()
            # Ray would wait for ever for a GPU to appear.
            raise ConfigError(
                f"{count} cohorts of engine.num_gpus={num_gpus:g} do not fit on "
                f"{resources.get('GPU', 0.0):g} GPUs: lower engine.num_gpus or engine.actors."
            )
        # Cohorts share the cores they are given; asking for whole ones would deadlock on small
        # machines when there are more cohorts than cores.
        remote = self._ray.remote(num_cpus=min(1.0, cores / count), num_gpus=num_gpus)(Actor)
        self._new: Callable[[], Any] = lambda: remote.remote(host, settings, run_id, debug)
        self._actors = [self._new() for _ in range(count)]

    def execute(self, messages: Sequence[Message]) -> list[Message]:
        """Answer one round's messages.

        Raises:
            ClientError: actors died again and again, or did not answer in time.
        """
        places: dict[int, int] = {}
        contents: list[RecordDict] = []
        jobs: list[list[Job]] = [[] for _ in self._actors]
        for place, message in enumerate(messages):
            content, meta = message.content, message.metadata
            if id(content) not in places:
                places[id(content)] = len(contents)
                contents.append(content)
            job = (place, meta.dst_node_id, places[id(content)], meta.message_type, meta.group_id)
            jobs[client_of(meta.dst_node_id) * len(jobs) // self.clients].append(job)
        answered = self._ask("answer", contents, jobs)
        return [
            Message(answer, reply_to=messages[place]) for part in answered for place, answer in part
        ]

    def adds_up(self, message_type: str) -> bool:
        """Whether the cohorts answer messages of this type at once."""
        return self._batched is not None and self._batched.handles(message_type)

    def partials(self, exchange: Exchange) -> list[list[Partial]]:
        """The sums of the cohorts' replies.

        Raises:
            ClientError: actors died again and again, or did not answer in time.
        """
        shares = parts(exchange, len(self._actors))
        contents = [broadcast.content.record for broadcast in exchange.broadcasts]
        answered = self._ask("add_up", contents, shares, exchange.message_type)
        partials = []
        for share, answers in zip(shares, answered, strict=True):
            of_cohort = [Partial([], 0, {}) for _ in contents]
            for part, (sums, counted, failures) in zip(share, answers, strict=True):
                # Copied, for Ray's memory is read-only, and gone with the answer.
                tensors = [(client, torch.tensor(values)) for client, values in sums]
                of_cohort[part.place] = Partial(tensors, counted, failures)
            partials.append(of_cohort)
        return partials

    def close(self) -> None:
        """End the actors and the Ray instance."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._ray.shutdown()

    def _ask(
        self, method: str, contents: list[RecordDict], work: Sequence[list[Any]], *more: Any
    ) -> list[Any]:
        """Call a method of every actor that has work; an empty answer for each other one."""
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        shared = self._ray.put(contents)

        def ask(place: int) -> Any:
            return getattr(self._actors[place], method).remote(shared, work[place], *more)

        calls = {place: ask(place) for place, jobs in enumerate(work) if jobs}
        answers: list[Any] = [[] for _ in work]
        together = True
        while calls:
            # One `get` for all; where that meets a death, one for each tells whose.
            places = list(calls) if together else [next(iter(calls))]
            try:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                received = self._ray.get([calls[place] for place in places], timeout=left)
            except self._ray.exceptions.RayActorError as error:
                if len(places) == 1:
                    self._revive(places[0], error)
                    calls[places[0]] = ask(places[0])
                together = False
                continue
            except self._ray.exceptions.GetTimeoutError as error:
                raise ClientError(
                    f"Clients did not answer within engine.timeout={self._timeout:g} seconds: "
                    "raise it, then continue from the checkpoint with resume=."
                ) from error
            for place, answer in zip(places, received, strict=True):
                answers[place] = answer
                del calls[place]
        return answers

    def _revive(self, place: int, error: Exception) -> None:
        """Put a new actor in the place of a dead one."""
        if "creation task" in str(error):
            raise ClientError(
                "A Ray actor could not build the apps of its clients; --debug shows why."
            ) from error
        if self._revivals == 0:
            raise ClientError(
                "Ray actors that hosted clients died again and again, most likely for lack of "
                "memory: use fewer actors (engine.actors=1) or continue from the checkpoint with "
                "resume=."
            ) from error
        self._revivals -= 1
        log.warning("actor %d died; a new one hosts its clients", place)
        self._actors[place] = self._new()


def _room(gpus: float, share: float) -> int:
    """How many cohorts fit: each holds its share of one GPU, or several whole ones."""
    if share > 1:
        return int(gpus / share)
    return int(gpus) * int(1 / share + 1e-9)


def _start(num_cpus: int | None, debug: bool) -> Any:
    # Before the import: Ray reads these once.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    ray.init(
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=debug,
        logging_level=logging.INFO if debug else logging.ERROR,
        configure_logging=debug,
        ignore_reinit_error=True,
    )
    return ray
