"""The base of every method of the central mode: its plan, its settings, its rounds and their sums.

A method derives its settings from `CentralSettings`, and its strategy from `CentralStrategy`: that
states what a round asks of all its clients, and what is learnt from the sum of their replies. A
method that asks some clients for something else than others derives from `CentralRounds`.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedsink.configuration import ADDED, Configuration
from fedsink.errors import ClientError, ConfigError
from fedsink.models import Generator
from fedsink.privacy import (
    LOCAL_NOISE,
    CentralPlan,
    JointSchedule,
    NoiseShare,
    PrivacyPlan,
    TurnSchedule,
    UnprotectedPlan,
    capacity_for,
)
from fedsink.privacy.accounting.accountants import check_accountant
from fedsink.privacy.clips import Clip
from fedsink.privacy.integer_gaussian import FixedPoint, IntegerGaussian
from fedsink.privacy.sampling import Schedule
from fedsink.protocol.exchange import Broadcast, Content, Exchange, Reduction, Sum, connected
from fedsink.protocol.requests import UNNAMED, CentralRequest, pack_replies, unpack_replies
from fedsink.protocol.tree_sum import BLOCK, TreeSum
from fedsink.secagg.graph import two_thirds
from fedsink.secagg.parameters import LEAST_COHORT
from fedsink.strategies.base.central_statement import (
    SampleOfRecords,
    central_statement,
    notice,
    unprotected_statement,
)
from fedsink.strategies.base.private_start import plans_of, private_entry
from fedsink.strategies.base.round_strategy import (
    Quorum,
    RoundStrategy,
    StrategySettings,
    check_quorum,
    failure,
)
from fedsink.strategies.base.trainer import OptimizerSettings, Trainer
from fedsink.values import checks, given, strictly

Key = TypeVar("Key")
"""Names one broadcast of an exchange."""


@dataclass(frozen=True, kw_only=True)
class CentralSettings(StrategySettings):
    """Everything public about a run of the central mode; a method adds its own fields.

    Attributes:
        sample: words of privacy.json for the mechanism and the sample it draws.
        plan: clip and noise of every round, with their accounting; without clip and
            noise an `UnprotectedPlan`.
        optimizer: the settings of the generator's optimiser.
        accountant: the accountant of the reported ε, one of `fedsink.privacy.ACCOUNTANTS`.
        run: public name of the run, stated in every request.
        share: how much of the plan's noise a reply holds: all of it, or a part that makes up
            the whole in the sum of a cohort's replies.
    """

    mode: ClassVar[str] = "central"
    sample: ClassVar[SampleOfRecords]

    plan: CentralPlan
    optimizer: OptimizerSettings
    clients: int
    accountant: str = "pld"
    run: str = UNNAMED
    share: NoiseShare = LOCAL_NOISE
    quorum: float | None = None

    def __post_init__(self) -> None:
        check_accountant(self.accountant)
        if not self.plan.protected and self.share != LOCAL_NOISE:
            what = f"noise.share={self.share.name} has nothing to share"
            if self.share.name == LOCAL_NOISE.name:
                what = f"noise.draw={self.share.draw} draws nothing"
            raise ConfigError(f"{what} where eps=inf adds no noise: leave one of them out.")
        self.share.check(self.plan.schedule, self.clients)
        check_quorum(self.quorum, self.clients)
        if self.quorum is not None and self.share != LOCAL_NOISE:
            raise ConfigError(
                f"noise.share={self.share.name} leaves too little noise in a sum that a client is "
                f"missing from: leave strategy.quorum={self.quorum} out."
            )
        if not self.share.masked:
            return
        # A masked sum of too few clients is not unmasked, or holds one client's reply.
        spared, of_turns = (
            self.share.tolerate_dropouts,
            self.plan.schedule.name == TurnSchedule.name,
        )
        fewer_parts = "fewer strategy.turns" if of_turns else "strategy.schedule=joint"
        for cohort in self.share.cohorts(self.plan.schedule, self.clients):
            least = max(2, two_thirds(cohort))
            if cohort < 2:
                parts = self.plan.schedule.cohorts
                raise ConfigError(
                    f"clients={self.clients} are asked in {parts} parts, some of which have one "
                    f"client, and a masked sum needs two: say {fewer_parts}, or "
                    f"clients={2 * parts} or more ({LEAST_COHORT * parts} on real nodes)."
                )
            if cohort - spared < least:
                raise ConfigError(
                    f"Under masks at least {least} of the {cohort} clients that are asked the same "
                    f"must answer, and noise.tolerate_dropouts={spared} leaves {cohort - spared}: "
                    f"lower it, choose more clients, or {fewer_parts}."
                )

    @classmethod
    def read(cls, config: Configuration, run: str, **fields: Any) -> Self:
        """Returns the settings with these fields; the others are read from the configuration.

        A field is the option of `strategy` of its name, or a public fact that any method may have:
        `view` (coordinates of the records, as `View.to_dict()`), `classes` (their number) and
        `nominal_records` (N/K of a client). A value out of range is a FedsinkError.
        """
        table, all_fields = config.strategy, dataclasses.fields(cls)
        names = {field.name for field in all_fields}
        needed = {field.name for field in all_fields if field.default is dataclasses.MISSING}
        public: dict[str, Any] = {
            "optimizer": strictly(OptimizerSettings, table["optimizer"], "strategy.optimizer"),
            "clients": config.clients,
            "accountant": config.accountant,
            "run": run,
            "share": config.noise.shared,
            "view": {"shape": list(config.data.shape), **given(config.view)},
            "classes": len(config.classes),
            "nominal_records": config.data.nominal_records / config.clients,
        }
        own = (names & {*table} | needed) - {*fields, *public}
        options = {name: table[name] for name in own}
        return cls(**{name: public[name] for name in names & {*public}}, **options, **fields)

    @property
    def enough(self) -> Quorum:
        # Under masks some may be missing.
        return Quorum(self.quorum, self.share.tolerate_dropouts if self.share.masked else 0)

    @property
    def masked_run(self) -> str | None:
        return self.run if self.share.masked else None

    def statement(self, noise: str) -> dict[str, Any]:
        if not self.plan.protected:
            return unprotected_statement(self.plan, self.clients)
        return central_statement(
            self.plan, self.clients, noise, self.sample, self.accountant, self.share, self.integers
        )

    def notice(self, privacy: Mapping[str, Any]) -> str | None:
        return notice(privacy, self.share, self.clients, self.sample)

    @property
    def many_clients(self) -> float:
        return 1000

    def rounds_asked(self, client: int, rounds: int) -> int:
        return self.plan.schedule.answered(client, rounds + 1)

    @property
    def exchanges(self) -> int:
        """⌈T/U⌉, exchanges that hold all rounds."""
        return -(-self.plan.rounds // self.uses_per_message)

    @property
    @abstractmethod
    def reply_shape(self) -> tuple[int, ...]:
        """Shape of the values of one round in a reply."""

    @cached_property
    def use_size(self) -> int:
        """d, number of values of one round in a reply."""
        return math.prod(self.reply_shape)

    @property
    def clipped_size(self) -> int:
        """Number of values of one gradient, as a clip is given it: those of a use."""
        return self.use_size

    def reply(self, count: int, weights: int) -> RecordDict:
        return pack_replies([torch.zeros(self.reply_shape)] * count)

    @property
    def most_sampled(self) -> int:
        """Public bound on the number of records in one client's total, with room."""
        return 1

    @cached_property
    def integers(self) -> tuple[IntegerGaussian, ...]:
        """Mechanisms of shared noise, one for each size of cohort, increasing; all of one γ.

        Empty where every reply holds the whole noise.
        """
        plan, share = self.plan, self.share
        if not plan.protected or not share.gains(plan.schedule, self.clients):
            return ()
        cohorts, spared = share.cohorts(plan.schedule, self.clients), share.tolerate_dropouts
        largest = IntegerGaussian.finest(
            plan,
            cohorts,
            size=self.use_size,
            bits=share.bits,
            radius=plan.clip.reach(self.most_sampled),
            tolerate_dropouts=spared,
        )
        return tuple(replace(largest, parts=m - spared) for m in cohorts)

    def noise_of(self, client: int) -> tuple[int, FixedPoint | None]:
        """Returns t′ and the fixed point of a request to a client; (1, None): the whole noise."""
        shared = self._shared(client)
        return (1, None) if shared is None else (shared.parts, shared.fixed_point)

    def request_fields(self, round: int, client: int) -> dict[str, Any]:
        """Returns the fields of a `CentralRequest` to a client, for one round of the plan."""
        share, grid = self.noise_of(client)
        common = {"round": round, "plan": self.plan, "run": self.run}
        return {**common, "share": share, "fixed_point": grid}

    def cohort(self, client: int) -> range:
        """Returns the clients that get the request of `client`, connected or not."""
        return self.plan.schedule.members(client, self.clients)

    def noise_std(self, client: int) -> float:
        """Returns the standard deviation of the noise in one client's reply."""
        shared = self._shared(client)
        return self.plan.noise_std if shared is None else shared.std

    def _shared(self, client: int) -> IntegerGaussian | None:
        parts = self.share.parts(self.plan.schedule, client, self.clients)
        found = (one for one in self.integers if parts > 1 and one.parts == parts)
        return next(found, None)


