"""The grid of `engine=ray`: one call and one answer per cohort and round.

`RayGrid` asks the cohorts. On a cluster `DriverAdmission` first charges the messages.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from fedsink.clients.node_cohort import NodeCohort
from fedsink.clients.node_settings import NodeSettings
from fedsink.environment import ray_is_connected
from fedsink.errors import PrivacyError
from fedsink.privacy import SecretKey
from fedsink.protocol.exchange import Content, Exchange
from fedsink.protocol.tree_sum import BLOCK
from fedsink.simulation.grid import NO_REPLIES, PartialSum, SimulationGrid, client_of, divide
from fedsink.simulation.ray.cluster import (
    INLINE,
    INLINE_JOINED,
    CohortPlaces,
    NodeRecords,
    start,
    versions,
)
from fedsink.simulation.ray.cohorts import Cohorts, Question
from fedsink.simulation.virtual_clients import Cohort, Hosted, Job, fedsink_apps, keep_freed_memory


class RayGrid(SimulationGrid):
    """Hosts the clients in cohorts, each in a Ray actor; a round's distinct contents travel once.

    A cohort whose actor died, or whose node is gone, is built again in a new one, which answers the
    same requests. That charges no client twice: its ledger knows an identical request.

    Args:
        settings: of the clients, from which each cohort builds its apps.
        actors, num_cpus, num_gpus, data, timeout, revive_seconds: as in `EngineSettings`. Ray shows
            a GPU only to its cohort's actor (CUDA_VISIBLE_DEVICES), where `settings.device` is
            "cuda".
        address: None for a Ray instance of only this machine, or the one that this process is
            connected to already; "auto" or "host:port" for a cluster, whose processes are then
            given this fedsink. Those of several machines are compared with this one.
        debug: print the clients' logs.
        host: builds a cohort's apps from the settings; picklable.
        revivals: number of times that a round's requests are sent again because cohorts were lost.
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
            self._batched = host(settings).batched
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

    def adds_up(self, message_type: str) -> bool:
        return self._batched is not None and self._batched.handles(message_type)

    def partial_sums(self, exchange: Exchange) -> list[list[PartialSum]]:
        block = BLOCK if self._batched is None else self._batched.block
        shares = divide(exchange, len(self.cohorts), block)
        contents = [broadcast.content.said for broadcast in exchange.broadcasts]
        passes = [] if self._admission is None else self._admission.admit(exchange)
        question = Question(contents, passes)
        answered = self.cohorts.ask("add_up", question, shares, exchange.message_type)
        partial_sums = []
        for portions, answers in zip(shares, answered, strict=True):
            of_cohort = [NO_REPLIES] * len(contents)
            for portion, (sums, counted, failures) in zip(portions, answers, strict=True):
                tensors = [(block, _read_only(values)) for block, values in sums]
                of_cohort[portion.place] = PartialSum(tensors, counted, failures)
            partial_sums.append(of_cohort)
        return partial_sums

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
        self._clients = NodeCohort(replace(settings, device="cpu"))  # they compute nothing here
        # Of the cohorts: with the key, and without a path of this disk.
        self.settings = replace(settings, lent=key, key_file=None, ledger=None)

    @staticmethod
    def lendable(settings: NodeSettings) -> Path:
        """The key file; refused where replies must be stored on this disk."""
        if settings.policy is not None or settings.noise == "secure" or settings.key_file is None:
            kept = "policy=" if settings.policy is not None else "noise=secure"
            raise PrivacyError(
                f"{kept} keeps its replies on this machine's disk, where a cluster's nodes cannot "
                "store any: leave out engine.address, or use the fast noise of a run without it."
            )
        return settings.key_file

    def admit(self, exchange: Exchange) -> list[bytes]:
        """Charges a round of broadcasts; the passes of all admitted clients."""
        return [
            digest
            for broadcast in exchange.broadcasts
            for digest in self._clients.admit(
                exchange.message_type, broadcast.content, list(broadcast.nodes)
            )
        ]

    def admit_each(self, messages: Sequence[Message]) -> list[bytes]:
        """Charges single messages; the passes of all admitted clients."""
        return [
            digest
            for message in messages
            for digest in self._clients.admit(
                message.metadata.message_type,
                Content.received(message.content),
                [client_of(message.metadata.dst_node_id)],
            )
        ]


def _read_only(values: np.ndarray) -> Tensor:
    """A tensor over an array that Ray received, which may not be written: `TreeSum` copies it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of memory that is not writable
        return torch.from_numpy(values)


def cohort_of(host: Callable[[Any], Hosted], settings: Any) -> Cohort:
    """The cohort that an actor builds in its process."""
    return Cohort(host(settings), settings.clients, run_id=1)
