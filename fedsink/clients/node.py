"""The node of one client: its shard, its key, its policy, its ledger.

`Node.answer` turns a message into a reply in one order for all methods: the signature, the policy,
the plan's schedule, the public description of the data, the admission of the plan, the records, the
claim of the rounds, the computation, the stored reply.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedsink.clients.answers.base import Answer, Task
from fedsink.clients.answers.registry import find_answer
from fedsink.clients.masking import Masking, Sessions, simulated_identity, simulated_peers
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.gate import (
    Admitted,
    LedgerGate,
    PassGate,
    reservation_name,
    round_digests,
    seeded,
)
from fedsink.clients.owner.ledger.charge import WORDS, Charge
from fedsink.clients.owner.ledger.ledger import Ledger, date_of, today
from fedsink.clients.owner.policy import Policy
from fedsink.clients.owner.policy_file import read_policy
from fedsink.clients.owner.replies import ReplyStore
from fedsink.clients.owner.rollback import Receipts, refuse_forgotten, refuse_rollback
from fedsink.clients.owner.states import State, States, forget
from fedsink.clients.records.shard import Shard, deal, records_of
from fedsink.data.sources import notes
from fedsink.data.spec import DataSpec
from fedsink.environment import device_named
from fedsink.errors import ConfigError, DataError, LedgerError, ReleaseRefusedError, RolledBackError
from fedsink.privacy.randomness.keys import EntropyKey, SecretKey
from fedsink.protocol.aggregation import (
    AHEAD,
    MASKED,
    Trip,
    has_trip,
    reply_with,
    trip_ahead,
    trip_of,
)
from fedsink.protocol.failure_codes import failure_code
from fedsink.protocol.signing import ChargeStatement, NodeIdentityKey, NodeReceipt, signer
from fedsink.secagg.identities import Identity
from fedsink.secagg.parameters import Rules
from fedsink.secagg.refusals import AggregationError

if TYPE_CHECKING:
    from flwr.app import RecordDict

log = logging.getLogger("fedsink.clients")


class Node:
    """Answers requests about one shard.

    Guarantees:
        - The owner's policy is checked first, the ledger second, and the data are read third.
        - A plan without clip and noise is answered only where the owner's settings say so, and
          never under a policy.
        - A seed, key, noise or policy in a message is ignored.
        - Records stay on the client's device; replies are on the CPU.
        - What reading passed over or changed is logged once in a process for the owner of a node
          under a policy, and is in no reply.
    """

    def __init__(self, settings: NodeSettings, client: int) -> None:
        if not 0 <= client < settings.clients:
            raise ValueError(f"There is no client {client}: they are 0 to {settings.clients - 1}.")
        self.settings = settings
        self.client = client
        self._key = settings.key()
        self._policy = policy_of(settings)
        self._device = device_named(settings.device, "A client's device")
        self._last: tuple[tuple[str, bytes, bytes], Mapping[str, Tensor]] | None = None
        if self._policy is not None and (days := self._policy.state_days) is not None:
            forget(self._policy.states, days)
            Sessions(self._policy.sessions).wipe(days)

    @cached_property
    def shard(self) -> Shard:
        """Private records on the client's device, read as its node starts or a plan is admitted."""
        held = records_of(self.settings, self.client)
        public = self.settings.data.nominal_records
        if (
            self._policy is not None
            and self.settings.partition is None
            and self.settings.data not in TOLD
        ):
            TOLD.add(self.settings.data)
            for note in notes(self.settings.data):
                log.warning("%s: %s", self.settings.data.name, note)
        if self._policy is not None and len(held) > public:
            # For every plan: a refusal that depended on the plan would tell a server the size.
            raise DataError(
                f"This node holds more records than its policy's public nominal_records={public}: "
                "raise that number."
            )
        classes = len(self.settings.data.classes)
        return Shard.checked(
            held.values, held.labels, classes, self._device, held.users, held.slots
        )

    def answer(self, message_type: str, record: RecordDict) -> RecordDict:
        """Returns the reply to a message, as it travels."""
        operator = self._operator(message_type, record)
        answer = find_answer(message_type, self._policy).read(record, self._policy)
        answer.operator = operator
        digest = answer.digest(record)
        if has_trip(record):
            return self._masked(answer, digest, record)
        return answer.record(self.reply(answer, digest))

    def aggregate(self, message_type: str, record: RecordDict) -> RecordDict:
        """Returns the answer to a query of secure aggregation; see `fedsink.clients.masking`."""
        self._operator(message_type, record)
        kind = message_type.removeprefix("query.")
        trip, ahead = self._trips(kind, record)
        return reply_with(self._masking.answer(kind, *trip), self._ahead(kind, ahead))

    def _operator(self, message_type: str, record: RecordDict) -> str | None:
        """Returns the signer of a message by the policy's name; None: signatures do not count."""
        if self._policy is None or not self._policy.operators:
            return None
        return signer(record, message_type, self._receipts.name, self._policy.operators)

    def _masked(self, answer: Answer, digest: bytes, record: RecordDict) -> RecordDict:
        """Returns the masked reply to a request; charges it once the roster is accepted."""
        (parameters, forwarded), ahead = self._trips(MASKED, record)
        answer.check_sum(parameters, self.client, self.settings.clients)
        self._check(answer, masked=True)

        def integers() -> np.ndarray:
            reply = self._reply(answer, digest)
            return torch.stack([reply[name] for name in answer.parts]).flatten().numpy()

        masked = self._masking.mask(parameters, forwarded, digest, integers)
        return reply_with(masked, self._ahead(MASKED, ahead))

    def _trips(self, kind: str, record: RecordDict) -> tuple[Trip, Trip | None]:
        """Returns the trip of a message, and the trip of the next sum that may travel with it."""
        clients = self.settings.clients
        trip, ahead = trip_of(record, clients), trip_ahead(record, clients)
        if ahead is not None and kind not in AHEAD:
            raise ValueError(f"The trip {kind} takes no trip of the next sum along.")
        return trip, ahead

    def _ahead(self, kind: str, trip: Trip | None) -> bytes | int | None:
        """Returns the answer to the trip of the next sum, or the code of its refusal.

        The refusal ends the next sum at this node, and not this one.
        """
        if trip is None:
            return None
        try:
            return self._masking.answer(AHEAD[kind], *trip)
        except AggregationError as refusal:
            self.note_refusal(refusal)
            return failure_code(refusal, self.client)

    def reply(self, answer: Answer, digest: bytes) -> Mapping[str, Tensor]:
        """Returns the tensors of a reply: all of the message's rounds are released, or none."""
        self._check(answer)
        return self._reply(answer, digest)

    def _reply(self, answer: Answer, digest: bytes) -> Mapping[str, Tensor]:
        """Returns the tensors of a reply whose message has been checked."""
        if self._last is not None and self._last[0] == (
            answer.name,
            self._reserved(answer),
            digest,
        ):
            return self._last[1]
        admitted = self._admission(answer, digest)
        reply = admitted.stored
        if reply is None:
            computed = answer.compute(self.task(answer, admitted))
            named = zip(answer.parts, computed, strict=True)
            reply = {name: values.cpu() for name, values in named}
            if admitted.keep is not None:
                reply = admitted.keep(reply)
        if answer.in_parts:
            self._last = (answer.name, self._reserved(answer), digest), reply
        return reply

    def admit(self, answer: Answer, digest: bytes) -> Admitted:
        """Does the first half of `reply`: asks policy and ledger, and charges.

        The other half computes tensors from the `task` and passes them to `Admitted.keep`.
        """
        self._check(answer)
        return self._admission(answer, digest)

    def task(self, answer: Answer, admitted: Admitted) -> Task:
        """Returns the inputs of an admitted answer."""

        def state(*names: str) -> State:
            return self.states.of(self._reserved(answer), answer.name, *names)

        return Task(admitted.digests, self.client, self.shard, self._key, state)

    def _check(self, answer: Answer, *, masked: bool = False) -> None:
        """Refuses a message that policy, schedule or the data's public description forbid.

        Every way to a reply leads through here, whatever the engine.
        """
        if self._policy is not None:
            if answer.noise_parts > 1 and not masked:
                self._policy.check_unmasked(answer.noise_parts)
            answer.check_policy(self._policy)
        answer.check_turn(self.client, self.settings.clients)
        answer.check_data(self.settings.data)
        most, public = answer.most_records, self.settings.data.nominal_records
        # Before anything is charged: to fail at some sizes of the shard would tell its size.
        if self.settings.partition is None and most is not None and most < public:
            raise ValueError(f"The plan accounts for {most} records, the data have {public}.")

    def _admission(self, answer: Answer, digest: bytes) -> Admitted:
        """Has the ledger, if there is one, commit the charge, and reads the records on the way."""
        if not answer.protected and not self.settings.unprotected:
            raise ReleaseRefusedError(
                "A message cannot switch clip and noise off: this node answers none without them."
            )
        # A plan that protects nothing is charged nothing.
        if self._gate is None or not answer.protected:
            # A seed's noise is keyed by the round, whatever the message.
            rounds, secret = len(answer.rounds), self.settings.seed is None
            admitted = Admitted(round_digests(digest, rounds)) if secret else seeded(rounds)
        else:
            charge = self._charge_of(answer)
            admitted = self._gate.admit(answer, charge, digest, lambda: self._content(answer))
        # Only in a simulation: a node's records are compared with the description, and that above.
        if answer.most_records is not None and len(self.shard) > answer.most_records:
            raise DataError("This node holds more records than the plan accounts for.")
        return admitted

    def _charge_of(self, answer: Answer) -> Charge:
        """Returns the answer's charge, with the policy's words that its price depends on."""
        if self._policy is None:
            return answer.charge(trusted=False)
        charge = answer.charge(trusted=self._policy.trusts_aggregation)
        if answer.noise_parts == 1:  # the noise is its own, and so is the price
            return charge
        return replace(charge, plan={**charge.plan, WORDS: self._policy.price_words})

    def _reserved(self, answer: Answer) -> bytes:
        """Returns the name of the answer's reservation, with or without a ledger."""
        charge = self._charge_of(answer) if answer.protected else None
        return reservation_name(answer.run, charge, self._content(answer))

    def _content(self, answer: Answer) -> bytes:
        """Returns the fingerprint of the records, once they suit the answer."""
        if answer.of_users:
            self.shard.whole_users()
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> bytes:
        dealt = self.settings.partition is not None
        return self.shard.fingerprint(f"client {self.client}" if dealt else "")

    @cached_property
    def _lineage(self) -> str:
        settings, policy = self.settings, self._policy
        if policy is not None:
            lineage = policy.lineage
        else:
            lineage = "" if settings.ledger is None else settings.ledger.stem
        return lineage if settings.partition is None else f"{lineage}/client-{self.client}"

    def receipt(self, shown: Iterable[str]) -> NodeReceipt | None:
        """Returns the name and receipt that a node under a policy gives a server to keep."""
        if self._policy is None:
            return None
        ledger = open_ledger(self.settings)
        self._receipts.check(ledger, shown)
        return NodeReceipt(self._receipts.name, self._receipts.give(ledger))

    def statement(self, run: str, *, also_none: bool = False) -> dict[str, Any] | None:
        """Returns this node's signed statement of what a run was charged, under a policy.

        Guarantees:
            - A server gets no statement of no charge: it could ask before the run.
        """
        if self._policy is None:
            return None
        ledger = open_ledger(self.settings)
        charges, rule = ledger.charged(self._lineage, run)
        if not charges and not also_none:
            return None
        statement = ChargeStatement(
            run=run,
            client=self.client,
            clients=self.settings.clients,
            noise=(EntropyKey if self._policy.noise == "secure" else SecretKey).kind,
            aggregation=rule or self._policy.allowed.secure_aggregation,
            day=date_of(today()),
            charges=tuple(charges),
        )
        return statement.signed(NodeIdentityKey.at(self._policy.state))

    def note_refusal(self, error: ReleaseRefusedError) -> None:
        """Counts a refusal in the ledger of a node under a policy, for its owner to see."""
        if self._policy is not None:
            with contextlib.suppress(LedgerError, RolledBackError):
                open_ledger(self.settings).note_refused(type(error).__name__)

    @cached_property
    def _receipts(self) -> Receipts:
        if self._policy is None:
            raise ValueError("A node without a policy gives no receipts.")
        return Receipts(self._policy.state, self._policy.lineage)

    @cached_property
    def states(self) -> States:
        """States that answers keep for this client between messages."""
        policy, settings = self._policy, self.settings
        owner = f"{self._lineage}/{self.client}"
        # A round whose reply is stored is never computed again. Any other may be, in the same
        # simulation: its state from before the round must still be there then.
        final = self._stores_replies
        return States(
            settings.states if policy is None else policy.states,
            owner,
            simulated=policy is None,
            at_once=final or settings.states_at_once,
            rewinds=not final,
        )

    @property
    def _stores_replies(self) -> bool:
        """True if every reply is stored before it leaves.

        A simulation stores replies where their noise cannot be drawn again. A real node stores them
        with every key: another machine or version would compute other last bits under the same
        noise.
        """
        return self._policy is not None or not self._key.repeatable

    @cached_property
    def _masking(self) -> Masking:
        """Sessions of secure aggregation."""
        policy, settings = self._policy, self.settings
        if policy is None:
            if not settings.masked:
                raise ReleaseRefusedError("This client masks nothing.")
            folder = None
            if settings.states is not None and settings.states_at_once:
                folder = settings.states / "sessions" / str(self.client)
            return Masking(
                self.client,
                simulated_identity(self.client),
                Rules(simulated_peers(settings.clients)),
                Sessions(folder),
            )
        if policy.aggregation is None:
            raise ReleaseRefusedError(
                f"The policy {policy.path.name} has no table [aggregation]: add it to take part in "
                "secure aggregation."
            )
        allowed = policy.aggregation
        identity = Identity(NodeIdentityKey.at(policy.state).private, allowed.certificate)
        return Masking(
            self.client,
            identity,
            allowed,
            Sessions(policy.sessions),
            policy.price_words,
            lambda run: bool(open_ledger(settings).charged(self._lineage, run)[0]),
        )

    @cached_property
    def _gate(self) -> LedgerGate | PassGate | None:
        """Gate that charges messages; None: a seed's noise is charged to nobody."""
        settings, policy = self.settings, self._policy
        if settings.lent is not None:  # the ledger is on another machine
            return PASSES
        # Reproducible noise is public anyway and is keyed by the round: engines differ in the last
        # bits of a request, so a ledger would refuse honest reruns.
        if settings.seed is not None or settings.replies is None:  # they lie beside the ledger
            return None
        store = ReplyStore(settings.replies) if self._stores_replies else None
        ledger = open_ledger(settings)
        if policy is None:
            return LedgerGate(ledger, self._lineage, None, store)
        return LedgerGate(ledger, self._lineage, policy.budgets, store, policy.on_change)