def central_plan(
    config: Configuration,
    clip: Clip,
    schedule: Schedule | None = None,
    sigma: float | None = None,
    *,
    only: bool = False,
) -> CentralPlan:
    """Returns the plan that spends ε: two of (eps, sigma, rounds) give the third.

    Missing values come from the recipe; eps=inf is the same rounds with neither clip nor noise.
    With a private start eps is the total of its plan and this one.

    Args:
        config: a configuration of the central mode.
        clip: bounds the change by one unit.
        schedule: names the clients and the classes of each round; None: all in every round.
        sigma: the noise multiplier; None: the configuration's.
        only: the method has this clip and no other, no capacity, and no way to go without noise.

    Raises:
        FedsinkError: a value is out of range, belongs to the ldp mode or to another method, or the
            three contradict one another.
    """
    schedule = schedule or JointSchedule()
    if only:
        name = config.strategy["name"]
        for key, value, fixed in (
            ("clip", config.clip, clip.name), ("capacity", config.capacity, None),
        ):  # fmt: skip
            if value != fixed:
                raise ConfigError(f"strategy={name} has no {key}={value}: leave it out.")
        if config.eps == math.inf:
            raise ConfigError(f"strategy={name} needs a finite eps.")
    mechanism = config.mechanism["name"]
    if mechanism != PrivacyPlan.mechanism:
        raise ConfigError(
            f"mode=central noises sums with mechanism={PrivacyPlan.mechanism}, not "
            f"{mechanism!r}; mechanism={mechanism} belongs to mode=ldp."
        )
    if config.shuffler != "none":
        raise ConfigError(
            f"shuffler={config.shuffler} belongs to mode=ldp: a shuffler amplifies reports "
            "that are private one by one, and those of mode=central are sums over a batch."
        )
    records = math.ceil(config.data.nominal_records / config.clients)
    eps = config.eps
    if sigma is None:
        sigma = config.sigma
    rounds: Any = config.rounds
    if eps is None and sigma is None:
        eps = config.recipe["eps"]
    if rounds is None and (sigma is None or eps is None):
        rounds = config.recipe["rounds"]
    before = plans_of(private_entry(Path(config.start)) if config.start else None)
    if before and config.start_plan == ADDED and eps is not None:
        spent = sum(earlier.epsilon() for earlier in before)
        if eps <= spent:
            raise ConfigError(
                f"the start has spent ε = {spent:.4g} of the total eps={eps:g}, which leaves "
                "nothing: raise eps."
            )
        eps, before = eps - spent, []
    if eps == math.inf and sigma is not None:
        raise ConfigError(f"eps=inf adds no noise, so sigma={sigma} has no meaning: leave one out.")

    def plan(capacity: int | None) -> CentralPlan:
        check_capacity(capacity, config.data.nominal_records)
        limit = None if capacity is None else records
        if eps == math.inf:
            return UnprotectedPlan(config.rate, rounds, clip.name, schedule, capacity, limit)
        return PrivacyPlan.solve(
            rate=config.rate,
            clip=clip,
            schedule=schedule,
            delta=config.delta,
            eps=eps,
            sigma=sigma,
            rounds=rounds,
            accountant=config.accountant,
            adjacency=config.adjacency,
            capacity=capacity,
            nominal_records=limit,
            before=before,
        )

    if config.capacity is None:
        return plan(None)
    if config.capacity == "auto":
        free = plan(None)  # with a capacity its rounds can only become fewer
        return plan(capacity_for(free.rate, records, free.uses, config.delta))
    return plan(checks.count("capacity", config.capacity, also="null, auto or "))


