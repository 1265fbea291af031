"""Local mode, client side: records are privatized once, then only copied.

The client's part of Reshetova, Chen, Özgür 2024: Y = f(x) + noise of the mechanism whose
negative log-likelihood is the server's cost (Theorem 1); `privatize` computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from fedsink.clients.answers.base import Answer, Asked, Neighbours, Task, check_classes
from fedsink.clients.owner.ledger.charge import Charge
from fedsink.clients.owner.policy import Policy
from fedsink.clients.records.shard import Shard
from fedsink.data.maps import PointBall
from fedsink.data.spec import DataSpec
from fedsink.privacy import LOCAL_MECHANISMS, Stream
from fedsink.privacy.adjacency import REPLACE_ONE
from fedsink.privacy.randomness.noise import SideBySide
from fedsink.protocol.packing import Packed, digest, pack
from fedsink.protocol.privatize_once import (
    LocalPlan,
    PrivatizeReply,
    PrivatizeRequest,
    asked_mechanism,
)

if TYPE_CHECKING:
    from flwr.app import RecordDict

    from fedsink.clients.records.pool import Pool

LABELS = "randomized-response"


class PrivatizeOnceAnswer(Answer):
    """``train.privatize_once``: one chunk of the records, all of which `privatize` releases once.

    Guarantees:
        Under a policy no mechanism is imported that the policy does not name.
    """

    name = PrivatizeRequest.name
    adjacency = REPLACE_ONE
    in_parts = True
    rounds = ((1, None),)
    parts = ("values", "labels")

    def __init__(self, requests: Sequence[PrivatizeRequest]) -> None:
        [self.request] = requests
        self.run, self.plan = self.request.run, self.request.plan

    @classmethod
    def words(cls) -> tuple[str, ...]:
        """Returns the names of all mechanisms for images, and of that for labels."""
        return (*LOCAL_MECHANISMS, LABELS)

    @classmethod
    def read(cls, record: RecordDict, policy: Policy | None) -> Self:
        """Returns the message's one request."""
        if policy is not None:  # the plan looks its mechanism up
            policy.check_mechanism(asked_mechanism(record))
        return cls([PrivatizeRequest.from_record(record)])

    def digest(self, record: RecordDict | Packed) -> bytes:
        """Returns the digest of the plan: the chunk asked for changes nothing in the release."""
        return digest(f"train.{self.name}", pack({"plan": self.plan.to_dict()}, {}))

    def check_policy(self, policy: Policy) -> None:
        """Refuses a mechanism, classes or a δ that the owner does not allow."""
        policy.check_mechanism(self.plan.mechanism)
        if self.plan.label_mechanism is not None:
            policy.check_mechanism(LABELS)
        policy.check_budget(REPLACE_ONE, self.plan.delta)
        policy.check_labels(None)

    def check_data(self, data: DataSpec) -> None:
        """Refuses a map for records of another shape, and a class list that is not the data's."""
        shape = self.plan.map.record_shape
        # A map's sensitivity grows with its shape: one for smaller records would be noised less
        # than these need.
        if shape != data.shape:
            raise ValueError(
                f"The plan's map is for records of shape {shape}, the data's {data.shape}."
            )
        if self.plan.label_mechanism is not None:
            check_classes(self.plan.classes, data)

    def charge(self, *, trusted: bool) -> Charge:
        """Returns the charge of every record, once; see `local_charge`."""
        return local_charge(self.plan)

    def compute(self, task: Task) -> tuple[Tensor, Tensor]:
        """Returns all records, privatized."""
        return privatize(task.shard, self.plan, task.streams(round=0))

    def upload(self, asked: Asked, pool: Pool) -> tuple[Tensor, Tensor]:
        """Returns what `compute` returns for each of some clients side by side, in a simulation."""
        shard = pool.shard(int(asked.places[0]), len(asked.places))
        counts, request = pool.sizes(asked.places).numpy(), asked.digests[0]

        def stream(purpose: str) -> SideBySide:
            streams = asked.key.streams(purpose, asked.clients, round=0, request=request)
            return SideBySide(streams, counts)

        return privatize(shard, self.plan, stream)

    def record(self, reply: Mapping[str, Tensor]) -> RecordDict:
        """Returns the requested chunk."""
        size, start = self.request.chunk_size, self.request.chunk * self.request.chunk_size
        values, labels = (reply[name][start : start + size] for name in self.parts)
        return PrivatizeReply(values, labels, max(1, -(-len(reply["labels"]) // size))).to_record()

    @classmethod
    def canaries(cls, plan: LocalPlan, records: int = 1) -> list[Neighbours]:
        """Returns records a diameter apart under the plan's mechanism, and labels at its ε.

        - +1 or −1 of the line, by itself; and beside a record that is known: noise that was used
          twice cancels in a difference of values.
        - From beyond a disc's border on a diagonal, where both norms see the diameter: a projection
          that is missing shows.
        - A label, with nearly all of ε (the most that randomized response grants, if that is less).
        """
        cls.refuse_one_run(records)
        norm = plan.image_mechanism.norm
        line, disc = (replace(plan, map=PointBall(norm, radius=1.0, size=d)) for d in (1, 2))
        label = min(0.99 * plan.epsilon, 20.0)
        labelled = replace(line, epsilon=plan.epsilon - label, label_epsilon=label, classes=3)

        def pair(words: str, plan: LocalPlan, *shards: list[list[float]]) -> Neighbours:
            requests = [PrivatizeRequest(plan, 0, len(shards[0]))]
            zeros = torch.zeros(len(shards[0]), dtype=torch.int64)
            return Neighbours(words, requests, *(Shard(torch.tensor(s), zeros) for s in shards))

        of_label = pair("one label", labelled, [[0.0]], [[0.0]])
        of_label.present.labels = torch.ones(1, dtype=torch.int64)
        return [
            pair("one record", line, [[-1.0]], [[1.0]]),
            pair("two records", line, [[-1.0], [1.0]], [[1.0], [1.0]]),
            pair("one record beyond the ball", disc, [[-8.0, -8.0]], [[8.0, 8.0]]),
            of_label,
        ]

    def features(self, reply: Sequence[Tensor]) -> Tensor:
        """Returns the numbers in the random order of the upload, and the gaps between them.

        Noise that was used twice leaves the gaps between records without noise, in any order.
        """
        gaps = [values.sort(dim=0).values.diff(dim=0) for values in reply]
        return super().features([*reply, *gaps])


def local_charge(plan: LocalPlan) -> Charge:
    """Returns the charge of one release of every record: ε is the sum of both mechanisms'."""
    mechanism = plan.image_mechanism if plan.label_mechanism is None else plan.product
    return Charge(
        adjacency=REPLACE_ONE,
        plan={"mode": "ldp", **plan.to_dict()},
        event=mechanism.event,
        rounds=1,
        uses=1,
        delta=plan.delta,
        epsilon=lambda: plan.total_epsilon,
    )


def privatize(
    shard: Shard, plan: LocalPlan, stream: Callable[[str], Stream]
) -> tuple[Tensor, Tensor]:
    """Returns Y = f(x) + noise and ỹ = RR(label) for every record, in a random order.

    Returns:
        Values (N, D) float32 and labels (N,) int64 (zeros where no label leaves).

    Guarantees:
        Each record is released once, with (ε_x + ε_l, δ) local differential privacy.
        The same stream gives the same bytes: asking again reveals nothing new.
        The order of the upload is independent of the order of the records.
    """
    # f bounds the diameter Δ of the values before the noise, by projection or public pixel range.
    with torch.no_grad():
        mapped = plan.map(shard.images)
    values = plan.image_mechanism.privatize(mapped, stream("image")).to(torch.float32)
    if plan.label_mechanism is None:
        labels = torch.zeros(len(shard), dtype=torch.int64)
    else:
        labels = plan.label_mechanism.privatize(shard.labels, stream("label"))
    # The stored order, for example by class, would reveal labels.
    order = stream("order").permutation(len(shard))
    return values[order], labels[order]
