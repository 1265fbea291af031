"""Two nodes under attack, and invariants that hold after every message.

The nodes agree in everything public and in no record. One is nearly empty.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fedsink_papers.parameter_gradient import answer as weights_answer
from fedsink_papers.parameter_gradient.request import ParameterRequest
from flwr.app import Message, RecordDict
from flwr.common.serde import recorddict_to_proto
from scipy import stats
from torch import Tensor

from fedsink.clients.answers import dp_sinkhorn, gs_wgan, privatize_once
from fedsink.clients.node import close_nodes
from fedsink.clients.owner.ledger.ledger import Ledger
from fedsink.clients.records.shard import Shard
from fedsink.data import sources
from fedsink.privacy import JointSchedule, PrivacyPlan, RecordClip
from fedsink.protocol.dp_sinkhorn import GradientRequest, unpack_requests
from fedsink.protocol.failure_codes import FAILED, MALFORMED, MEANING, OTHER_VERSION, REFUSED
from fedsink.protocol.gs_wgan import CriticRequest
from fedsink.protocol.packing import PROTOCOL_VERSION, unpack
from fedsink.protocol.privatize_once import PrivatizeReply, PrivatizeRequest
from fedsink.protocol.requests import CentralRequest
from fedsink.protocol.signing import node_receipt

from ..support.exact import squared_distance
from .besieged import HOLDINGS, BesiegedNode, Place
from .honest import CRITIC, GRADIENT, IDENTITY, NOMINAL, PARAMETERS, PRIVATIZE, SHAPES, Kind
from .oracles import Cost, Request, assert_law, critics_total, measured, of_everybody, total_of

SECONDS = 2.0
"""The processor time that a refusal may take; on a quiet machine it takes up to 0.1 s.

