"""The server's lines of DP-Sinkhorn (Cao et al. 2021, Algorithm 1), over federated clients.

The algorithm in the paper's order, and the place that computes each step:

| step | | computed by |
|---|---|---|
| 1 | draw latents z and labels, generate X = G_θ(z, labels) | `DPSinkhornStrategy._generate` |
| 2 | self term, for one −Ŵ(X[0:n], X[n′:n+n′]) (Definition 4.3) | `SelfTerm.__call__` |
| 3 | sample records Y; ∂/∂X of 2Ŵ(X[0:n], Y) and self term; clip to Δ; noise Sσ | a client |
| 4 | mean over clients; what of the self term's gradient no client adds | `RoundRows` |
| 5 | backpropagate the gradient at X into θ (line 9), one step of the optimiser | `Trainer.step` |

S is 2Δ (`clip=record`: Δ). `configure_train` is steps 1 and 2, and asks the clients for step 3
(`fedsink/clients/answers/dp_sinkhorn.py`); `aggregate_train` is steps 4 and 5. Only step 3 sees
private records: the steps after it are post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from torch import Tensor

from fedsink.configuration import Configuration
from fedsink.data.views import view_from_dict
from fedsink.errors import ClientError, ConfigError
from fedsink.models import Generator
from fedsink.privacy import ClassSchedule, JointSchedule
from fedsink.privacy.clips import CLIPS, ClipOfRecords
from fedsink.protocol.dp_sinkhorn import GradientRequest, Objective, checked, packed_requests
from fedsink.protocol.exchange import Broadcast, Content, Exchange, connected
from fedsink.strategies.base.central_statement import SampleOfRecords
from fedsink.strategies.base.central_strategy import (
    CentralRounds,
    CentralSettings,
    central_plan,
    signal_to_noise,
)
from fedsink.strategies.dp_sinkhorn.rows import Label, Labels, Layout, RoundRows, SelfParts
from fedsink.strategies.dp_sinkhorn.self_term import SelfTermSettings, self_term
from fedsink.transport import check_backend
from fedsink.values import checks


@dataclass(frozen=True, kw_only=True)
class DPSinkhornSettings(CentralSettings):
    """Everything about a DP-Sinkhorn run; all of it is public.

    Attributes (the others are those of every method):
        objective: the transport problem each client solves against its batch.
        self_term: the data-independent half of the Sinkhorn divergence.
        view: coordinates of the gradient, as `View.to_dict()`.
        rows: n, generated images per class and round.
        nominal_records: N/K, a public number that scales gradients; never read from data.
        uses_per_message: U, rounds of the plan that one exchange of messages holds.
    """

    name: ClassVar[str] = GradientRequest.name
    title: ClassVar[str] = "DP-Sinkhorn"
    sample: ClassVar[SampleOfRecords] = SampleOfRecords(
        "Poisson-subsampled Gaussian on clipped gradients of the generated images"
    )
    leaves: ClassVar[str] = "clipped, noised gradients of generated records"
    computes_sums: ClassVar[bool] = True

    objective: Objective
    self_term: SelfTermSettings
    view: dict[str, Any]
    rows: int
    nominal_records: float
    uses_per_message: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for count in ("rows", "uses_per_message"):
            checks.count(f"strategy.{count}", getattr(self, count))
        view_from_dict(self.view)  # refused here, not in a client
        if self.plan.clip.per_record and not self.objective.is_quadratic:
            raise ConfigError(
                "clip=record works with the squared Euclidean cost; "
                f"strategy.cost={self.objective.cost} with strategy.m={self.objective.m:g} "
                "needs clip=batch."
            )
        self.self_term.check_clip(self.plan.clip)
        self.objective.check_plan(self.plan)
        _ = self.integers  # bits that are too few are refused here

    @classmethod
    def from_config(cls, config: Configuration, run: str, **more: Any) -> Self:
        """Reads the settings of DP-Sinkhorn; `more` are fields of a subclass."""
        table = config.strategy
        classes, label_weight = len(config.classes), table["label_weight"]
        check_backend(table["backend"])
        clip = CLIPS[checks.choice("clip", config.clip, "record", "batch")](table["bound"])
        by_class = (
            checks.choice("strategy.schedule", table["schedule"], "class", "joint") == "class"
        )
        schedule = ClassSchedule(classes) if by_class and classes > 1 else JointSchedule()
        return cls.read(
            config,
            run,
            plan=central_plan(config, clip, schedule),
            objective=Objective(
                lam=table["lam"],
                classes=classes,
                m=table["m"],
                label_weight=label_weight if classes > 1 else 0.0,
                solver=table["solver"],
                cost=table["cost"],
                backend=table["backend"],
            ),
            self_term=SelfTermSettings(
                table["self_term"], table["history"], table["p"], table["tether"]
            ),
            **more,
        )

    def check_sizes(self, sizes: Sequence[int]) -> None:
        """Refuses a client with more records than the plan's capacity counts on."""
        most = self.plan.nominal_records
        if most is not None and max(sizes) > most:
            raise ConfigError(
                f"The capacity of a batch counts on at most {most} records at a client "
                f"(data.nominal_records/clients), and this partition deals {max(sizes)} to one: "
                "choose capacity=null, another partition, or a larger data.nominal_records."
            )

    @property
    def many_clients(self) -> float:
        # With a clip for each record a round costs what its records cost, in one process.
        return math.inf if self.plan.clip.per_record else super().many_clients

    @property
    def reply_shape(self) -> tuple[int, ...]:
        """Shape of the gradient at a block's rows."""
        return self.layout.block_rows, view_from_dict(self.view).dimension

    @property
    def clipped_size(self) -> int:
        """Number of values of one gradient: a record meets all rows, or those of its class."""
        apart = self.plan.clip.per_record and self.plan.capacity is None
        block, dimension = self.reply_shape
        return (self.rows if apart else block) * dimension

    @property
    def most_sampled(self) -> int:
        """Bound on the sample of a client with 2N/K records: mean + 8 standard deviations + 32.

        A client that sampled more would have its total projected, which costs no privacy.
        """
        mean = 2.0 * self.plan.rate * self.nominal_records
        most = min(math.ceil(2.0 * self.nominal_records), math.ceil(mean + 8 * mean**0.5 + 32))
        return most if self.plan.capacity is None else min(most, self.plan.capacity)

    @cached_property
    def mean_noise_variance(self) -> float:
        """The noise variance of a reply, averaged over the clients."""
        if not self.integers:
            return self.plan.noise_std**2
        some = range(min(self.clients, self.plan.schedule.cohorts))  # one of each cohort
        total = sum(self.noise_std(client) ** 2 * len(self.cohort(client)) for client in some)
        return total / self.clients

    @cached_property
    def layout(self) -> Layout:
        """Sizes and labels of a round's rows, and the clients of each block."""
        schedule = self.plan.schedule
        return Layout(
            clients=self.clients,
            classes=self.objective.classes,
            schedule=schedule,
            mixed=not (schedule.classes > 1 or self.plan.clip.per_record),
            rows_per_class=self.rows,
            debiased=self.self_term.debiased,
        )

    @property
    def gradient_scale(self) -> float:
        """Divisor of the clients' mean, which is a sum over records with `clip=record`."""
        return self.nominal_batch if self.plan.clip.per_record else 1.0

    def signal_to_noise(self, energy: float, answers: Sequence[int]) -> dict[str, float]:
        """Estimates ‖signal‖/‖noise‖ of the clients' mean gradients, as `signal_to_noise`.

        `energy` is the squared norm of those of all blocks, and `answers` has the number of answers
        about each block of each round.
        """
        means = sum(1 / count for count in answers if count)
        return signal_to_noise(energy, self.use_size * self.mean_noise_variance * means)

    @property
    def nominal_batch(self) -> float:
        """B = q·N/(K·C): records of one class expected in a client's batch."""
        return self.plan.rate * self.nominal_records / self.objective.classes


