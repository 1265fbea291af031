"""Critics of private records: a client trains them in every round, and adds up their gradients.

The client deals its records to M critics (`Parts`), each of which learns to tell its part from
generated rows (`CriticState`), and then asks every critic for the gradient of its output at the
server's rows (`critic_totals`). The noise is the plan's: see `PrivacyPlan.release`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from fedsink.models.critics import Adam, Critic, CriticTraining, LocalGenerator, wgan_gp_losses
from fedsink.privacy import Stream
from fedsink.privacy.clips import ClipOfCritics
from fedsink.privacy.randomness.noise import uniforms


@dataclass(frozen=True)
class Parts:
    """The records of K clients, each dealt to M critics by public slot number.

    A record belongs to the critic whose number is the record's slot modulo M, whatever other
    records there are: adding or removing one moves no other. A slot is part of a record's public
    identity: the number of its name, which no other record changes, or its line at the owner,
    which stays empty where the record is not there. Where all records of a user have one slot,
    one critic holds them all.
    """

    critics: int  # M
    records: Tensor  # coordinates, (N + 1, D), critic by critic; the last is zero, for empty parts
    labels: Tensor  # (N + 1,) int64
    starts: Tensor  # where each critic's part begins, (K·M,)
    sizes: Tensor  # records of each part, (K·M,)
    holds: Tensor  # (K·M, L) bool, true for the classes in each part; its critic is asked of these

    @classmethod
    def deal(
        cls, shards: Sequence[tuple[Tensor, Tensor, Tensor | None]], critics: int, classes: int
    ) -> Parts:
        """Deals each client's own records to its M critics.

        A shard is coordinates (n_k, D), labels (n_k,) in 0..L−1, and slots (n_k,) int64 ≥ 0; slots
        None: the records' places in their shard.
        """
        owners = []
        for client, (records, _, slots) in enumerate(shards):
            places = torch.arange(len(records)) if slots is None else slots.cpu()
            owners.append(client * critics + places % critics)
        owner = torch.cat(owners)
        order = owner.argsort(stable=True)
        sizes = torch.bincount(owner, minlength=len(shards) * critics)
        records = torch.cat([shard[0] for shard in shards])
        labels = torch.cat([shard[1] for shard in shards])
        holds = torch.zeros(len(shards) * critics, classes, dtype=torch.bool)
        holds[owner, labels.cpu()] = True
        device = records.device
        order = order.to(device)
        return cls(
            critics,
            torch.cat([records[order], records.new_zeros(1, records.shape[1])]),
            torch.cat([labels[order], labels.new_zeros(1)]),
            (sizes.cumsum(0) - sizes).to(device),
            sizes.to(device),
            holds.to(device),
        )

    def asked(self, which: Tensor) -> Parts:
        """Returns the parts where `which`, (K·M,) bool, are the asked critics; all train."""
        return replace(self, holds=self.holds & which.to(self.holds.device).unsqueeze(1))

    def draw(self, uniform: Tensor) -> Tensor:
        """Returns places of own records, drawn by uniforms (K·M, …); N for empty parts."""
        each = (-1, *[1] * (uniform.dim() - 1))
        starts, sizes = self.starts.reshape(each), self.sizes.reshape(each)
        indices = starts + (uniform * sizes).to(torch.int64)
        return torch.where(sizes > 0, indices, len(self.labels) - 1)


@dataclass(frozen=True)
class Fakes:
    """Generated rows of the last messages, which critics learn to tell from records; public."""

    rows: Tensor  # (R, D)
    labels: Tensor  # (R,) int64

    def appended(self, rows: Tensor, labels: Tensor, history: int) -> Fakes:
        """Returns the rows with a message's appended, cut to the last `history` messages."""
        length = history * len(rows)
        return Fakes(
            torch.cat([self.rows, rows])[-length:], torch.cat([self.labels, labels])[-length:]
        )

    def draw(self, uniform: Tensor, labels: Tensor, classes: int) -> Tensor:
        """Returns places of rows of these labels, drawn by uniforms; of any if a class has none."""
        counts = torch.bincount(self.labels, minlength=classes)
        starts = torch.where(counts > 0, counts.cumsum(0) - counts, 0)
        counts = torch.where(counts > 0, counts, len(self.labels))
        places = starts[labels] + (uniform * counts[labels]).to(torch.int64)
        return self.labels.argsort(stable=True)[places]