The bound leaves room for a machine that is several times slower, under coverage as well. Not
counted are the exact pricing of a plan whose ε lies within 5 % of what is left, which takes
seconds and is remembered; the import of the accounting libraries, once in a process; and what the
garbage collector does to objects that were there before the message.
"""
MEGABYTES = 50.0
"""The memory that a refusal may take beyond what the process held before; measured on Linux."""


class Siege:
    """Two nodes that get every message; `send` checks the invariants after each."""

    def __init__(
        self,
        folder: Path,
        patch: pytest.MonkeyPatch,
        noise: str = "fast",
        records: str = "points",  # a key of `SHAPES`
        epsilon: float = 1e6,
        operators: Mapping[str, str] | None = None,
    ) -> None:
        self.shape = SHAPES[records]
        for holding, read in HOLDINGS.items():
            patch.setitem(
                sources.SOURCES,
                f"besieged-{holding}",
                lambda spec, split, read=read: read(spec.shape),
            )
        sources.forget()
        close_nodes()
        self.nodes = [
            BesiegedNode(folder, self.shape, h, noise, epsilon, operators) for h in HOLDINGS
        ]
        self.sent = self.answered = self.compared = 0
        self.codes = Counter({REFUSED: 0, MALFORMED: 0, FAILED: 0, OTHER_VERSION: 0})
        self.worst = Cost()
        self.looked_at = self.nodes[0]
        self._charged: set[Place] = set()
        self._noise: dict[str, list[np.ndarray]] = {"normal": [], "laplace": []}
        _import_accountants()
        for module, name in (
            (dp_sinkhorn, "client_gradient"),
            (weights_answer, "parameter_gradient"),
            (privatize_once, "privatize"),
            (gs_wgan, "critic_gradients"),
        ):
            patch.setattr(module, name, self._watched(getattr(module, name)))

        self._priced = 0  # plans that a node has priced exactly
        patch.setattr(Ledger, "_admit", self._counted(Ledger._admit))
        self._total = torch.zeros(0)
        patch.setattr(gs_wgan, "critic_totals", self._added_up(gs_wgan.critic_totals))

    def _counted(self, admit: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*plan: Any) -> Any:
            self._priced += 1
            return admit(*plan)

        return counted

    def begin(self) -> None:
        """Nodes that have answered nothing yet."""
        close_nodes()
        for node in self.nodes:
            node.begin()

    def restart(self) -> None:
        """Returns these nodes in new processes."""
        close_nodes()
        for node in self.nodes:
            node.restart()

    def send(self, kind: Kind, content: RecordDict) -> Message:
        """The first node's reply, after everything was checked at both."""
        self.sent += 1
        replies = [self._send(node, kind, content) for node in self.nodes]
        assert outcome(replies[0]) == outcome(replies[1]), "the answer tells the nodes apart"
        if replies[0].has_error():
            self.codes[replies[0].error.code] += 1
        else:
            self.answered += 1
        return replies[0]

    def check_noise(self) -> None:
        """The noise of all replies has the plans' law, and no two replies share it."""
        heads = [noise[:4] for law in self._noise.values() for noise in law if len(noise) >= 4]
        if len(heads) > 1:
            table = torch.from_numpy(np.stack(heads))
            apart = torch.cdist(table, table, compute_mode="donot_use_mm_for_euclid_dist")
            assert float(apart.fill_diagonal_(math.inf).amin()) > 1e-4, "two answers share noise"
        assert_law(np.concatenate([np.empty(0), *self._noise["normal"]]), stats.norm)
        assert_law(np.concatenate([np.empty(0), *self._noise["laplace"]]), stats.laplace)

    def measured(self) -> tuple[int, int]:
        """Numbers of Gaussian and of Laplace noise values that were measured."""
        normal, laplace = (sum(x.size for x in self._noise[law]) for law in ("normal", "laplace"))
        return normal, laplace

    def _send(self, node: BesiegedNode, kind: Kind, content: RecordDict) -> Message:
        before, priced = node.claims(), self._priced
        self._charged = set()
        self.looked_at = node
        with measured() as cost:
            reply = node.ask(kind, content)
        after = node.claims()
        assert before.keys() <= after.keys(), "a charge is gone"
        node.check_ledger()
        if reply.has_error():
            assert reply.error.code in MEANING
            assert not reply.error.reason
            # Critics of a simulation that missed rounds end it: by then the charge is committed.
            ended = (
                reply.error.code == FAILED
                and (kind, node.noise) == (CRITIC, "keyed")
                and CriticRequest.from_record(content).round > 1
            )
            assert ended or before == after, "a place was charged, and there is no answer"
            # Not bounded: the exact ε of a plan within 5 % of the rest, which takes seconds.
            if self._priced == priced:
                self.worst.seconds = max(self.worst.seconds, cost.seconds)
                self.worst.megabytes = max(self.worst.megabytes, cost.megabytes)
                assert cost.seconds <= SECONDS, f"{kind}: a refusal took {cost.seconds:.2f} s"
                assert cost.megabytes <= MEGABYTES, f"a refusal took {cost.megabytes:.0f} MB"
            return reply
        check = {
            IDENTITY: self._check_identity,
            GRADIENT: self._check_gradient,
            PARAMETERS: self._check_parameters,
            PRIVATIZE: self._check_upload,
            CRITIC: self._check_critics,
        }[kind]
        already = set(node.left)
        for place in check(node, content, reply.content):
            assert place in already or place in self._charged, "computed before its charge"
            assert node.noise == "keyed" or after[place], "it left without a note"
        assert _bytes(node.ask(kind, content)) == _bytes(reply), "the same request again"
        return reply

    def _watched(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """Calls the real computation, after a look at the committed charges."""

        def watched(*arguments: Any) -> Any:
            self._charged |= set(self.looked_at.claims())
            return compute(*arguments)

        return watched

    def _added_up(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """The real sum over a client's critics, and a copy of it."""

        def added_up(*arguments: Any) -> Any:
            totals, states = compute(*arguments)
            self._total = totals[0].clone()
            return totals, states

        return added_up

    def _check_critics(
        self, node: BesiegedNode, content: RecordDict, reply: RecordDict
    ) -> list[Place]:
        request = CriticRequest.from_record(content)
        _check_schema(reply, {"gradient": (_dtype(request), (1, *request.rows.shape))}, "{}")
        released = unpack(reply)[1]["gradient"]
        assert bool(released.isfinite().all())
        assert isinstance(request.own_plan, PrivacyPlan)
        place = (request.plan.adjacency, request.run, request.round)
        if place not in node.left:
            self._check_critics_sensitivity(request)
            noise = _noise(request, self._total, released[0])
            if request.own_plan.noise_multiplier >= 0.1:
                self._noise["normal"].append(noise)
        self._check_once(node, place, released.numpy().tobytes())
        return [place]

    def _check_critics_sensitivity(self, request: CriticRequest) -> None:
        """The totals are no further apart than S where one critic's whole part differs."""
        self.compared += 1
        first, second = (node.shard for node in self.nodes)
        other, critics = first.images.clone(), request.critics.training.critics
        part = torch.arange(len(other)) % critics == self.compared % critics
        other[part] = second.images[self.compared % len(second)]
        shards = [first, Shard(other, torch.where(part, first.labels.flip(0), first.labels))]
        distance = squared_distance(*(critics_total(request, shard) for shard in shards))
        assert distance <= Fraction(request.plan.sensitivity) ** 2

    def _check_identity(
        self, node: BesiegedNode, content: RecordDict, reply: RecordDict
    ) -> list[Place]:
        assert sorted(reply) == ["identity"] + ["owner"] * (node.noise != "keyed")
        if (given := node_receipt(reply)) is not None:
            assert (len(given.name), len(given.receipt)) == (32, 80)
        assert dict(reply.config_records["identity"]) == {"client": 0, "protocol": PROTOCOL_VERSION}
        return []

    def _check_gradient(
        self, node: BesiegedNode, content: RecordDict, reply: RecordDict
    ) -> list[Place]:
        requests = unpack_requests(content)
        shape = (len(requests), *requests[0].rows.shape)
        _check_schema(reply, {"gradient": (_dtype(requests[0]), shape)}, "{}")
        released = unpack(reply)[1]["gradient"]
        return [
            self._check_use(node, request, request, values)
            for request, values in zip(requests, released, strict=True)
        ]

    def _check_parameters(
        self, node: BesiegedNode, content: RecordDict, reply: RecordDict
    ) -> list[Place]:
        request = ParameterRequest.from_record(content)
        shape = (len(request.weights),)
        _check_schema(reply, {"gradient": (_dtype(request.gradient), shape)}, "{}")
        values = unpack(reply)[1]["gradient"]
        return [self._check_use(node, request, request.gradient, values)]

    def _check_use(
        self, node: BesiegedNode, request: Request, asked: GradientRequest, released: Tensor
    ) -> Place:
        assert bool(released.isfinite().all())
        plan = asked.plan
        assert isinstance(plan, PrivacyPlan)
        place = (plan.adjacency, asked.run, asked.round)
        if place not in node.left:
            self._check_sensitivity(request, plan)
            whole = plan.capacity is None or plan.capacity >= len(node.shard)
            # Otherwise only the node knows the sample, or float32 swallows the noise.
            if plan.rate == 1.0 and whole and plan.noise_multiplier >= 0.1:
                noise = _noise(asked, total_of(request, node.shard), released)
                assert 1e-9 < stats.chi2.cdf((noise**2).sum(), noise.size) < 1 - 1e-9
                self._noise["normal"].append(noise)
        self._check_once(node, place, released.numpy().tobytes())
        return place

    def _check_sensitivity(self, request: Request, plan: PrivacyPlan) -> None:
        """The totals of neighbouring shards are no further apart than S, in exact arithmetic."""
        self.compared += 1
        first, second = (node.shard for node in self.nodes)
        sensitivity = Fraction(plan.sensitivity)
        request = of_everybody(request)
        if not isinstance(plan.clip, RecordClip):
            shards = [first, second, Shard(first.images[:0], first.labels[:0])]
            totals = [total_of(request, shard) for shard in shards]
            pairs = [(totals[0], totals[1]), (totals[0], totals[2]), (totals[1], totals[2])]
            assert all(squared_distance(*pair) <= sensitivity**2 for pair in pairs)
            return
        places = NOMINAL if plan.capacity is None else plan.capacity
        for shard, other in ((first, second), (second, first)):
            kept = slice(0, places - 1)
            without = Shard(shard.images[kept], shard.labels[kept])
            more = slice(self.compared % len(other), self.compared % len(other) + 1)
            record = Shard(
                torch.cat([without.images, other.images[more]]),
                torch.cat([without.labels, other.labels[more]]),
            )
            distance = squared_distance(total_of(request, record), total_of(request, without))
            assert distance <= sensitivity**2

    def _check_upload(
        self, node: BesiegedNode, content: RecordDict, reply: RecordDict
    ) -> list[Place]:
        request = PrivatizeRequest.from_record(content)
        upload = PrivatizeReply.from_record(reply)
        n = len(upload.labels)
        arrays = {"values": ("float32", (n, request.plan.map.dimension)), "labels": ("int64", (n,))}
        _check_schema(reply, arrays, json.dumps({"chunks": upload.chunks}))
        assert bool(upload.values.isfinite().all())
        assert bool(((upload.labels >= 0) & (upload.labels < request.plan.classes)).all())
        place = ("replace-one", request.run, 1)
        whole = replace(request, chunk=0, chunk_size=1000)
        released = PrivatizeReply.from_record(node.ask(PRIVATIZE, whole.to_record()).content).values
        mechanism = request.plan.image_mechanism
        wide = mechanism.scale > 15 * mechanism.diameter  # else the records would be in it
        if place not in node.left and wide and request.plan.mechanism == "laplace":
            noise = released.double().flatten().numpy() / mechanism.scale
            self._noise["laplace"].append(noise)
        self._check_once(node, place, released.numpy().tobytes())
        start = request.chunk * request.chunk_size
        assert torch.equal(released[start : start + request.chunk_size], upload.values)
        return [place]

    def _check_once(self, node: BesiegedNode, place: Place, content: bytes) -> None:
        assert node.left.setdefault(place, content) == content, "two answers in one place"


def outcome(reply: Message) -> Any:
    """Everything a reply shows except its values; the number of records is public."""
    if reply.has_error():
        return reply.error.code
    if "arrays" not in reply.content:
        return dict(reply.content.config_records["identity"])
    arrays = reply.content.array_records["arrays"]
    if "labels" in arrays:  # local mode
        return {name: (a.dtype, tuple(a.shape[1:])) for name, a in arrays.items()}
    return {name: (a.dtype, tuple(a.shape)) for name, a in arrays.items()}


def _check_schema(
    reply: RecordDict, arrays: dict[str, tuple[str, tuple[int, ...]]], fields: str
) -> None:
    assert sorted(reply) == ["arrays", "fields"]
    stated = json.dumps({**json.loads(fields), "protocol": PROTOCOL_VERSION}, sort_keys=True)
    assert dict(reply.config_records["fields"]) == {"json": stated}
    found = reply.array_records["arrays"]
    assert {n: (a.dtype, tuple(a.shape)) for n, a in found.items()} == arrays


def _dtype(request: CentralRequest) -> str:
    return "float32" if request.fixed_point is None else "int64"


def _noise(request: CentralRequest, total: Tensor, released: Tensor) -> np.ndarray:
    """Noise of one use in standard deviations of a reply's; shared noise is that of integers."""
    shared = request.shared_noise(total.numel())
    if shared is None:
        std = request.own_plan.noise_std  # type: ignore[union-attr]
        return (released.double() - total.double()).flatten().numpy() / std
    grid = shared.fixed_point
    assert -grid.half <= int(released.min()) <= int(released.max()) < grid.half
    noise = grid.wrapped(released - grid.rounded(total.unsqueeze(0)).squeeze(0))
    return noise.double().flatten().numpy() / shared.scale


def _bytes(reply: Message) -> bytes:
    assert not reply.has_error()
    content: bytes = recorddict_to_proto(reply.content).SerializeToString(deterministic=True)
    return content


def _import_accountants() -> None:
    """Imports the accountants: a process needs a second for them at the first plan it prices."""
    PrivacyPlan(0.5, 1.0, 2, RecordClip(1.0), JointSchedule(), 1e-5).rough_epsilon(1.0)
