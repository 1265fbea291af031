"""One client on one machine: its shard, its key, its policy, its ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from fedsink.clients.charges import central_charge, local_charge
from fedsink.clients.fingerprint import fingerprint
from fedsink.clients.gradient import client_gradient
from fedsink.clients.parameter_gradient import parameter_gradient
from fedsink.clients.policy import Policy
from fedsink.clients.privatizer import privatize
from fedsink.clients.releases import Admitted, Releases, refuse_rollback, seeded, use_digests
from fedsink.clients.replies import ReplyStore
from fedsink.clients.settings import NodeSettings
from fedsink.clients.shard import Shard
from fedsink.data.partition import partition
from fedsink.data.sources import load
from fedsink.data.views import view_from_dict
from fedsink.devices import device_named
from fedsink.errors import ConfigError, DataError, ReleaseRefusedError
from fedsink.privacy import Stream, UnprotectedPlan
from fedsink.privacy.ledger import Ledger
from fedsink.protocol import GradientReply, GradientRequest, PrivatizeReply, PrivatizeRequest
from fedsink.protocol.parameters import ParameterReply, ParameterRequest


class Node:
    """Answers requests about one shard.

    Guarantees:
        - The owner's policy is asked first, the ledger second, and the data are read third.
        - Without its owner's word no plan without clip and noise is answered, and under a policy
          never.
        - Noise is shared with no more clients than the owner's settings put in one cohort.
        - A seed, key, noise or policy in a message is ignored.
        - Records stay on the client's device; what leaves is on the CPU.

    Args:
        settings: the owner's settings.
        client: this client's number, from 0.

    Raises:
        ValueError: there is no such client.
        FedsinkError: the settings' policy or key cannot be used.
    """

    def __init__(self, settings: NodeSettings, client: int) -> None:
        if not 0 <= client < settings.clients:
            raise ValueError(f"There is no client {client}: they are 0 to {settings.clients - 1}.")
        self.settings = settings
        self.client = client
        self._key = settings.key()
        self._policy = _policy(settings)
        self._device = device_named(settings.device, "A client's device")
        self._privatized: tuple[bytes, Mapping[str, Tensor]] | None = None
        self._view: Mapping[str, Any] | None = None  # the view checked last, and its coordinates
        self._dimension = 0

    @cached_property
    def shard(self) -> Shard:
        """The private records on the client's device, loaded at the first admitted request."""
        records = load(self.settings.data, "train")
        if self.settings.partition is None:
            mine = torch.arange(len(records))
        else:
            mine = _deal(self.settings)[self.client]
        public = self.settings.data.nominal_records
        if self._policy is not None and len(mine) > public:
            # Whatever is asked: a refusal that depended on the plan would tell a server the size.
            raise DataError(
                f"This node holds more records than its policy's public nominal_records={public}: "
                "raise that number."
            )
        classes = len(self.settings.data.classes)
        return Shard.checked(*records.take(mine), classes, self._device)

    def gradient(self, request: GradientRequest, digest: bytes) -> GradientReply:
        """Answer a message with one use; see `gradients`."""
        return self.gradients([request], digest)[0]

    def gradients(self, requests: Sequence[GradientRequest], digest: bytes) -> list[GradientReply]:
        """Answer a message that asks for uses of one plan in one run: all of them or none.

        Args:
            requests: one for each use, in different rounds.
            digest: SHA-256 of the whole message.

        Raises:
            ReleaseRefusedError: policy, budget or ledger forbid it, or a request names a class
                that the schedule does not give this client, or spreads the noise over more
                clients than answer it.
            LedgerError: ledger or reply store cannot be used.
            ValueError: the requests do not belong together, or their class list is not that of
                the node's data.
        """
        admitted = self.admit(requests, digest)
        replies = admitted.stored
        if replies is None:
            uses = zip(requests, admitted.digests, strict=True)
            replies = admitted.release(
                {
                    str(r.round): client_gradient(r, self.shard, self.streams(r, d)).cpu()
                    for r, d in uses
                }
            )
        return [GradientReply(replies[str(request.round)]) for request in requests]

    def admit(
        self, requests: Sequence[GradientRequest], digest: bytes, *, checked: bool = False
    ) -> Admitted:
        """The first half of `gradients`: asks policy and ledger, and charges; raises like it.

        The other half is `Admitted.release` of the gradients by round, each computed with the
        `streams` of its request.

        Args:
            requests: one for each use, in different rounds.
            digest: SHA-256 of the whole message.
            checked: a node of the same settings has done `check_message` for these requests.
        """
        if not checked:
            self.check_message(requests)
        self._check_turn(requests)
        if self._policy is not None:
            self._policy.check_gradient(requests)
        return self._charge(requests, digest)

    def _charge(self, requests: Sequence[GradientRequest], digest: bytes) -> Admitted:
        """What is left of `admit` once the policy allows the requests."""
        plan = requests[0].plan
        if isinstance(plan, UnprotectedPlan) and not self.settings.unprotected:
            raise ReleaseRefusedError(
                "A message cannot switch clip and noise off: this node answers none without them."
            )
        # There is nothing to charge for what protects nothing.
        if self._releases is None or isinstance(plan, UnprotectedPlan):
            # A seed's noise is keyed by the round alone, whatever the message.
            uses, secret = len(requests), self.settings.seed is None
            admitted = Admitted.unrecorded(use_digests(digest, uses)) if secret else seeded(uses)
        else:
            places = [(request.round, request.label) for request in requests]
            trusted = self._policy is not None and self._policy.trusts_aggregation
            charge = central_charge(plan, requests[0].share, trusted=trusted)
            admitted = self._releases.admit(requests[0].run, charge, places, digest, self._content)
        if plan.nominal_records is not None and len(self.shard) > plan.nominal_records:
            raise DataError("This node holds more records than the plan accounts for.")
        return admitted

    def parameter_gradient(self, request: ParameterRequest, digest: bytes) -> ParameterReply:
        """Answer with the gradient of the generator's weights; charged and refused as `gradients`.

        Args:
            request: one use.
            digest: SHA-256 of the whole message.
        """
        asked = request.gradient
        self.check_message([asked])
        self._check_turn([asked])
        if self._policy is not None:
            self._policy.check_parameters(request)
        request.check()
        admitted = self._charge([asked], digest)
        reply = admitted.stored
        if reply is None:
            streams = self.streams(asked, admitted.digests[0])
            computed = parameter_gradient(request, self.shard, streams).cpu()
            reply = admitted.release({str(asked.round): computed})
        return ParameterReply(reply[str(asked.round)])

    def streams(self, request: GradientRequest, digest: bytes) -> Callable[[str], Stream]:
        """The randomness of one use, by purpose."""
        return self._streams(request.round, digest)

    def check_mechanism(self, name: str) -> None:
        """Refuse a local mechanism that the owner's policy does not name, before it is loaded."""
        if self._policy is not None:
            self._policy.check_mechanism(name)

    def privatized(self, request: PrivatizeRequest, plan_digest: bytes) -> PrivatizeReply:
        """Answer with one chunk of the records privatized under the request's plan.

        Args:
            request: names the chunk; the release is the same for all of them.
            plan_digest: SHA-256 of the plan.

        Raises:
            ReleaseRefusedError: policy, budget or ledger forbid it.
            LedgerError: ledger or reply store cannot be used.
            ValueError: the plan's map or class list is not for the node's data.
        """
        self._check_shape(request.plan.map.record_shape)
        if request.plan.label_mechanism is not None:
            self._check_classes(request.plan.classes)
        if self._policy is not None:
            self._policy.check_privatize(request)
        key = request.run.encode() + b"\0" + plan_digest
        if self._privatized is None or self._privatized[0] != key:
            self._privatized = key, self._privatize(request, plan_digest)
        values, labels = (self._privatized[1][name] for name in ("values", "labels"))
        start = request.chunk * request.chunk_size
        chosen = slice(start, start + request.chunk_size)
        chunks = max(1, -(-len(values) // request.chunk_size))
        return PrivatizeReply(values[chosen].clone(), labels[chosen].clone(), chunks)

    def _privatize(self, request: PrivatizeRequest, digest: bytes) -> Mapping[str, Tensor]:
        def compute(digests: Sequence[bytes]) -> dict[str, Tensor]:
            values, labels = privatize(self.shard, request.plan, self._streams(0, digests[0]))
            return {"values": values.cpu(), "labels": labels.cpu()}

        if self._releases is None:
            return compute(use_digests(digest, 1))
        charge = local_charge(request.plan)
        return self._releases.answer(
            request.run, charge, [(1, None)], digest, self._content, compute
        )

    def _streams(self, round: int, digest: bytes) -> Callable[[str], Stream]:
        def stream(purpose: str) -> Stream:
            return self._key.stream(purpose, client=self.client, round=round, request=digest)

        return stream

    def check_message(self, requests: Sequence[GradientRequest]) -> None:
        """Refuse what no client of these settings answers.

        Raises:
            ReleaseRefusedError: under a policy, a library is to solve the node's problems.
            ValueError: the requests do not belong together, or are not for the node's data.
        """
        if not requests:
            raise ValueError("A message must ask for at least one use.")
        first = requests[0]
        if self._policy is not None:
            first.objective.refuse_library()
        if any(
            (r.plan, r.run, r.share, r.view) != (first.plan, first.run, first.share, first.view)
            for r in requests
        ):
            raise ValueError(
                "The uses of one message belong to one plan and one run, with one share of noise "
                "and one view."
            )
        self._check_view(first.view)
        self._check_nominal(first.plan.nominal_records)
        if len({request.round for request in requests}) != len(requests):
            raise ValueError("The uses of one message are in different rounds.")
        for request in requests:
            if request.rows.shape[1] != self._dimension:
                raise ValueError(
                    f"The rows have {request.rows.shape[1]} coordinates, the records in the "
                    f"request's view {self._dimension}."
                )
            if request.objective.classes != 1:
                self._check_classes(request.objective.classes)

    def _check_turn(self, requests: Sequence[GradientRequest]) -> None:
        """Refuse what this client is not asked for by the plan's schedule."""
        for request in requests:
            scheduled = request.plan.schedule.label(self.client, request.round)
            if request.label != scheduled:
                raise ReleaseRefusedError(
                    f"Round {request.round} is for class {scheduled} at client {self.client}."
                )
        first = requests[0]
        if first.share == 1:
            return
        cohort = first.plan.schedule.cohort(self.client, self.settings.clients)
        if first.share > cohort:
            raise ReleaseRefusedError(
                f"The request spreads the noise over {first.share} clients, and those that are "
                f"asked the same as client {self.client} are {cohort}."
            )

    def _check_view(self, view: Mapping[str, Any]) -> None:
        """Refuse a view of other records than the data's, before it is built."""
        if view == self._view:
            return
        shape = self.settings.data.shape
        if view.get("shape") not in (shape, list(shape)):
            raise ValueError("The request's view is for records of another shape than the data's.")
        self._dimension = view_from_dict(view).dimension
        self._view = dict(view)

    def _check_nominal(self, records: int | None) -> None:
        # Before anything is charged: to fail at some sizes of the shard would tell its size.
        public = self.settings.data.nominal_records
        if self.settings.partition is None and records is not None and records < public:
            raise ValueError(f"The plan accounts for {records} records, the data have {public}.")

    def _check_classes(self, classes: int) -> None:
        # Before any record is looked at: a shorter list would fail only for clients or batches
        # that hold a class beyond its end, and so tell who does.
        public = len(self.settings.data.classes)
        if classes != public:
            raise ValueError(f"The request has {classes} classes, the data {public}.")

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        # A map's sensitivity grows with its shape: one for smaller records would be noised less
        # than these need.
        held = self.settings.data.shape
        if shape != held:
            raise ValueError(f"The plan's map is for records of shape {shape}, the data's {held}.")

    @cached_property
    def _fingerprint(self) -> bytes:
        dealt = self.settings.partition is not None
        return fingerprint(self.shard, f"client {self.client}" if dealt else "")

    def _content(self) -> bytes:
        return self._fingerprint

    @cached_property
    def _releases(self) -> Releases | None:
        settings, policy = self.settings, self._policy
        # Reproducible noise is public anyway and is keyed by the round alone: engines differ in
        # the last bits of a request, so a ledger would refuse honest reruns.
        if settings.seed is not None or settings.ledger is None or settings.replies is None:
            return None
        # A real node keeps its replies whatever its key: another machine or version would compute
        # other last bits under the same noise.
        stored = policy is not None or not self._key.repeatable
        lineage = settings.ledger.stem if policy is None else policy.lineage
        return Releases(
            _open_ledger(settings),
            lineage if settings.partition is None else f"{lineage}/client-{self.client}",
            None if policy is None else policy.budgets,
            ReplyStore(settings.replies) if stored else None,
            "inherit" if policy is None else policy.on_change,
        )


@cache
def open_node(settings: NodeSettings, client: int) -> Node:
    """The node of this process that plays `client`, made at its first message."""
    return Node(settings, client)


def close_nodes() -> None:
    """Forget every node of this process, and the data they hold."""
    open_node.cache_clear()
    _deal.cache_clear()
    _open_ledger.cache_clear()


def _policy(settings: NodeSettings) -> Policy | None:
    if settings.policy is None:
        return None
    policy = Policy.load(settings.policy)
    if (policy.data, policy.noise) != (settings.data, settings.noise):
        raise ConfigError(
            f"{policy.path.name} is for other data or another noise than this node's: "
            "use NodeSettings.from_policy."
        )
    return policy


@lru_cache(maxsize=4)
def _deal(settings: NodeSettings) -> list[Tensor]:
    if settings.partition is None:
        raise ValueError("These settings deal no records out.")
    records = load(settings.data, "train")
    return partition(records.labels, settings.clients, settings.partition, settings.partition_seed)


@lru_cache(maxsize=4)
def _open_ledger(settings: NodeSettings) -> Ledger:
    if settings.ledger is None:
        raise ValueError("These settings name no ledger.")
    # A simulation has no adversary who pulls the plug; a real node may have one.
    ledger = Ledger(settings.ledger, durable=settings.policy is not None)
    if settings.replies is not None:
        refuse_rollback(ledger, ReplyStore(settings.replies))
    return ledger
