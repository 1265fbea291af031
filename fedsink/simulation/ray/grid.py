"""The grid over Ray: one call and one answer per cohort and round."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from fedsink.clients.node_settings import NodeSettings
from fedsink.protocol.exchange import Exchange
from fedsink.simulation.cohort import Cohort, Hosted, Job, fedsink_apps, keep_freed_memory
from fedsink.simulation.grid import SimulationGrid, client_of
from fedsink.simulation.partial import Partial, parts
from fedsink.simulation.ray.actor import Asked
from fedsink.simulation.ray.cluster import INLINE, INLINE_OF_OTHERS, Places, start
from fedsink.simulation.ray.cohorts import Cohorts
from fedsink.simulation.ray.lending import Lending
from fedsink.simulation.ray.records import Records
from fedsink.simulation.ray.versions import versions


class RayGrid(SimulationGrid):
    """A round's distinct contents, pickled once, one call and one answer per cohort.

    A cohort whose actor died, or whose node is gone, lives on in a new one, which answers the same
    requests again. That charges no client twice: its ledger knows an identical request.

    Args:
        settings: what each cohort builds its apps from; `settings.clients` is how many clients
            there are.
        actors: number of cohorts; None means one per CPU core, at most one per client.
        address: None for a Ray instance of this machine alone; "auto" or "host:port" for a
            cluster, whose processes are then given this fedsink and are compared with this one.
        num_cpus: CPU cores of an instance of this machine; None means all.
        num_gpus: fraction of a GPU that each cohort holds; Ray shows it to the cohort's actor
            alone (CUDA_VISIBLE_DEVICES), where `settings.device` is "cuda".
        data: whether every node reads the records where `settings.data` says, or Ray's memory
            holds them once a node.
        timeout: seconds to wait for a round's replies; None waits for ever.
        revive_seconds: how long to wait for places for the cohorts, at the start and after a loss.
        debug: print what clients log.
        host: builds a cohort's apps from the settings; picklable.
        revivals: how often the requests of one round are sent again because cohorts were lost.

    Raises:
        ConfigError: there is no such cluster, or it lacks the GPUs that the cohorts ask for.
        DataError: the records cannot be read here.
        PrivacyError: the clients' noise cannot be drawn on other machines.
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
        run_id: int = 1,
        debug: bool = False,
        host: Callable[[Any], Hosted] = fedsink_apps,
        revivals: int = 3,
    ) -> None:
        super().__init__(settings.clients, run_id)
        keep_freed_memory()
        self._ray = start(address, num_cpus, debug)
        self._batched = host(settings).batched
        self._lending: Lending | None = None
        if address is not None:
            settings = self._without_files(settings)
        records = None
        try:
            self._places = Places(self._ray, settings.clients, actors, num_gpus)
            if address is not None or data == "object_store":
                records = Records(self._ray, settings.data, sent=data == "object_store")
        except BaseException:
            self._ray.shutdown()
            raise
        self.cohorts = Cohorts(
            self._ray,
            self._places,
            partial(cohort_of, host, settings, run_id),
            # Processes of this machine start from the files that this one has started from.
            versions=None if address is None else versions(),
            records=records,
            secret=self._lending is not None,
            timeout=timeout,
            revive_seconds=revive_seconds,
            revivals=revivals,
            inline=INLINE if address is None else INLINE_OF_OTHERS,
            debug=debug,
        )

    def _without_files(self, settings: NodeSettings) -> NodeSettings:
        """What cohorts on other machines build their apps from: no path of this disk."""
        if settings.seed is None:
            self._lending = Lending(settings)
            settings = self._lending.settings
        return replace(settings, key_file=None, ledger=None)

    def execute(self, messages: Sequence[Message]) -> list[Message]:
        """Answer one round's messages.

        Raises:
            ClientError: actors died again and again, or did not answer in time.
        """
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
        asked = Asked(contents, [])
        if self._lending is not None:
            clients = [client_of(message.metadata.dst_node_id) for message in messages]
            asked = Asked(contents, self._lending.passes_one_by_one(messages, clients))
        answered = self.cohorts.ask("answer", asked, jobs)
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
        shares = parts(exchange, len(self.cohorts))
        contents = [broadcast.content.said for broadcast in exchange.broadcasts]
        passes = [] if self._lending is None else self._lending.passes(exchange)
        answered = self.cohorts.ask(
            "add_up", Asked(contents, passes), shares, exchange.message_type
        )
        partials = []
        for share, answers in zip(shares, answered, strict=True):
            of_cohort = [Partial([], 0, {}) for _ in contents]
            for part, (sums, counted, failures) in zip(share, answers, strict=True):
                tensors = [(block, _read_only(values)) for block, values in sums]
                of_cohort[part.place] = Partial(tensors, counted, failures)
            partials.append(of_cohort)
        return partials

    def keep(self, round: int) -> None:
        """Keep what the cohorts' clients remember.

        Raises:
            ClientError: actors died again and again, or did not answer in time.
        """
        self.cohorts.ask("keep", Asked([], []), [[round] for _ in range(len(self.cohorts))])

    def close(self) -> None:
        """End the actors, and the Ray instance or the connection to it."""
        self.cohorts.close()
        self._places.close()
        self._ray.shutdown()


def _read_only(values: np.ndarray) -> Tensor:
    """Values that Ray received, which nobody may write to: `TreeSum` copies what it keeps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch would rather have them writable
        return torch.from_numpy(values)


def cohort_of(host: Callable[[Any], Hosted], settings: Any, run_id: int) -> Cohort:
    """What an actor makes in its own process."""
    return Cohort(host(settings), settings.clients, run_id)
