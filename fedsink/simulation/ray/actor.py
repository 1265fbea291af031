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
from fedsink.simulation.ray.cluster import versions

if TYPE_CHECKING:
    from fedsink.simulation.grid import Portion
    from fedsink.simulation.virtual_clients import Cohort, Job


class Question(NamedTuple):
    """The part of one round's messages that is sent to all cohorts alike.

    Attributes:
        contents: the distinct contents of the messages, or `Content.said` of the broadcasts.
        passes: digests of the uses that are charged, where the cohorts have no ledger.
    """

    contents: list[Any]
    passes: list[bytes]


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
        """The versions that this process runs."""
        return versions()

    def host(self, build: Callable[[], Cohort]) -> None:
        """Builds the cohort."""
        self._cohort = build()

    def process(self) -> int:
        """The id of the actor's process."""
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