@dataclass(frozen=True)
class CriticState:
    """State of a client's M critics: as private as the records, and never sent."""

    weights: Tensor  # (M, W)
    adam: Adam  # the optimiser's state
    fakes: Fakes  # rows that the critics were shown last
    rounds: int = 0  # number of rounds in which the critics have been trained

    @classmethod
    def start(cls, critic: Critic, critics: int, public: Stream, like: Tensor) -> CriticState:
        """Returns M critics with the public initial state of every client, on `like`'s device."""
        weights = critic.initial(public).to(like.device).repeat(critics, 1)
        labels = torch.zeros(0, dtype=torch.int64, device=like.device)
        fakes = Fakes(weights.new_zeros(0, critic.dimension), labels)
        return cls(weights, Adam.start(weights), fakes)

    def to_tensors(self) -> dict[str, Tensor]:
        """Returns the state as tensors by name; `from_tensors` gives the same state back."""
        return {
            "weights": self.weights,
            "adam.mean": self.adam.mean,
            "adam.square": self.adam.square,
            "adam.steps": self.adam.steps,
            "fakes.rows": self.fakes.rows,
            "fakes.labels": self.fakes.labels,
            "rounds": torch.tensor(self.rounds),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> CriticState:
        """Returns the state written by `to_tensors`; raises KeyError for a missing tensor."""
        return cls(
            tensors["weights"],
            Adam(tensors["adam.mean"], tensors["adam.square"], tensors["adam.steps"]),
            Fakes(tensors["fakes.rows"], tensors["fakes.labels"]),
            int(tensors["rounds"]),
        )


@dataclass(frozen=True)
class CriticMessage:
    """Rows that a round shows to the critics, all of them public."""

    rows: Tensor  # X, where the critics' gradients are asked for, (n, D)
    row_labels: Tensor  # (n,) int64
    fakes: Tensor  # rows to train against, (f, D), of the same generator
    fake_labels: Tensor  # (f,) int64
    rate: float  # learning rate of the round


def critic_totals(
    critic: Critic,
    training: CriticTraining,
    clip: ClipOfCritics,
    message: CriticMessage,
    parts: Parts,
    states: Sequence[CriticState],
    coins: Sequence[Stream],
    local: LocalGenerator | None = None,
) -> tuple[Tensor, list[CriticState]]:
    """Trains the critics of K clients for one round, and adds up their clipped gradients.

    Σ_m clip(∂D_m/∂X, C) for each client, (K, n, D) float64 without noise, where the rows of classes
    that a critic's part lacks are zero before the clip; and each client's next state. The clients,
    all trained in equally many rounds, are one batch; single ones give the same, up to rounding.
    Each has a stream of coins, used only in this round. Before their first round critics are
    trained against a `local` generator, where there is one.

    Guarantees:
        - Two totals are at most the clip's sensitivity apart where one part of the records
          differs in any way, or one critic's state does.
        - No record that comes, goes or changes moves another critic.
        - A critic without records contributes zero.
        - The operations that run, and their shapes, depend only on the numbers of clients, critics
          and records and on public values.
        - The given states are not changed.
        - A local generator trains one critic, in its first round, only on that critic's part; its
          coins are drawn from the given ones, and only the critic is kept.
    """
    rounds = {state.rounds for state in states}
    if len(rounds) > 1:
        raise ValueError(
            f"Clients of one batch have equally many rounds behind them, not {rounds}."
        )
    # Clients of a cohort share one object; before the first message all are alike.
    keys = [id(state.fakes) if len(state.fakes.labels) else 0 for state in states]
    pools = {
        key: state.fakes.appended(message.fakes, message.fake_labels, training.history)
        for key, state in dict(zip(keys, states, strict=True)).items()
    }
    weights = torch.cat([state.weights for state in states])
    adam = Adam(
        torch.cat([state.adam.mean for state in states]),
        torch.cat([state.adam.square for state in states]),
        torch.cat([state.adam.steps for state in states]),
    )
    shown = [pools[key] for key in keys]
    lesson = _Lesson(critic, training, message.rate, parts, weights, adam)
    before = rounds.pop()
    if local is not None and not before:
        _warm_up(lesson, local, coins)  # the paper's warm start; costs no ε: nothing is released
    _train(lesson, shown, before, coins)  # n_dis steps of every critic, asked or not
    gradients = _gradients(critic, weights, message, parts)  # ∂D_m/∂X
    totals = clip.total(gradients.unflatten(0, (len(states), parts.critics)))
    size = parts.critics
    trained = []
    for client, (state, fakes) in enumerate(zip(states, shown, strict=True)):
        own = slice(client * size, (client + 1) * size)
        moments = Adam(adam.mean[own], adam.square[own], adam.steps[own])
        trained.append(CriticState(weights[own], moments, fakes, state.rounds + 1))
    return totals, trained


@dataclass(frozen=True)
class _Lesson:
    """K·M critics that are trained together in a round, in place."""

    critic: Critic  # their architecture
    training: CriticTraining  # their steps and batches
    rate: float  # learning rate of the round
    parts: Parts  # the records that each learns from
    weights: Tensor  # (K·M, W)
    adam: Adam  # the optimiser's state

    @property
    def mismatched(self) -> bool:
        """True if the critics see records under another label too."""
        return self.training.mismatch > 0.0 and self.critic.classes > 1

    def step(self, indices: Tensor, fakes: Tensor, mixing: Tensor, other: Tensor | None) -> None:
        """Takes one step of each critic on its own B pairs.

        Args:
            indices: places of its records, (K·M, B).
            fakes: rows paired with the records, (K·M, B, D).
            mixing: weights of the fakes in the points between, (K·M, B).
            other: uniforms that choose other labels, (K·M, B); None: no other labels are used.
        """
        training, labels = self.training, self.parts.labels[indices]
        losses = partial(
            wgan_gp_losses,
            self.critic,
            fakes=fakes,
            records=self.parts.records[indices],
            mixing=mixing,
            labels=labels,
            penalty=training.penalty,
            drift=training.drift,
            mismatch=training.mismatch,
            others=None if other is None else _other_labels(labels, other, self.critic.classes),
        )
        self.descend(losses, self.weights, self.adam)

    def descend(self, losses: Callable[[Tensor], Tensor], weights: Tensor, adam: Adam) -> None:
        """Takes one step of each critic on its own loss; critics without records stay unchanged."""
        weights.requires_grad_(True)
        (gradient,) = torch.autograd.grad(losses(weights).sum(), weights)
        weights.requires_grad_(False)
        active = self.parts.sizes > 0
        adam.step(weights, gradient, self.rate, active)


def _train(lesson: _Lesson, shown: Sequence[Fakes], trained: int, coins: Sequence[Stream]) -> None:
    """Takes the round's steps.

    One draw of uniforms a client: record, fake row, midpoint, and another label where one is used.
    """
    training, parts, classes = lesson.training, lesson.parts, lesson.critic.classes
    steps, batch = training.steps_after(trained), training.batch
    if not steps:
        return
    kinds = 3 + lesson.mismatched
    counts = [kinds * steps * parts.critics * batch] * len(coins)
    drawn = uniforms(coins, counts).reshape(len(coins), kinds, parts.critics, steps, batch)
    record, fake, mixing, *other = drawn.to(lesson.weights.device).transpose(0, 1).flatten(1, 2)
    indices = parts.draw(record)
    partners, rows = _partners(classes, parts.critics, shown, fake, parts.labels[indices])
    for t in range(steps):
        fakes = rows[partners[:, t]]
        lesson.step(indices[:, t], fakes, mixing[:, t], other[0][:, t] if other else None)


def _warm_up(lesson: _Lesson, local: LocalGenerator, coins: Sequence[Stream]) -> None:
    """Trains each critic against its own local generator, which is then thrown away.

    The warm start of Chen, Orekondy, Fritz 2020: a step of the generators follows as many of the
    critics as a round has. One draw of uniforms a client for each step of the generators: record,
    midpoint, another label where one is used, and latents, for the critics' and its own steps.
    """
    training, parts = lesson.training, lesson.parts
    streams = [coin.child("warm start") for coin in coins]
    started = torch.stack([local.initial(stream) for stream in streams])
    generators = started.to(lesson.weights.device).repeat_interleave(parts.critics, 0)
    adam = Adam.start(generators)
    kinds, steps, batch = 2 + lesson.mismatched + local.latent, training.steps + 1, training.batch
    counts = [kinds * steps * parts.critics * batch] * len(coins)
    for _ in range(training.warm_generator):
        drawn = uniforms(streams, counts).reshape(len(coins), kinds, parts.critics, steps, batch)
        drawn = drawn.to(generators.device).transpose(0, 1).flatten(1, 2)
        (record, mixing, *other), latents = drawn[: -local.latent], drawn[-local.latent :]
        indices, latents = parts.draw(record), latents.movedim(0, -1)
        labels = parts.labels[indices]
        for t in range(training.steps):
            fakes = local.points(generators, latents[:, t], labels[:, t])
            lesson.step(indices[:, t], fakes, mixing[:, t], other[0][:, t] if other else None)

        z, of = latents[:, -1], labels[:, -1]

        def losses(weights: Tensor, z: Tensor = z, of: Tensor = of) -> Tensor:
            return -lesson.critic.scores(lesson.weights, local.points(weights, z, of), of).mean(1)

        lesson.descend(losses, generators, adam)


def _other_labels(labels: Tensor, uniform: Tensor, classes: int) -> Tensor:
    """Returns a label of another class for each, chosen evenly by uniforms of its shape."""
    return (labels + 1 + (uniform * (classes - 1)).to(torch.int64)) % classes


def _partners(
    classes: int, critics: int, shown: Sequence[Fakes], uniform: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the places of the fakes that records are paired with, and the fakes' rows."""
    pools = {id(fakes): fakes for fakes in shown}
    places, before = torch.empty_like(labels), 0
    for key, fakes in pools.items():
        shows = torch.tensor([id(other) == key for other in shown], device=labels.device)
        own = torch.nonzero(shows.repeat_interleave(critics)).flatten()
        places[own] = before + fakes.draw(uniform[own], labels[own], classes)
        before += len(fakes.rows)
    return places, torch.cat([fakes.rows for fakes in pools.values()])


@torch.no_grad()
def _gradients(critic: Critic, weights: Tensor, message: CriticMessage, parts: Parts) -> Tensor:
    """Returns ∂D/∂X of all critics, (K·M, n, D), zero at rows of classes that a part lacks."""
    everyone = len(weights)
    points = message.rows.expand(everyone, *message.rows.shape)
    labels = message.row_labels.expand(everyone, -1)
    gradients = critic.gradients(weights, points, labels)
    return torch.where(parts.holds[:, message.row_labels].unsqueeze(-1), gradients, 0.0)
