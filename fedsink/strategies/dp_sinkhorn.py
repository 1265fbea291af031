"""Central mode: DP-Sinkhorn (Cao et al. 2021, Algorithm 1) over federated clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedsink.data.views import view_from_dict
from fedsink.errors import ClientError, ConfigError
from fedsink.models import Generator
from fedsink.privacy import PrivacyPlan, RecordClip, Stream
from fedsink.protocol import GradientReply, GradientRequest, Objective
from fedsink.strategies.base import RoundStrategy
from fedsink.strategies.self_term import Label, SelfPart, SelfTermSettings, self_term
from fedsink.strategies.trainer import OptimizerSettings, Trainer


@dataclass(frozen=True)
class DPSinkhornSettings:
    """Everything about a DP-Sinkhorn run; all of it is public.

    Attributes:
        plan: sampler, clip, noise, rounds and schedule, with their accounting.
        objective: the transport problem each client solves against its batch.
        self_term: the data-independent half of the Sinkhorn divergence.
        view: coordinates of the gradient, as `View.to_dict()`.
        rows: n, generated images per class and round.
        optimizer: the generator's optimiser.
        clients: K.
        nominal_records: N/K, a public number that scales gradients; never read from data.
    """

    plan: PrivacyPlan
    objective: Objective
    self_term: SelfTermSettings
    view: dict[str, Any]
    rows: int
    optimizer: OptimizerSettings
    clients: int
    nominal_records: float

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ConfigError(f"strategy.rows must be at least 1, not {self.rows}.")
        if isinstance(self.plan.clip, RecordClip) and self.objective.m > 0:
            raise ConfigError(
                "clip=record works with the squared Euclidean cost; "
                f"strategy.m={self.objective.m:g} "
                "needs clip=batch."
            )

    @property
    def nominal_batch(self) -> float:
        """B = q·N/(K·C): records of one class expected in a client's batch."""
        return self.plan.rate * self.nominal_records / self.objective.classes


@dataclass(frozen=True)
class _Group:
    """Rows that form one transport problem: their place among all rows, and their labels."""

    label: Label
    rows: slice
    row_labels: Tensor
    part: SelfPart