TOLD: set[DataSpec] = set()
"""Data whose owner has heard what reading passed over: in this process, or before its fork."""

_NODES: dict[tuple[NodeSettings, int], Node] = {}  # of this process
PASSES = PassGate()  # of the nodes of this process that have a lent key


def open_node(settings: NodeSettings, client: int) -> Node:
    """Returns the node of this process that plays `client`, made at its first message."""
    key = (settings, client)
    if key not in _NODES:
        _NODES[key] = Node(settings, client)
    return _NODES[key]


def grant(digests: Iterable[bytes]) -> None:
    """Lets the nodes of this process with a lent key answer only rounds with these digests."""
    PASSES.grant(digests)


def keep_states(round: int) -> None:
    """Writes the states of this process's nodes to files; see `States.keep`."""
    for node in _NODES.values():
        node.states.keep(round)


def close_nodes() -> None:
    """Forgets every node of this process, and the data they hold."""
    _NODES.clear()
    PASSES.grant(())
    deal.cache_clear()
    open_ledger.cache_clear()


def policy_of(settings: NodeSettings) -> Policy | None:
    """Returns the owner's policy, if there is one; raises ConfigError for another node's."""
    if settings.policy is None:
        return None
    policy = read_policy(settings.policy)
    if (policy.data, policy.noise) != (settings.data, settings.noise):
        raise ConfigError(
            f"{policy.path.name} is for other data or another noise than this node's: "
            "use NodeSettings.from_policy."
        )
    return policy


@lru_cache(maxsize=4)
def open_ledger(settings: NodeSettings) -> Ledger:
    if settings.ledger is None:
        raise ValueError("These settings name no ledger.")
    # In a simulation nobody cuts the power on purpose; at a real node somebody may.
    ledger = Ledger(settings.ledger, durable=settings.policy is not None)
    if settings.replies is not None:
        refuse_rollback(ledger, ReplyStore(settings.replies))
    policy = policy_of(settings)
    if policy is not None:
        refuse_forgotten(ledger, policy.states)
        Receipts(policy.state, policy.lineage).check(ledger)
    return ledger