class DPSinkhornStrategy(CentralRounds):
    """Generates X, collects the clients' noised gradients at X, steps the generator.

    In round t client k is asked about the class (k + t) mod C (class schedule), or about all
    classes at once (joint). Replies about the same rows are averaged over clients.

    One exchange of messages holds U rounds of the plan (`uses_per_message`): message r asks for
    the rounds U(r−1)+1, …, min(Ur, T). Each of them has fresh rows for the class that its schedule
    names. With U > 1 the privacy and the number of noised gradients are unchanged, but training
    is not: all rows of a message come from one generator, the self term's history is that of the
    messages before, and one optimiser step follows the mean of the U gradients. So there are
    ⌈T/U⌉ steps instead of T, each with about 1/√U of the noise, and the optimiser's warm-up,
    schedule and average count those. Meant for deployments, where a message costs seconds.

    The metric `loss` is the norm of the noised gradient at X, the root mean square over a message's
    rounds: no value of the objective is released. `key` is of the server's latents, and not secret.
    """

    Settings = DPSinkhornSettings
    message_type: ClassVar[str] = f"train.{GradientRequest.name}"

    settings: DPSinkhornSettings

    def __init__(self, settings: DPSinkhornSettings, generator: Generator, key: bytes) -> None:
        super().__init__(settings, generator, key)
        self.view, self.layout = view_from_dict(settings.view), settings.layout
        self._like = torch.zeros(0, self.view.dimension)
        clip = ClipOfRecords.expect(settings.plan.clip)
        self.self_term = self_term(
            settings.self_term, settings.objective, clip, self.layout, self._like
        )
        self._points: Tensor | None = None  # X, with its graph
        self._rounds: list[RoundRows] = []  # of the message under way
        self._broadcasts: dict[Labels, Broadcast] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Generates this message's rows and asks every client for its gradients at them."""
        nodes = self.discover(grid)
        if self.round == 0:
            self.self_term.fill(self._untrained)

        # Steps 1 and 2: X, and the self term of the generated points.
        per_message = self.rounds_per_message
        first, last = per_message * (server_round - 1) + 1, per_message * server_round
        if first > self.rounds:
            raise ClientError(
                f"The plan has {self.rounds} rounds in {self.messages} messages, and message "
                f"{server_round} was asked for, which is not accounted for."
            )
        self._points, self._rounds = self._generate(range(first, min(last, self.rounds) + 1))

        # Step 3, asked for. Clients asked about the same classes are one cohort: they share one
        # content, their replies are added up, and so is the noise in them.
        self._broadcasts = {}
        for client in range(min(self.clients, self.settings.plan.schedule.cohorts)):
            members = connected(nodes, self.settings.cohort(client))
            if members:
                labels = tuple(self.layout.label(client, rows.round) for rows in self._rounds)
                self._broadcasts[labels] = self._broadcast(labels, members)
        needed = self.quorum.of(self.clients)
        broadcasts, following = list(self._broadcasts.values()), self.announced(server_round + 1)
        return Exchange(self.message_type, str(server_round), broadcasts, needed, following)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Averages the replies per round and class, adds the self term, takes one step."""
        if self._points is None:
            raise ClientError(f"Replies for round {server_round} came before its request.")
        first, last = self._rounds[0].round, self._rounds[-1].round
        where = f"rounds {first} to {last}" if last > first else f"round {first}"
        sums = self._sums(
            self._broadcasts, replies, f"computing gradients in {where}", range(self.clients)
        )

        # Step 4: the gradient at every row of X.
        means, gradients, answers = [], [], []
        for index, rows in enumerate(self._rounds):
            mean, counts = rows.means(sums, index)
            means.append(mean)
            gradients.append(rows.gradient(mean, counts, self.settings.gradient_scale))
            answers += [count for count in counts if count]
        gradient, rounds = torch.cat(gradients), len(self._rounds)

        # Step 5: down into the weights.
        self.trainer.step(self._points, gradient / rounds, server_round)
        for rows in self._rounds:
            self.self_term.remember(rows.seen, rows.kinds)
        self.round = last

        energy = float(torch.stack(means).square().sum())
        return None, MetricRecord(
            {
                "loss": float((gradient.square().sum() / rounds).sqrt()),
                **self.settings.signal_to_noise(energy, answers),
                **self._mean_noise(min(answers)),
            }
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, values = super().state()
        return tensors | self.self_term.state(), values

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        super().load_state(tensors, values)
        self.self_term.load_state(tensors)

    def _generate(self, rounds: Sequence[int]) -> tuple[Tensor, list[RoundRows]]:
        """Returns X of one message with its graph, and its rows and self parts by round."""
        # Step 1. All rounds pass the generator together, so that one step follows all of them.
        layout = self.layout
        kinds = torch.cat([layout.group_kinds(round) for round in rounds])
        by_round = kinds.unflatten(0, (len(rounds), layout.groups))
        latents = [self._latents("train", *drawn) for drawn in zip(rounds, by_round, strict=True)]
        labels = layout.row_labels(kinds)
        points = self._forward(torch.cat(latents), labels.flatten())

        # Step 2. Requests and self term work on the CPU, wherever the generator lives.
        rows = points.detach().cpu().unflatten(0, labels.shape)
        parts = self.self_term(rows, kinds, labels)

        generated = []
        for place, round in enumerate(rounds):
            groups = slice(place * layout.groups, (place + 1) * layout.groups)
            of_round = SelfParts(*(part[groups] for part in parts))
            generated.append(RoundRows(round, layout, kinds[groups], rows[groups], of_round))
        return points, generated

    def _latents(self, purpose: str, number: int, kinds: Tensor) -> Tensor:
        """Returns z of all rows of fresh groups of these kinds, (R, latent_dim)."""
        rows = self.layout.row_labels(kinds).numel()
        return self.trainer.generator.latent(rows, self.latent_stream(purpose, number))

    def _forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Returns rows in the coordinates of the view, (R, D)."""
        points: Tensor = self.view(self.trainer.generator(z, labels))
        return points

    @torch.no_grad()
    def _untrained(self, kinds: Tensor, number: int) -> Tensor:
        """Returns rows before the first round, of groups of these kinds, (G, n + n′, D)."""
        labels = self.layout.row_labels(kinds)
        z = self._latents("history", number, kinds)
        return self._forward(z, labels.flatten()).unflatten(0, labels.shape)

    def _broadcast(self, labels: Labels, members: Mapping[int, int]) -> Broadcast:
        """Returns the requests about `labels` for a cohort, client → node."""
        client = next(iter(members))
        requests = [
            self._request(rows, label, client)
            for rows, label in zip(self._rounds, labels, strict=True)
        ]
        content = Content(lambda: checked(requests), lambda: packed_requests(requests))
        shape = (len(requests), *self._rounds[0].shape)
        return self.broadcast(content, members, shape, self._rounds[0].round)

    def _request(self, rows: RoundRows, label: Label, client: int) -> GradientRequest:
        """Returns the request about `label` to a client."""
        settings, layout, groups = self.settings, self.layout, rows.groups_of(label)
        return GradientRequest(
            **settings.request_fields(rows.round, client),
            label=label,
            objective=settings.objective,
            view=settings.view,
            rows=rows.seen[groups].flatten(0, 1),
            row_labels=layout.row_labels(rows.kinds[groups])[:, : layout.group_rows].flatten(),
            potentials=rows.parts.potentials[groups].flatten(),
            self_gradient=rows.parts.inside[groups].flatten(0, 1),
        )
