"""`engine=ray`: cohorts of virtual clients in Ray actors, on fractions of GPUs or on CPU cores."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from flwr.app import Error, Message, RecordDict

from fedsink.clients.app import client_app
from fedsink.clients.settings import NodeSettings
from fedsink.errors import ClientError, ConfigError
from fedsink.simulation.grid import SimulationGrid, client_context, client_of
from fedsink.simulation.identity import become, set_message_id

# (place in the round, node, index into the shared contents, message type, group)
Job = tuple[int, int, int, str, str]
Answer = tuple[int, RecordDict | Error]


class Cohort:
    """The actor: client k lives in cohort k mod (number of cohorts), with its data."""

    def __init__(self, settings: NodeSettings, run_id: int, debug: bool) -> None:
        logging.getLogger("fedsink").setLevel(logging.DEBUG if debug else logging.ERROR)
        self._settings = settings
        self._run_id = run_id
        self._app = client_app(settings)

    def answer(self, contents: list[RecordDict], jobs: list[Job]) -> list[Answer]:
        """Answer one round's messages to this cohort's clients."""
        answers: list[Answer] = []
        for place, node, index, message_type, group in jobs:
            become(self._run_id, node)
            message = Message(
                contents[index], dst_node_id=node, message_type=message_type, group_id=group
            )
            set_message_id(message, str(place))
            context = client_context(client_of(node), self._settings.clients, self._run_id)
            reply = self._app(message, context)
            answers.append((place, reply.error if reply.has_error() else reply.content))
        return answers


class RayGrid(SimulationGrid):
    """One `ray.put` of a round's distinct contents, one call per cohort, one `ray.get`.

    Args:
        settings: what each cohort builds its `ClientApp` from.
        actors: number of cohorts; None means one per CPU core, at most one per client.
        num_cpus: CPU cores of the Ray instance; None means all.
        num_gpus: fraction of a GPU that each cohort holds.
        timeout: seconds to wait for a round's replies; None waits for ever.
        debug: print what clients log.

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
    ) -> None:
        super().__init__(settings.clients, run_id)
        self._ray = _start(num_cpus, debug)
        self._timeout = timeout
        resources = self._ray.cluster_resources()
        cores = int(resources.get("CPU", 1))
        count = min(settings.clients, actors or cores)
        if count * num_gpus > resources.get("GPU", 0.0):
            self._ray.shutdown()
            # Ray would wait for ever for a GPU to appear.
            raise ConfigError(
                f"{count} cohorts of engine.num_gpus={num_gpus:g} do not fit on "
                f"{resources.get('GPU', 0.0):g} GPUs: lower engine.num_gpus or engine.actors."
            )
        # Cohorts share the cores they are given; asking for whole ones would deadlock on small
        # machines when there are more cohorts than cores.
        remote = self._ray.remote(num_cpus=min(1.0, cores / count), num_gpus=num_gpus)(Cohort)
        self._cohorts = [remote.remote(settings, run_id, debug) for _ in range(count)]

    def execute(self, messages: Sequence[Message]) -> list[Message]:
        """Answer one round.

        Raises:
            ClientError: an actor died, or did not answer in time.
        """
        contents: dict[int, int] = {}
        unique: list[RecordDict] = []
        jobs: list[list[Job]] = [[] for _ in self._cohorts]
        for place, message in enumerate(messages):
            content = message.content
            if id(content) not in contents:
                contents[id(content)] = len(unique)
                unique.append(content)
            meta = message.metadata
            cohort = client_of(meta.dst_node_id) % len(self._cohorts)
            jobs[cohort].append(
                (place, meta.dst_node_id, contents[id(content)], meta.message_type, meta.group_id)
            )
        shared = self._ray.put(unique)
        calls = [
            cohort.answer.remote(shared, mine)
            for cohort, mine in zip(self._cohorts, jobs, strict=True)
            if mine
        ]
        try:
            answers = [
                answer for part in self._ray.get(calls, timeout=self._timeout) for answer in part
            ]
        except self._ray.exceptions.RayActorError as error:
            raise ClientError(
                "A Ray actor that hosted clients died, most likely for want of memory: use fewer "
                "actors (engine.actors=1) or go on from the checkpoint with resume=."
            ) from error
        except self._ray.exceptions.GetTimeoutError as error:
            raise ClientError(
                f"Clients did not answer within engine.timeout={self._timeout:g} seconds: raise "
                "it, then go on from the checkpoint with resume=."
            ) from error
        return [_reply(messages[place], answer) for place, answer in answers]

    def close(self) -> None:
        """End the actors and the Ray instance."""
        for cohort in self._cohorts:
            self._ray.kill(cohort)
        self._ray.shutdown()


def _reply(message: Message, answer: RecordDict | Error) -> Message:
    return Message(answer, reply_to=message)


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