class DPSinkhorn(RoundStrategy):
    """Generate X, collect the clients' noised gradients at X, step the generator.

    In round t client k is asked about the class (k + t) mod C (class schedule), or about all
    classes at once (joint). Replies about the same rows are averaged over clients.

    Args:
        settings: public parameters.
        generator: trained in place.
        key: keys the server's latents (not secret).
    """

    def __init__(self, settings: DPSinkhornSettings, generator: Generator, key: bytes) -> None:
        super().__init__(settings.plan.rounds, settings.clients)
        self.settings = settings
        self.trainer = Trainer(generator, settings.optimizer, settings.plan.rounds)
        self.view = view_from_dict(settings.view)
        self.self_term = self_term(settings.self_term, settings.objective, settings.plan.clip)
        self.classes = settings.objective.classes
        self._per_class = settings.plan.clip.name == "record" or settings.plan.schedule.classes > 1
        self._key = key
        self._points: Tensor | None = None
        self._coordinates = torch.zeros(0, 0)
        self._groups: list[_Group] = []
        self._asked: dict[int, Label] = {}

    @property
    def generator(self) -> Generator:
        """The averaged generator."""
        return self.trainer.averaged

    def render(self, images: Tensor) -> Tensor:
        """Images as they are."""
        return images

    def label_prior(self) -> Tensor:
        """Uniform: class frequencies are private."""
        return torch.full((self.classes,), 1.0 / self.classes)

    def epsilon_so_far(self) -> float:
        """ε of the rounds run so far, under the plan's accountant."""
        return self.settings.plan.epsilon_after(self.round)

    def latent_stream(self, purpose: str, number: int) -> Stream:
        """The server's latents of one round."""
        return Stream(self._key, purpose, number)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Generate this round's rows and ask every client for its gradient at them."""
        nodes = self.discover(grid)
        if self.round == 0:
            self._fill_history()
        schedule = self.settings.plan.schedule
        self._asked = {client: schedule.label(client, server_round) for client in nodes}
        self._points, self._groups = self._generate(server_round)
        contents = {
            label: self._request(server_round, label).to_record()
            for label in set(self._asked.values())
        }
        return [
            Message(
                contents[self._asked[client]],
                dst_node_id=node,
                message_type="train.gradient",
                group_id=str(server_round),
            )
            for client, node in nodes.items()
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the replies per class, add the self term, take one optimiser step."""
        if self._points is None:
            raise ClientError(f"Replies for round {server_round} came before its request.")
        asked = f"computing gradients in round {server_round}"
        received = self.replies_by_client(replies, asked, self._asked)
        means = self._means({k: self._checked(k, v, asked) for k, v in received.items()})
        gradient = torch.zeros(self._points.shape, dtype=torch.float64)
        scale = self.settings.nominal_batch if self.settings.plan.clip.name == "record" else 1.0
        for group in self._groups:
            n = len(group.row_labels)
            mine = gradient[group.rows]
            mine[:n] = means[group.rows.start] / scale
            mine += group.part.outside
        signal = self._signal_to_noise(means, len(received))
        self.trainer.step(self._points, gradient, server_round)
        for group in self._groups:
            self.self_term.remember(
                self._coordinates[group.rows][: len(group.row_labels)], group.label
            )
        self.round = server_round
        loss = float(gradient.square().sum().sqrt())
        return None, MetricRecord({"loss": loss, "signal_to_noise": signal})

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights, moments, average and history."""
        tensors, values = self.trainer.state()
        tensors |= {f"history.{k}": v for k, v in self.self_term.state().items()}
        return tensors, values

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.trainer.load_state(tensors, values)
        prefix = "history."
        self.self_term.load_state(
            {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
        )

    def _labels(self, group: Label) -> Tensor:
        """Labels of one group's rows, the same in every round."""
        rows = self.settings.rows
        if group is not None:
            return torch.full((rows,), group)
        return torch.arange(self.classes).repeat_interleave(rows)

    def _group_labels(self) -> list[Label]:
        if not self._per_class:
            return [None]
        asked = set(self._asked.values())
        if asked == {None}:
            return list(range(self.classes))
        labels: list[Label] = [*sorted(label for label in asked if label is not None)]
        return labels

    def _draw(self, purpose: str, number: int, groups: list[Label]) -> tuple[Tensor, list[Tensor]]:
        """Coordinates of fresh rows of these groups (with their graph), and their labels."""
        own = [self._labels(group) for group in groups]
        full = [torch.cat([g, g[: self.self_term.extra_rows(len(g))]]) for g in own]
        labels = torch.cat(full)
        generator = self.trainer.generator
        z = generator.latent(len(labels), self.latent_stream(purpose, number))
        return self.view(generator(z, labels)), own

    def _generate(self, server_round: int) -> tuple[Tensor, list[_Group]]:
        labels = self._group_labels()
        points, own = self._draw("train", server_round, labels)
        # Requests and self term work on the CPU, wherever the generator lives.
        self._coordinates = points.detach().cpu()
        groups, start = [], 0
        for label, row_labels in zip(labels, own, strict=True):
            stop = start + len(row_labels) + self.self_term.extra_rows(len(row_labels))
            rows = slice(start, stop)
            part = self.self_term(self._coordinates[rows], label, row_labels)
            groups.append(_Group(label, rows, row_labels, part))
            start = stop
        return points, groups

    def _fill_history(self) -> None:
        """Before the first round, history is what the untrained generator makes."""
        groups: list[Label] = list(range(self.classes)) if self._per_class else [None]
        for number in range(self.self_term.memory):
            with torch.no_grad():
                points, own = self._draw("history", number, groups)
            for rows, group in zip(points.split([len(g) for g in own]), groups, strict=True):
                self.self_term.remember(rows.cpu(), group)

    def _request(self, server_round: int, label: Label) -> GradientRequest:
        if self._points is None:
            raise ClientError("No rows were generated.")
        mine = [g for g in self._groups if label is None or g.label == label]
        points = self._coordinates
        return GradientRequest(
            server_round,
            label,
            self.settings.plan,
            self.settings.objective,
            self.settings.view,
            torch.cat([points[g.rows][: len(g.row_labels)] for g in mine]),
            torch.cat([g.row_labels for g in mine]),
            torch.cat([g.part.potentials for g in mine]),
            torch.cat([g.part.inside for g in mine]),
        )

    def _checked(self, client: int, record: RecordDict, asked: str) -> GradientReply:
        """The reply of one client, if it is a finite gradient at the rows that it was sent."""
        label = self._asked[client]
        mine = [g for g in self._groups if label is None or g.label == label]
        expected = (sum(len(g.row_labels) for g in mine), self.view.dimension)
        try:
            reply = GradientReply.from_record(record)
        except ValueError as error:
            raise ClientError(f"While {asked}, client {client} answered: {error}") from error
        if tuple(reply.gradient.shape) != expected or not bool(reply.gradient.isfinite().all()):
            raise ClientError(
                f"While {asked}, client {client} answered with a gradient of shape "
                f"{tuple(reply.gradient.shape)}; expected finite values of shape {expected}."
            )
        return reply

    def _means(self, replies: dict[int, GradientReply]) -> dict[int, Tensor]:
        """The clients' mean gradient of each group, by the group's first row."""
        totals: dict[Label, Tensor] = {}
        counts: dict[Label, int] = {}
        for client, reply in replies.items():
            label = self._asked[client]
            gradient = reply.gradient.to(torch.float64)
            totals[label] = totals[label] + gradient if label in totals else gradient
            counts[label] = counts.get(label, 0) + 1
        means: dict[int, Tensor] = {}
        for label, total in totals.items():
            mine = [g for g in self._groups if label is None or g.label == label]
            sizes = [len(g.row_labels) for g in mine]
            for group, part in zip(mine, (total / counts[label]).split(sizes), strict=True):
                means[group.rows.start] = part
        return means

    def _signal_to_noise(self, means: dict[int, Tensor], clients: int) -> float:
        """‖signal‖/‖noise‖ of the averaged gradient, estimated from the release alone."""
        energy = sum(float(mean.square().sum()) for mean in means.values())
        entries = sum(mean.numel() for mean in means.values())
        per_group = clients / max(1, len(set(self._asked.values())))
        noise = entries * self.settings.plan.noise_std**2 / per_group
        return max(0.0, energy / noise - 1.0) ** 0.5
