"""Nodes on neighbouring data that get one sequence of messages, and checks of all their answers.

A node remembers its ledger, its replies and the weights of its critics. A bound on single answers
therefore proves little: these tests compare all that left for one account over the whole sequence.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fedsink_papers.parameter_gradient.request import ParameterRequest
from flwr.app import Message, RecordDict
from torch import Tensor

from fedsink.clients.answers import privatize_once as privatizer
from fedsink.clients.answers.base import Task
from fedsink.clients.node import close_nodes
from fedsink.clients.owner.ledger.account_report import report
from fedsink.clients.owner.ledger.database import Database
from fedsink.clients.records.shard import Shard
from fedsink.data import sources
from fedsink.privacy import ADJACENCIES, Clipped, Stream
from fedsink.privacy.plan import PrivacyPlan
from fedsink.protocol.dp_sinkhorn import unpack_requests
from fedsink.protocol.failure_codes import MEANING
from fedsink.protocol.gs_wgan import CriticRequest
from fedsink.protocol.privatize_once import LocalPlan, PrivatizeRequest
from fedsink.protocol.signing import node_receipt, shown_key, sign

from ..support.exact import squared_distance
from ..support.policies import limits
from ..support.tiny import CLASSES
from .besieged import BesiegedNode, Place
from .honest import CRITIC, GRADIENT, IDENTITY, KINDS, PARAMETERS, PRIVATIZE, SHAPES, Kind
from .oracles import gaussian_delta, sampled_epsilon
from .siege import outcome

RECORDS, OWN = 13, 4  # of the client, and of its last user
NEIGHBOURS: dict[str, tuple[str, ...]] = {
    "without": ("add-remove", "user", "client"),
    "replaced": ("replace-one", "user", "client"),
    "user": ("user", "client"),
    "client": ("client",),
}
"""How data differ from the first node's, in every version of them, and the adjacencies under which
that is one unit or a part of one: the last record is missing, or is another one; all records of its
user are others; all records are.
"""
OWNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "whole": ("fast", {}),
    "signed": ("fast", {}),
    "keyed": ("keyed", {}),
    "files": ("keyed", {"states_at_once": True}),
}
"""The noise of each kind of node, and what else its owner decides: "files" is a keyed node that
writes down what its critics learn.
"""
POLICY: dict[str, Any] = {
    "budget": {name: limits(1e6, 0.01) for name in ADJACENCIES},
    "allow": {"secure_aggregation": "untrusted", "maximum_images": 24},
}
"""What a policy allows beyond the usual: all adjacencies, and shares of noise."""
KEY, STRANGER = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))


def held(
    holding: str, version: int, shape: tuple[int, ...], *, named: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]:
    """Values, labels, users of a node ("base" or a key of `NEIGHBOURS`), and slots if it has names.

    In version 1 of the data all values are others, and three new records come first, which move
    the lines of all others and no name.
    """
    new = 3 * version
    n = new + RECORDS
    size = math.prod(shape)
    low, high = (-1.0, 1.0) if len(shape) == 1 else (0.0, 1.0)
    values = torch.rand(n, size, generator=torch.Generator().manual_seed(5 + version))
    values = (low + high) / 2 + (values - 0.5) / 20  # little beside the last user's
    labels, users = torch.arange(n) % CLASSES, torch.arange(n)
    slots = torch.cat([200 + torch.arange(new), torch.arange(RECORDS)])
    middle = (low + high) / 2
    values[-OWN:-1], values[-1] = middle + (high - middle) / 4, high  # the last outweighs them
    labels[-OWN:], users[-OWN:] = 0, 101
    others = {"replaced": 1, "user": OWN, "client": n}.get(holding, 0)
    if others:
        values[-others:] = low + high - values[-others:]
        labels[-others:] = (labels[-others:] + 1) % CLASSES
    values = values.reshape(n, *shape)
    kept = slice(0, n - 1 if holding == "without" else n)
    known = values[kept], labels[kept], users[kept]
    return (*known, slots[kept]) if named else known


class Use(NamedTuple):
    """One release of a node for one place, before the noise."""

    total: Tensor
    std: float  # of the noise; in the local mode its scale
    noise: bytes  # names the stream that the node drew it from

    @property
    def content(self) -> bytes:
        """Two uses of one content release the same function."""
        return hashlib.sha256(self.total.numpy().tobytes() + repr(self.std).encode()).digest()


class Asked(NamedTuple):
    """One use as its message states it: class, clip ("" in the local mode) and rate."""

    label: int | None = None
    clip: str = ""
    rate: float = 1.0


@dataclass(frozen=True)
class Charged:
    """Charge of one plan, read from the ledger."""

    id: int  # of its run there
    multiplier: float  # σ against all that one unit adds to a use; 0 if the event is not Gaussian
    rate: float  # of the event, or at which critics are asked; 1 where nothing is sampled
    critics: bool  # one that is asked in secret adds half of what σ is stated against
    epsilon: float | None  # None where there is no ceiling
    delta: float


class Witness:
    """One node, and everything known to have left it."""

    def __init__(self, node: BesiegedNode, holding: str, *, signed: bool) -> None:
        self.node, self.holding, self._signed = node, holding, signed
        self.begin()

    def begin(self) -> None:
        """A node that has answered nothing yet."""
        self.node.begin()
        self.uses: dict[Place, Use] = {}
        self.asked: dict[Place, Asked] = {}
        self.coins: dict[bytes, int] = {}
        self.noises: dict[bytes, bytes] = {}
        self.findings: list[str] = []
        self.new: list[Use] = []
        self.name = ""
        if self._signed:
            given = node_receipt(self.node.ask(IDENTITY, RecordDict()).content)
            assert given is not None
            self.name = given.name

    def saw(self, use: Use) -> None:
        """Notes the total that gets noise now, whether or not the release leaves."""
        self.new.append(use)
        if self.noises.setdefault(use.noise, use.content) != use.content:
            self.findings.append("one noise for two functions of the data")

    def left(self, places: Sequence[Place]) -> None:
        """Notes that the answer for these places left, computed now or before."""
        assert not self.new or len(self.new) == len(places)
        for place, use in zip(places, self.new, strict=False):
            first = self.uses.setdefault(place, use)
            assert (first.noise, first.content) == (use.noise, use.content), "two answers"
        assert all(place in self.uses for place in places), "an answer that was not computed"


class Coupled(Stream):
    """Stream that all nodes share, and the name of the stream that a node would draw by itself."""

    def __init__(self, origin: bytes, *context: str | int) -> None:
        super().__init__(b"coupled", *context)
        self.origin = origin


class History:
    """Nodes on neighbouring data; `send` checks everything sent so far after each message.

    The nodes share their coins: otherwise everything that depends on coins would differ, and not
    only the part that depends on the one unit. Two uses of a node share coins where its key does.

    All nodes must answer with equal codes and shapes, and
        - between neighbours of its account's adjacency no use is further apart than the event says
          that it was charged with,
        - all uses of an account together are no easier to tell apart than the (ε, δ) charged, and
          no more of them left than the charge is for,
        - no noise is ever drawn for two functions of the data, and no place has two answers.
    """

    def __init__(
        self,
        folder: Path,
        patch: pytest.MonkeyPatch,
        owner: str = "whole",  # a key of `OWNERS`
        records: str = "images",  # a key of `SHAPES`
        *,
        named: bool = True,
    ) -> None:
        shape, (noise, decided) = SHAPES[records], OWNERS[owner]
        self._signed = owner == "signed"
        operators = {"lab": shown_key(KEY.public_key().public_bytes_raw())}
        self.sent, self.version = 0, 0
        self.codes, self.compared = Counter[int](), Counter[str]()
        self.largest = dict.fromkeys(ADJACENCIES, 0.0)
        self._close()
        self.nodes = list[Witness]()
        for holding in ("base", *NEIGHBOURS):
            patch.setitem(
                sources.SOURCES,
                f"besieged-{holding}",
                lambda spec, split, h=holding: held(h, self.version, shape, named=named),
            )
            own = POLICY if noise != "keyed" else dict(decided)
            if owner == "files":
                own["states"] = folder / holding / "states"
            named_to = operators if self._signed else None
            node = BesiegedNode(folder, shape, holding, noise, 1e6, named_to, own)
            self.nodes.append(Witness(node, holding, signed=self._signed))
        self.begin()
        self._at = self.nodes[0]
        patch.setattr(Task, "stream", self._coupled(Task.stream))
        for name in ("release", "release_each"):
            patch.setattr(PrivacyPlan, name, self._watched(getattr(PrivacyPlan, name)))
        patch.setattr(privatizer, "privatize", self._mapped(privatizer.privatize))

    def begin(self) -> None:
        """Nodes that have answered nothing yet, with the first version of their data."""
        self.version = 0
        self._close()
        for each in self.nodes:
            each.begin()
        self._shifts: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
        self._kept: dict[Path, bytes] = {}

    def restart(self) -> None:
        """Returns these nodes in new processes."""
        self._close()
        for each in self.nodes:
            each.node.restart()

    def change_data(self) -> None:
        """The data become the other version of them, and the nodes start again."""
        self.version = 1 - self.version
        self.restart()

    def lose_states(self) -> None:
        """All that answers remember is gone, and the nodes start again."""
        for path in self._states():
            path.unlink()
        self.restart()

    def damage_states(self, bit: int) -> None:
        """Flips one bit of every file of a state and restarts the nodes."""
        for path in self._states():
            content = bytearray(path.read_bytes())
            content[bit // 8 % len(content)] ^= 1 << bit % 8
            path.write_bytes(content)
        self.restart()

    def swap_states(self) -> None:
        """Puts the states of the last call back, and keeps today's for the next call.

        So does an owner who restores a backup and then undoes this.
        """
        today = {path: path.read_bytes() for path in self._states()}
        for path in today:
            path.unlink()
        for path, content in self._kept.items():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_bytes(content)
        self._kept = today
        self.restart()

    def send(self, kind: Kind, content: RecordDict, signature: str = "good") -> Message:
        """The first node's reply, after everything was checked.

        Where the nodes know operators, the signature is "good", "none", of a "stranger", for
        "another" node, or for another "type" of message.
        """
        self.sent += 1
        replies = []
        for each in self.nodes:
            self._at, each.new = each, []
            signed = self._sign(each, kind, content, signature) if self._signed else content
            replies.append(each.node.ask(kind, signed))
            assert not each.findings, each.findings
        outcomes = [outcome(reply) for reply in replies]
        assert outcomes == outcomes[:1] * len(outcomes), f"the answers tell nodes apart: {outcomes}"
        reply = replies[0]
        self.codes[reply.error.code if reply.has_error() else 0] += 1
        if reply.has_error():
            assert reply.error.code in MEANING
            assert not reply.error.reason
        elif kind != IDENTITY:
            asked = _asked(kind, content)
            for each in self.nodes:
                each.left(list(asked))
            self._compare(asked)
        return reply

    @property
    def answered(self) -> int:
        """Number of messages that got an answer."""
        return self.codes[0]

    def _sign(self, to: Witness, kind: Kind, content: RecordDict, signature: str) -> RecordDict:
        content = RecordDict(dict(content))
        if signature == "none" or kind == IDENTITY:
            return content
        key = STRANGER if signature == "stranger" else KEY
        name = self.nodes[self.nodes.index(to) - 1].name if signature == "another" else to.name
        signed_as = KINDS[KINDS.index(kind) - 1] if signature == "type" else kind
        sign(content, signed_as, name, key)
        return content

    def _compare(self, asked: Mapping[Place, Asked]) -> None:
        """Compares each new use with its charge, and all uses of its accounts with theirs."""
        first = self.nodes[0]
        with first.node.reader() as database:
            assert database is not None
            charges = _charges(database)
            spent = {account.adjacency: account for account in report(database)}
        assert charges.keys() >= asked.keys(), "an answer without a charge"
        for place, each in asked.items():
            if place in first.asked:
                continue
            first.asked[place] = each
            for other in self.nodes[1:]:
                if place[0] in NEIGHBOURS[other.holding]:
                    self._compare_use(place, each, charges[place], other)
        for adjacency in {place[0] for place in asked}:
            account = spent[adjacency]
            if account.epsilon is not None:  # the owner has stated a ceiling
                used = {p: charges[p] for p in first.asked if p[0] == adjacency}
                self._check_charge(used, account.spent_epsilon or 0.0, account.spent_delta or 0.0)

    def _compare_use(self, place: Place, asked: Asked, charged: Charged, other: Witness) -> None:
        one, two = self.nodes[0].uses[place], other.uses[place]
        assert one.std == two.std, "the noise tells the nodes apart"
        self.compared[place[0]] += 1
        if asked.clip == "":
            apart = (one.total - two.total).abs().sum().item() / one.std
            assert charged.epsilon is None or apart <= charged.epsilon
            return
        exchanged = (place[0], asked.clip) == ("replace-one", "record")  # one goes, and one comes
        if place[0] == "client" and asked.clip == "record" and other.holding != "without":
            return  # a unit is that records go, not that others come
        squared = squared_distance(one.total, two.total)
        allowed = Fraction(one.std) / Fraction(charged.multiplier) * (2 if exchanged else 1)
        ratio = math.sqrt(squared / allowed**2)
        self.largest[place[0]] = max(self.largest[place[0]], ratio)
        assert squared <= allowed**2, (
            f"round {place[2]} of the run {place[1]} moves by {ratio:.3g} times what was charged "
            f"under {place[0]}, between nodes that differ in {other.holding!r}"
        )
        if asked.rate == 1.0:
            squared /= Fraction(one.std) ** 2
            self._shifts[other.holding, place[0]][charged.id] += float(squared)

    def _check_charge(self, used: Mapping[Place, Charged], epsilon: float, delta: float) -> None:
        """Checks the (ε, δ) spent by all that left for an account, by observation and by events."""
        plans = {charged.id: charged for charged in used.values()}
        labels: dict[int, Counter[int | None]] = defaultdict(Counter)
        for place, charged in used.items():
            [adjacency, _, _] = place
            labels[charged.id][self.nodes[0].asked[place].label] += 1
        shifts = [self._shifts[h, adjacency] for h in NEIGHBOURS]
        uses = {id: _uses(adjacency, counts) for id, counts in labels.items()}
        if all(plan.rate == 1.0 and plan.multiplier for plan in plans.values()):
            by_events = {id: uses[id] / plan.multiplier**2 for id, plan in plans.items()}
            for by_plan in (*shifts, by_events):
                _check_delta(epsilon, sum(by_plan.values()), delta)
        for id, plan in plans.items():
            if plan.epsilon is None or not plan.multiplier:
                continue
            if plan.rate < 1.0:
                against = 2 * plan.multiplier if plan.critics else plan.multiplier
                least = sampled_epsilon(plan.rate, against, uses[id], plan.delta)
                assert least <= plan.epsilon, "a plan is charged less than its uses cost"
                continue
            for square in (*(by_plan[id] for by_plan in shifts), uses[id] / plan.multiplier**2):
                _check_delta(plan.epsilon, square, plan.delta)

    def _coupled(self, stream: Callable[..., Any]) -> Callable[..., Coupled]:
        """The node's own stream by name, with coins that all nodes share."""

        def coupled(task: Task, purpose: str, round: int, use: int = 0) -> Coupled:
            own, coins = stream(task, purpose, round, use), self._at.coins
            number = coins.setdefault(task.digests[use], len(coins))
            return Coupled(
                own._prefix + own._number.to_bytes(8), purpose, task.client, round, number
            )

        return coupled

    def _watched(self, release: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Calls the real release, after a look at the total that gets noise."""

        def watched(plan: PrivacyPlan, totals: Clipped, streams: Any) -> Tensor:
            if isinstance(streams, Coupled):
                each = [(totals.total, streams)]
            else:
                each = list(zip(totals.total, streams, strict=True))
            for total, stream in each:
                self._at.saw(Use(total.detach().clone(), plan.noise_std, stream.origin))
            return release(plan, totals, streams)

        return watched

    def _mapped(self, privatize: Callable[..., Any]) -> Callable[..., Any]:
        """The real privatization, after a look at the records' maps."""

        def mapped(shard: Shard, plan: LocalPlan, stream: Callable[[str], Coupled]) -> Any:
            total = plan.map(shard.images).double()
            self._at.saw(Use(total, plan.image_mechanism.scale, stream("image").origin))
            return privatize(shard, plan, stream)

        return mapped

    def _states(self) -> list[Path]:
        return [p for each in self.nodes for p in sorted(each.node.folder.rglob("*.state"))]

    @staticmethod
    def _close() -> None:
        close_nodes()
        sources.forget()


def _asked(kind: Kind, content: RecordDict) -> dict[Place, Asked]:
    """The places of an answered message's uses."""
    if kind == PRIVATIZE:
        return {("replace-one", PrivatizeRequest.from_record(content).run, 1): Asked()}
    uses: Sequence[Any] = []
    if kind == CRITIC:
        uses = [CriticRequest.from_record(content)]
    elif kind == PARAMETERS:
        uses = [ParameterRequest.from_record(content).gradient]
    elif kind == GRADIENT:
        uses = unpack_requests(content)
    return {
        (u.plan.adjacency, u.run, u.round): Asked(u.label, u.plan.clip.name, u.plan.rate)
        for u in uses
    }


def _charges(database: Database) -> dict[Place, Charged]:
    """Charges of every place, by place."""
    rows = database.rows(
        "SELECT adjacency, name, round, runs.id, event, runs.epsilon, runs.delta, plan"
        " FROM claims JOIN runs ON run = runs.id JOIN accounts ON account = accounts.id"
    )
    return {
        (adjacency, run, round): Charged(id, *_gaussian(event, plan), epsilon, delta)
        for adjacency, run, round, id, event, epsilon, delta, plan in rows
    }


@lru_cache(maxsize=64)
def _gaussian(event: str, plan: str) -> tuple[float, float, bool]:
    """σ and rate of uses of one Gaussian, and whether of critics; σ = 0 for another event."""
    fields, rate = json.loads(event), 1.0
    while fields.get("class") in ("SelfComposedDpEvent", "PoissonSampledDpEvent"):
        rate = fields.get("sampling_probability", rate)
        fields = fields["event"]
    stated = json.loads(plan)
    critics = stated.get("clip", {}).get("name") == "critic"
    if critics and stated["adjacency"] != "client":
        rate = stated["rate"]  # their event is not amplified, and their ε is
    sigma = fields["noise_multiplier"] if fields["class"] == "GaussianDpEvent" else 0.0
    return sigma, rate, critics


def _uses(adjacency: str, counts: Counter[int | None]) -> int:
    """Largest number of uses in which one unit took part."""
    if adjacency == "client":
        return sum(counts.values())
    of_class = max((n for label, n in counts.items() if label is not None), default=0)
    return counts[None] + of_class


def _check_delta(epsilon: float, squared: float, delta: float) -> None:
    reached = gaussian_delta(epsilon, math.sqrt(squared))
    assert reached <= delta * (1 + 1e-6), (
        f"ε = {epsilon:.4g} was charged, and δ is {reached:.3g} there and not {delta:.3g}"
    )