def check_capacity(capacity: int | None, records: int) -> None:
    """Refuses a capacity above the public number of all records; raises ConfigError."""
    if capacity is not None and capacity > records:
        raise ConfigError(
            f"capacity={capacity} is more than all of the {records} nominal records: lower it. It "
            "would hide nothing more, and cost time and memory."
        )


def signal_to_noise(energy: float, noise: float) -> dict[str, float]:
    """Returns the metric that estimates ‖signal‖/‖noise‖ of a release, from only the release.

    ‖release‖² is on average ‖signal‖² + ‖noise‖², so r = ‖release‖²/E‖noise‖² − 1 estimates the
    square without bias, and falls below 0 where the signal is less than one release can measure.
    The metric is sign(r)·√|r|: a negative one says that, and means of its signed squares over
    rounds are still without bias.

    Args:
        energy: squared norm of the release.
        noise: expected squared norm of the noise in it.

    Returns:
        {} without noise.
    """
    if noise <= 0.0:
        return {}
    square = energy / noise - 1.0
    return {"signal_to_noise": math.copysign(math.sqrt(abs(square)), square)}


class CentralRounds(RoundStrategy):
    """A run of the central mode: its reports, its samples and the sums of its replies.

    Args:
        settings: public parameters.
        generator: trained in place.
        key: keys the server's latents (not secret).
    """

    def __init__(self, settings: CentralSettings, generator: Generator, key: bytes) -> None:
        super().__init__(
            settings.plan.rounds, settings.clients, settings.uses_per_message, settings.enough
        )
        self.settings = settings
        self.trainer = Trainer(generator, settings.optimizer, settings.exchanges)
        self._key = key

    @property
    def generator(self) -> Generator:
        return self.trainer.averaged

    def label_prior(self) -> Tensor:
        # Uniform: class frequencies are private.
        classes = self.trainer.generator.classes
        return torch.full((classes,), 1.0 / classes)

    def epsilon_so_far(self) -> float:
        return self.settings.plan.epsilon_after(self.round, self.settings.accountant)

    def epsilon_bound(self) -> float:
        return self.settings.plan.epsilon_bound_after(self.round, self.settings.accountant)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return self.trainer.state()

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        self.trainer.load_state(tensors, values)

    def broadcast(
        self, content: Content, nodes: Mapping[int, int], shape: tuple[int, ...], round: int
    ) -> Broadcast:
        """Returns one content, from this round on, for clients that the schedule asks the same.

        `nodes` are those that are connected, client → node; `shape` is that of all rounds' replies.
        """
        client, settings = next(iter(nodes)), self.settings
        noise, cohort = settings.noise_of(client), settings.cohort(client)
        return Broadcast(content, nodes, shape, *noise, cohort, round)

    def announced(self, message: int) -> list[Broadcast]:
        """Returns the broadcasts of a message without their contents, where replies are masked.

        Args:
            message: its number, from 1; behind the last message nothing is announced.
        """
        settings, first = self.settings, self.rounds_per_message * (message - 1) + 1
        if not settings.share.masked or first > self.rounds:
            return []
        shape = (min(self.rounds_per_message, self.rounds - first + 1), settings.use_size)
        cohorts: dict[range, dict[int, int]] = {}
        for client, node in self._nodes.items():
            if settings.plan.schedule.answers(client, first):
                cohorts.setdefault(settings.cohort(client), {})[client] = node
        return [self.broadcast(Content.later(), of, shape, first) for of in cohorts.values()]

    def _sums(
        self,
        broadcasts: Mapping[Key, Broadcast],
        replies: Iterable[Message] | Reduction,
        task: str,
        expected: Sequence[int],
    ) -> dict[Key, Sum]:
        """Returns the sum of the replies to each broadcast that somebody answered.

        Args:
            broadcasts: no client is in two of them.
            replies: the replies to the broadcasts, or the sums that a grid made of them.
            task: the clients' task in words, for errors.
            expected: all clients of this exchange, including those out of reach.

        Raises:
            ClientError: fewer clients than the quorum sent what they were asked for; where a grid
                added up, any client that was reached sent something else.
        """
        if isinstance(replies, Reduction):
            sums = self._decoded(_reduced(broadcasts, replies, task))
            absent = {*replies.absent}
            if sum(len(b.nodes) for b in broadcasts.values()) < len(expected):
                absent |= {*expected}.difference(*(b.nodes for b in broadcasts.values()))
            self.note_absent(sorted(absent))
            return sums
        shapes = {client: b.shape for b in broadcasts.values() for client in b.nodes}

        def read(client: int, record: RecordDict) -> Tensor:
            try:
                reply = self.unpacked(record)
            except ValueError as error:
                raise ClientError(f"While {task}, client {client} answered: {error}") from error
            shape = tuple(reply.shape)
            if shape != shapes[client] or not bool(reply.isfinite().all()):
                raise ClientError(
                    f"While {task}, client {client} answered with values of shape {shape}; "
                    f"expected finite values of shape {shapes[client]}."
                )
            shared = self.settings.noise_of(client)[1] is not None
            if shared != (reply.dtype == torch.int64):
                raise ClientError(
                    f"While {task}, client {client} answered with numbers of type {reply.dtype}; "
                    f"expected {'integers of shared noise' if shared else 'floats'}."
                )
            return reply

        received = self.answers(replies, task, expected, read)
        sums = {key: _sum(broadcast, received) for key, broadcast in broadcasts.items()}
        return self._decoded({key: part for key, part in sums.items() if part.clients})

    def _decoded(self, sums: dict[Key, Sum]) -> dict[Key, Sum]:
        """Returns the sums in units of the totals: integers of shared noise are decoded."""
        if not self.settings.integers:
            return sums
        grid = self.settings.integers[0].fixed_point
        return {
            key: part
            if part.total.is_floating_point()
            else replace(part, total=grid.decoded(part.total))
            for key, part in sums.items()
        }

    def _mean_noise(self, least: int) -> dict[str, float]:
        """Returns the metric `mean_noise_std` of a round that some client missed: σS/√m.

        Args:
            least: m, the fewest answers that make up a mean.
        """
        return {"mean_noise_std": self.settings.noise_std(0) / least**0.5} if self.absent else {}

    def unpacked(self, record: RecordDict) -> Tensor:
        """Returns the values of a reply, (rounds, ...); raises ValueError where it is malformed."""
        return unpack_replies(record)


