"""The process of one cohort."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flwr.app import Error, RecordDict

from fedsink.clients.node import grant, keep_states
from fedsink.data.labelled import LabelledData
from fedsink.data.sources import give, load
from fedsink.data.spec import DataSpec
from fedsink.errors import FedsinkError
from fedsink.protocol.exchange import Content
from fedsink.simulation.ray.versions import versions

if TYPE_CHECKING:
    from fedsink.simulation.cohort import Cohort, Job
    from fedsink.simulation.partial import Part


class Asked(NamedTuple):
    """What all cohorts are sent of one round.

    Attributes:
        contents: the distinct contents of its messages, as records, or of its broadcasts, as
            `Content.said`.
        passes: what has been charged, where the cohorts have no ledger.
    """

    contents: list[Any]
    passes: list[bytes]


class Actor:
    """One cohort in a process of its own.

    Before `host` nothing may be asked but `place`, `versions`, `digest` and `hold`: what a cohort
    is made of is sent to a process that has shown where it is, what it runs and what it reads.

    What comes and goes is pickled, but tensors travel as NumPy arrays: Ray copies these without
    a detour.
    """

    def __init__(self, debug: bool) -> None:
        logging.getLogger("fedsink").setLevel(logging.DEBUG if debug else logging.ERROR)
        self._cohort: Cohort

    def place(self) -> str:
        """The id of the Ray node that this process is on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def digest(self, data: DataSpec) -> str:
        """Read the records here; the digest of all, or an error in words."""
        try:
            return load(data).digest()
        except FedsinkError as error:
            return f"none ({error})"

    def hold(self, data: DataSpec, arrays: Mapping[str, np.ndarray]) -> None:
        """Take the records from Ray's memory, where all processes of a node share them."""
        give(data, "train", LabelledData.of_arrays(arrays))

    def versions(self) -> dict[str, str]:
        """What this process runs."""
        return versions()

    def host(self, build: Callable[[], Cohort]) -> None:
        """Build the cohort."""
        self._cohort = build()

    def process(self) -> int:
        """The id of the actor's process."""
        return os.getpid()

    def answer(self, said: bytes, jobs: list[Job]) -> list[tuple[int, RecordDict | Error]]:
        """Answer messages one by one."""
        asked: Asked = pickle.loads(said)
        grant(asked.passes)
        return self._cohort.answer_jobs(asked.contents, jobs)

    def keep(self, said: bytes, rounds: list[int]) -> None:
        """Keep what this cohort's clients remember after a round."""
        keep_states(rounds[0])

    def add_up(self, said: bytes, parts: Sequence[Part], message_type: str) -> list[Any]:
        """Answer broadcasts; what `partials` reads."""
        asked: Asked = pickle.loads(said)
        grant(asked.passes)
        received = [Content.received(said) for said in asked.contents]
        return [
            ([(client, values.numpy()) for client, values in p.sums], p.clients, p.failures)
            for p in self._cohort.add_up(message_type, received, parts)
        ]