class CentralStrategy(CentralRounds):
    """A method that asks all clients of a round for the same: those whose turn it is by the plan.

    A method states `request` and `learn`; see also `CentralRounds`.
    """

    _asked: tuple[CentralRequest, Broadcast] | None = None  # in the round under way
    _turn = range(0)  # clients that it is for

    @abstractmethod
    def request(self, round: int, **common: Any) -> CentralRequest:
        """Returns the request to the clients of a round; `common` are its other fields."""

    @abstractmethod
    def learn(self, request: Any, total: Tensor, clients: int) -> float:
        """Takes step `request.round` of `self.trainer`; returns the loss, for display.

        Args:
            request: what `request` returned for this round.
            total: sum of the replies, float64 of the request's `reply_shape`.
            clients: number of replies in it.
        """

    def drawn(self, purpose: str, round: int, count: int) -> tuple[Tensor, Tensor]:
        """Returns generated records, (count, …) with their graph, and their labels.

        The labels are public, never those of records, and balanced over the rounds.
        """
        generator = self.trainer.generator
        labels = torch.arange((round - 1) * count, round * count) % generator.classes
        z = generator.latent(count, self.latent_stream(purpose, round))
        return generator(z, labels), labels

    @property
    def asked(self) -> Sequence[int]:
        return self._turn

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks the clients whose turn it is."""
        if server_round > self.rounds:
            raise ClientError(
                f"The plan has {self.rounds} rounds, and round {server_round} was asked for, "
                "which is not accounted for."
            )
        settings, schedule = self.settings, self.settings.plan.schedule
        self._turn = schedule.turn(server_round, self.clients)
        nodes = connected(self.discover(grid), self._turn)
        needed = self.quorum.of(len(self._turn))
        if len(nodes) < needed:
            raise ClientError(
                f"Round {server_round} is the turn of {len(self._turn)} clients, and {len(nodes)} "
                "of them are connected: start the others, and continue with resume=."
            )
        request = self.request(**settings.request_fields(server_round, next(iter(nodes))))
        request.check()
        content = Content(lambda: [request], request.to_record)
        broadcast = self.broadcast(content, nodes, (1, *request.reply_shape), server_round)
        self._asked = request, broadcast
        kind, following = f"train.{request.name}", self.announced(server_round + 1)
        return Exchange(kind, str(server_round), [broadcast], needed, following)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Adds up the replies, and learns from their sum."""
        if self._asked is None or self._asked[0].round != server_round:
            raise ClientError(f"Replies for round {server_round} came before its request.")
        request, broadcast = self._asked
        task = f"answering round {server_round}"
        part = self._sums({0: broadcast}, replies, task, self._turn)[0]
        loss = self.learn(request, part.total[0], part.clients)
        self.round = server_round
        std = self.settings.noise_std(next(iter(broadcast.nodes)))
        noise = part.clients * std**2 * part.total.numel()
        return None, MetricRecord(
            {
                "loss": loss,
                **signal_to_noise(float(part.total.square().sum()), noise),
                **self._mean_noise(part.clients),
            }
        )


def _sum(broadcast: Broadcast, received: Mapping[int, Tensor]) -> Sum:
    total = TreeSum()
    clients = [client for client in broadcast.nodes if client in received]
    for block in range(-(-len(clients) // BLOCK)):
        gradients = [received[client] for client in clients[block * BLOCK : (block + 1) * BLOCK]]
        total.add_block(block, torch.stack(gradients))
    return Sum(total.total() if clients else torch.zeros(0), len(clients))


def _reduced(
    broadcasts: Mapping[Key, Broadcast], reduction: Reduction, task: str
) -> dict[Key, Sum]:
    for client, code in sorted(reduction.failures.items()):
        raise failure(code, task, f"client {client}")
    sums, absent = {}, set(reduction.absent)
    for (key, broadcast), part in zip(broadcasts.items(), reduction.sums, strict=True):
        present = len(broadcast.nodes) - sum(client in broadcast.nodes for client in absent)
        if part is None and not present:
            continue
        if part is None or part.clients != present or part.clients < broadcast.noise_parts:
            raise ClientError(f"While {task}, not every client's answer was added up.")
        sums[key] = part
    return sums
