"""The server's half of an entropic Sinkhorn GAN on privatized records (Reshetova et al. 2024).

`local_plan` spends a total ε on image and label, on resolution and noise. Then, as in the paper:

1. Clients privatize their records once and upload them, chunk by chunk       `aggregate_train`
2. In every step, draw privatized records Y and generated points X = f(G_θ(z, labels))  `_batch`
3. W_{c,λ}(X, Y) and its gradient at X (Theorem 1)                            `LocalLoss`
4. Backpropagate the gradient into θ, one step of the optimiser               `Trainer.step`

Only step 1 meets records, at `fedsink/clients/answers/privatize_once.py`. Steps 2 to 4 are
`PrivatizeOnce.step`, for which nobody is asked: post-processing, whose number costs no ε.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedsink.configuration import Configuration, noise_entries
from fedsink.data.maps import map_from_dict
from fedsink.errors import ClientError, ConfigError
from fedsink.models import Generator
from fedsink.privacy import LOCAL_MECHANISMS, LOCAL_NOISE, Stream, local_mechanism
from fedsink.privacy.accounting.amplification import shuffling_statement
from fedsink.protocol.exchange import Broadcast, Content, Exchange, Uploads
from fedsink.protocol.privatize_once import LocalPlan, PrivatizeReply, PrivatizeRequest
from fedsink.protocol.requests import UNNAMED
from fedsink.strategies.base.round_strategy import (
    RoundStrategy,
    StrategySettings,
    check_quorum,
    failure,
)
from fedsink.strategies.base.trainer import OptimizerSettings, Trainer
from fedsink.strategies.losses import LabelStrata, Matched, loss_named
from fedsink.transport import (
    NATIVE,
    ConvergedSolver,
    GroundCost,
    Solver,
    by_backend,
    check_backend,
    cost_named,
    solver_named,
)
from fedsink.values import checks, given, strictly


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """Options of the method that are settings as they are; see `PrivatizeOnceSettings`."""

    loss: str = "matched"
    critic: Mapping[str, Any] | None = None
    cost: str | None = None
    lam: float | None = None
    unmatched: bool = False
    solver: str = "converged"
    max_iterations: int = 30
    tolerance: float = 2e-2
    backend: str = NATIVE
    chunk_size: int = 4096
    quorum: float | None = None


LOCAL_OPTIONS = tuple(option.name for option in fields(LocalOptions))


@dataclass(frozen=True)
class PrivatizeOnceSettings(LocalOptions, StrategySettings):
    """Everything about a run of the ldp mode; all of it is public.

    Attributes:
        plan: releases each record of a client once.
        rounds: training steps of the server. They cost no privacy (post-processing).
        batch: b, generated points and privatized records per step, divided evenly among the
            randomized labels.
        optimizer: the generator's optimiser.
        clients: K.
        finite_batch_factor: scales λ for minibatches (→ 1 as b grows); below 1 the matched
            channel is a narrower one, so it is reported.
        loss: name of a `LocalLoss`; "matched" is that of Theorem 1.
        critic: options of a loss with a critic; None: its defaults.
        cost, lam: replace the matched cost and λ; need `unmatched`.
        unmatched: declares that cost and λ are not those of Theorem 1.
        solver: "converged", or "annealed" for the schedule of DP-Sinkhorn.
        max_iterations, tolerance: limits of "converged": Sinkhorn iterations, and the L1 marginal
            error at which they stop.
        backend: solves the problems: "native", or the library "geomloss" or "keops".
        chunk_size: records per upload message.
        run: public name of the run, stated in every request.
        shuffling: the addition of a trusted shuffler to the guarantee, for privacy.json; None
            where nobody shuffles.
        quorum: number of clients that must upload their records, as in `Quorum`.
    """

    name: ClassVar[str] = PrivatizeRequest.name
    mode: ClassVar[str] = "ldp"
    title: ClassVar[str] = "Sinkhorn GAN on LDP data"
    leaves: ClassVar[str] = "its records, each privatized, in random order"

    plan: LocalPlan
    rounds: int
    batch: int
    optimizer: OptimizerSettings
    clients: int
    finite_batch_factor: float = 1.0
    run: str = UNNAMED
    shuffling: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        checks.count("rounds", self.rounds)
        checks.count("strategy.batch", self.batch, minimum=2)
        checks.within("strategy.finite_batch_factor", self.finite_batch_factor, "(0, 1]")
        checks.flag("strategy.unmatched", self.unmatched)
        checks.count("strategy.max_iterations", self.max_iterations)
        checks.number("strategy.tolerance", self.tolerance)
        check_quorum(self.quorum, self.clients)
        if self.shuffled_reports and self.quorum is not None:
            raise ConfigError(
                f"shuffler=trusted states ε for the reports of all clients, and strategy.quorum="
                f"{self.quorum} lets some of them be missing: leave one of them out."
            )
        checks.count("strategy.chunk_size", self.chunk_size)
        if self.lam is not None:
            checks.positive("strategy.lam", self.lam)
        _ = self.transport  # refuses cost, solver and backend
        replaced = self.cost is not None or self.lam is not None
        if replaced and self.loss != "matched":
            raise ConfigError(
                f"strategy.loss={self.loss} fixes its cost and λ: leave strategy.cost and "
                "strategy.lam out."
            )
        if replaced and not self.unmatched:
            matched = self.plan.matched_cost
            raise ConfigError(
                f"The {self.plan.mechanism} mechanism is inverted by cost={matched.cost} and "
                f"λ={matched.lam:.4g} (Theorem 1); to train with another strategy.cost or "
                "strategy.lam, set strategy.unmatched=true, and the run will be reported so."
            )
        loss = loss_named(self.loss)
        if loss.instead is not None and self.backend != NATIVE:
            raise ConfigError(
                f"strategy.loss={self.loss} is {loss.instead}, which strategy.backend="
                f"{self.backend} does not solve: leave one of them out."
            )
        if self.critic is not None and not loss.by_critic:
            raise ConfigError(
                "strategy.critic belongs to a loss with a critic, as noisy_wgan of fedsink-papers; "
                f"strategy.loss={self.loss} trains none: leave it out."
            )
        loss.check(self)

    @classmethod
    def from_config(cls, config: Configuration, run: str) -> Self:
        if config.noise.shared != LOCAL_NOISE:
            raise ConfigError(
                f"noise.share={config.noise.share} belongs to mode=central: in mode=ldp records "
                "are used one by one, and nothing adds them up."
            )
        for key, value, why in (
            ("adjacency", "replace-one", "a record is protected against any other value of it"),
            ("accountant", "pld", "image and label are summed, and nothing is accounted"),
            ("capacity", None, "there are no batches"),
        ):
            if getattr(config, key) != value:
                raise ConfigError(
                    f"{key}={getattr(config, key)} belongs to mode=central: in mode=ldp {why}."
                )
        if config.eps == math.inf:
            raise ConfigError(
                "eps=inf belongs to mode=central: in mode=ldp the loss is matched to the noise, "
                "and without noise there is none."
            )
        table = config.strategy
        check_backend(table["backend"])
        plan, factor = local_plan(
            config.recipe,
            mechanism=config.mechanism,
            chosen_map=given(config.map),
            shape=config.data.shape,
            classes=len(config.classes),
            eps=config.eps,
            sigma=config.sigma,
            delta=config.delta,
        )
        own_factor = table["finite_batch_factor"]
        return cls(
            plan=plan,
            rounds=config.recipe["rounds"] if config.rounds is None else config.rounds,
            optimizer=strictly(OptimizerSettings, table["optimizer"], "strategy.optimizer"),
            clients=config.clients,
            finite_batch_factor=factor if own_factor is None else own_factor,
            run=run,
            shuffling=None
            if config.shuffler == "none"
            else shuffling_statement(
                plan.total_epsilon, plan.delta, config.data.nominal_records, config.shuffler_delta
            ),
            batch=table["batch"],
            **{name: table[name] for name in LOCAL_OPTIONS},
        )

    def check_sizes(self, sizes: Sequence[int]) -> None:
        """Refuses a client without records, and fewer records than ε is stated for.

        A server sees how many records a client uploads.
        """
        if min(sizes) == 0:
            raise ConfigError(
                "mode=ldp shows a server how many records a client uploads, so that none can take "
                "part without any: leave out partition.keep."
            )
        self.check_reports(sum(sizes))

    def check_reports(self, count: int) -> None:
        """Refuses fewer reports than the stated ε behind a shuffler is for: fewer hide less."""
        if count < self.shuffled_reports:
            raise ConfigError(
                f"shuffler=trusted states ε for {self.shuffled_reports} shuffled reports, and "
                f"there are {count}: set data.nominal_records={count}, or leave the shuffler out."
            )

    def rounds_asked(self, client: int, rounds: int) -> int:
        """Returns 1: a client uploads its records once, before the first training step."""
        return 1

    def reply(self, count: int, weights: int) -> RecordDict:
        values = torch.zeros(count, self.plan.map.dimension)
        return PrivatizeReply(values, torch.zeros(count, dtype=torch.int64), 1).to_record()

    def statement(self, noise: str) -> dict[str, Any]:
        """Returns the content of privacy.json, with the loss that the server minimises."""
        loss = loss_named(self.loss)
        own = loss.statement(self)
        training = {
            "loss": self.loss,
            "cost": None,  # its place; the loss states it
            "lam": self.effective_lam,
            "finite_batch_factor": self.finite_batch_factor,
            "matched": self.matched,
            "matched_cost": asdict(self.plan.matched_cost),
        }
        if reserved := sorted((own.keys() & training.keys()) - {"cost"}):
            raise ConfigError(
                f"strategy.loss={self.loss} states {reserved[0]}, which fedsink itself does: leave "
                f"it out of {loss.__name__}.statement."
            )
        training |= own
        return {
            **local_statement(self.plan, noise),
            "clients": self.clients,
            "training": training,
            # Beside the local ε and never instead of it.
            **({} if self.shuffling is None else {"shuffling": self.shuffling}),
        }

    def identity(self) -> dict[str, Any]:
        """Returns all values except `shuffling`, which changes nothing in the run."""
        identity = super().identity()
        del identity["shuffling"]
        return identity

    @property
    def shuffled_reports(self) -> int:
        """Number of reports that the ε behind a shuffler is for; 0 where none is stated."""
        statement = self.shuffling or {}
        return 0 if statement.get("epsilon") is None else int(statement["reports"])

    @property
    def matched(self) -> bool:
        """True where the loss is that of Theorem 1 (at a finite-batch factor of 1)."""
        return loss_named(self.loss) is Matched and not self.unmatched

    @property
    def effective_cost(self) -> str:
        return loss_named(self.loss).cost(self)

    @property
    def transport(self) -> tuple[GroundCost, Solver]:
        """The cost and the solver of an entropic loss, as the backend has them."""
        solver = solver_named(self.solver)
        if isinstance(solver, ConvergedSolver):
            solver = ConvergedSolver(self.max_iterations, self.tolerance)
        return by_backend(self.backend, cost_named(self.effective_cost), solver)

    @property
    def effective_lam(self) -> float:
        """λ trained with, finite-batch factor included; 0 without Sinkhorn's iterations."""
        if loss_named(self.loss).instead is not None:
            return 0.0
        lam = self.plan.matched_cost.lam if self.lam is None else self.lam
        return lam * self.finite_batch_factor


class PrivatizeOnce(RoundStrategy):
    """Collects the privatized records, then minimises W_{c,λ}(f(G(z)), Y) without debiasing.

    With labels the loss compares the records of each randomized label ỹ with generated points
    whose labels follow P(label | ỹ) (`LabelStrata`). There is no debiasing term: the entropic bias
    removes the noise. `settings.loss` may name a comparison instead (`LocalLoss`).

    The first rounds of Flower are uploads: each takes in a chunk of every client that has one left.
    Every later one is a training step (`step`), in which no client is asked.

    Args:
        settings: public parameters.
        generator: trained in place.
        key: keys the server's own randomness (not secret).
    """

    Settings = PrivatizeOnceSettings

    def __init__(self, settings: PrivatizeOnceSettings, generator: Generator, key: bytes) -> None:
        super().__init__(settings.rounds, settings.clients, quorum=settings.enough)
        self.settings = settings
        self.trainer = Trainer(generator, settings.optimizer, settings.rounds)
        self._key = key
        self._values = torch.zeros(0, 0)
        self._labels = torch.zeros(0, dtype=torch.int64)
        self._prior = torch.zeros(0)
        self._targets = self._values  # the records as the loss compares them: `LocalLoss.targets`
        self._loss = loss_named(settings.loss)(settings)
        self._strata: LabelStrata | None = None
        self._chunk = 0  # that is asked for next
        self._waiting: Sequence[int] = range(self.clients)  # clients that have records left
        self._lost: set[int] = set()  # clients that failed
        self._received: dict[int, list[PrivatizeReply]] = {}  # by client, until all have arrived

    @property
    def generator(self) -> Generator:
        return self.trainer.averaged

    def label_prior(self) -> Tensor:
        """Returns class frequencies estimated from the randomized labels."""
        return self._prior

    def epsilon_so_far(self) -> float:
        """Returns the whole ε once records arrived: training releases nothing more."""
        return self.settings.plan.total_epsilon if len(self._values) else 0.0

    @property
    def uploading(self) -> bool:
        return self._strata is None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks for the next chunk of records; once all have arrived, for nothing."""
        if not self.uploading:
            return []
        settings, nodes = self.settings, self.discover(grid)
        request = PrivatizeRequest(settings.plan, self._chunk, settings.chunk_size, settings.run)
        if self._waiting == range(self.clients):
            waiting = nodes
        else:
            waiting = {client: nodes[client] for client in self._waiting if client in nodes}
        broadcast = Broadcast(Content(None, request.to_record), waiting, ())
        kind, needed = f"train.{request.name}", max(0, self._needed)
        return Exchange(kind, str(self._chunk), [broadcast], needed)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Takes in a chunk of the clients' records; once all have arrived, takes a `step`.

        A client that fails in between is left out with all of its records.

        Raises:
            ClientError: more clients than the quorum allows fail, refuse, or send values that the
                plan does not allow.
            ConfigError: fewer records arrived than the ε behind a shuffler is stated for.
        """
        if not self.uploading:
            return None, self.step()
        if isinstance(replies, Uploads):  # of a grid with all clients' records
            for client, code in sorted(replies.failures.items()):
                raise failure(code, "uploading its records", f"client {client}")
            self._accept(*self._valid("The clients", *replies.tensors))
            return None, None
        read, task = partial(self._checked, chunk=self._chunk), f"uploading chunk {self._chunk}"
        replied = self.answers(replies, task, self._waiting, read, self._needed)
        self._lost.update(self.absent)
        for client, reply in replied.items():
            self._received.setdefault(client, []).append(reply)
        self._chunk += 1
        self._waiting = [client for client, reply in replied.items() if reply.chunks > self._chunk]
        if not self._waiting:
            self.absent, received = sorted(self._lost), self._received
            complete = sorted(received.keys() - self._lost)
            everything = [reply for client in complete for reply in received[client]]
            self._received = {}
            self._accept(
                torch.cat([reply.values for reply in everything]),
                torch.cat([reply.labels for reply in everything]),
            )
        return None, None

    @property
    def _needed(self) -> int:
        """Number of answers that are enough: who has uploaded everything counts as well."""
        done = self.clients - len(self._waiting) - len(self._lost)
        return self.quorum.of(self.clients) - done

    def step(self) -> MetricRecord:
        """Takes one optimiser step of the server on a minibatch of privatized records."""
        if self._strata is None:
            raise RuntimeError("No records have arrived: ask for them, or load_uploads first.")
        number = self.round + 1
        for step in range(self._loss.critic_steps):
            stream = self.latent_stream(f"critic.{step}", number)
            with torch.no_grad():
                points, targets = self._batch(self._strata, stream)
            self._loss.train(points, targets, stream)
        stream = self.latent_stream("train", number)
        points, targets = self._batch(self._strata, stream)
        loss = self._loss(points, targets, stream)
        self.trainer.step(points, loss.gradient, number)
        self.round = number
        return MetricRecord({"loss": loss.value, "iterations": loss.iterations})

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, values = self.trainer.state()
        return tensors | self._loss.state(), values

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Restores what `state` returned; the uploads are loaded first."""
        self.trainer.load_state(tensors, values)
        self._loss.load_state(tensors)

    def uploads(self) -> dict[str, Tensor]:
        """Returns the privatized records: asked for once, kept for good."""
        return {"values": self._values, "labels": self._labels}

    def load_uploads(self, tensors: dict[str, Tensor]) -> None:
        self._accept(tensors["values"], tensors["labels"])

    def _batch(self, strata: LabelStrata, stream: Stream) -> tuple[Tensor, Tensor]:
        """Returns generated values X and records Y of a step, (S, n, D) each."""
        records, labels = strata.draw(self.settings.batch, stream)
        generator = self.trainer.generator
        z = generator.latent(labels.numel(), stream)
        points = self.settings.plan.map(generator(z, labels.flatten()))
        return points.unflatten(0, labels.shape), self._targets[records]

    def _accept(self, values: Tensor, labels: Tensor) -> None:
        self.settings.check_reports(len(labels))
        self._values, self._labels = values, labels
        self._targets = self._loss.targets(values)
        self._loss.begin(self._targets, self.latent_stream("critic", 0))
        mechanism = self.settings.plan.label_mechanism
        prior = mechanism.estimate_prior(labels) if mechanism else torch.ones(1)
        self._prior = prior.to(torch.float32)
        self._strata = LabelStrata(labels, self._prior, mechanism)

    def _checked(self, client: int, record: RecordDict, chunk: int) -> PrivatizeReply:
        try:
            reply = PrivatizeReply.from_record(record)
        except ValueError as error:
            raise ClientError(f"Client {client} uploaded chunk {chunk} as: {error}") from error
        # Only the last chunk may be smaller: whoever announces endless chunks must fill them.
        smallest = self.settings.chunk_size if chunk + 1 < reply.chunks else 1
        if not smallest <= len(reply.labels) <= self.settings.chunk_size:
            raise ClientError(
                f"Client {client} uploaded {len(reply.labels)} records as chunk {chunk} of "
                f"{reply.chunks}, where {self.settings.chunk_size} make a full one."
            )
        self._valid(f"Client {client}", reply.values, reply.labels)
        return reply

    def _valid(self, who: str, values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Returns uploaded records; raises ClientError for any that the plan does not allow."""
        dimension, classes = self.settings.plan.map.dimension, self.settings.plan.classes
        valid = (
            values.ndim == 2
            and values.shape[1] == dimension
            and values.dtype == torch.float32
            and labels.dtype == torch.int64
            and labels.shape == (len(values),)
            and bool(values.isfinite().all())
            and bool(((labels >= 0) & (labels < classes)).all())
        )
        if not valid:
            raise ClientError(
                f"{who} uploaded {tuple(values.shape)} values and {tuple(labels.shape)} labels; "
                f"expected finite rows of {dimension} float32 values and int64 labels below "
                f"{classes}."
            )
        return values, labels


def local_statement(plan: LocalPlan, noise: str) -> dict[str, Any]:
    """Returns the entries of privacy.json that follow from the plan and the noise key's kind."""
    image, label = plan.image_mechanism, plan.label_mechanism
    return {
        "model": "ldp",
        "epsilon": plan.total_epsilon,
        "delta": plan.delta,
        "unit": "record",
        "adjacency": "replace-one",
        "mechanism": plan.mechanism + (" + randomized response on the label" if label else ""),
        "accountant": "summation of image and label (basic composition)",
        "epsilon_image": image.epsilon,
        "epsilon_label": None if label is None else label.epsilon,
        "map": plan.map.to_dict(),
        "sensitivity": plan.map.sensitivity,
        "sensitivity_norm": plan.map.norm,
        "sigma": image.scale,
        "rounds": 1,
        "rounds_per_record": 1,
        **noise_entries(noise),
        "protected": (
            "Every single record, before it leaves its client, against everybody, the server "
            "included: whatever is computed from the uploads later, for however long, costs "
            "nothing more. The guarantee holds between any two values of the record."
        ),
        "not_protected": (
            "That a client takes part and how many records it holds; a person with several "
            "records (their ε add up); records that are strongly correlated with one another."
        ),
    }


def local_plan(
    recipe: Mapping[str, Any],
    *,
    mechanism: Mapping[str, Any],
    chosen_map: Mapping[str, Any],
    shape: tuple[int, ...],
    classes: int,
    eps: float | None,
    sigma: float | None,
    delta: float,
) -> tuple[LocalPlan, float]:
    """Returns the plan for a total ε, and the recipe's finite-batch factor at that ε.

    `recipe.by_eps` lists, for a few totals, the label's part ε_l, the size k of the map's
    coefficient block, and the finite-batch factor. Between them the values are interpolated
    linearly (k rounded down), outside they stay; ε_l is at most half of ε, and k at most the
    shorter side of a picture. A value that the configuration states (`mechanism.label_eps`,
    `map.block`) replaces that of the table.

    One class means that clients send no labels. Without `eps` (total ε) and `sigma` (scale of the
    image noise, from which ε follows) the total is the recipe's.
    """
    name = str(mechanism["name"])
    local = local_mechanism(name)
    if eps is None and sigma is None:
        eps = float(recipe["eps"])
    if eps is not None:
        checks.positive("eps", eps)
    if delta and not local.needs_delta:
        others = [other for other in LOCAL_MECHANISMS if local_mechanism(other).needs_delta]
        raise ConfigError(
            f"mechanism={name} gives pure ε and has no δ, but delta={delta!r}: leave delta out, "
            f"or choose mechanism={' or '.join(others)}."
        )
    at, table = float(recipe["eps"] if eps is None else eps), recipe["by_eps"]

    def interpolated(value: str) -> float:
        return float(np.interp(at, table["eps"], table[value]))

    options: dict[str, Any] = {"size": shape[0]} if len(shape) == 1 else {"shape": list(shape)}
    options |= chosen_map
    if "block" in table and options.get("name") == recipe["map"]["name"]:
        block = int(interpolated("block"))
        options.setdefault("block", min(block, *shape[1:]) if len(shape) == 3 else block)
    f = map_from_dict(options)
    label_eps = None
    if classes > 1:
        label_eps = mechanism["label_eps"]
        if label_eps is None:
            label_eps = min(interpolated("label_eps"), at / 2)
    of_label = float(label_eps or 0.0)
    if sigma is None:
        image_eps = at - of_label
        if image_eps <= 0:
            raise ConfigError(
                f"mechanism.label_eps={of_label:g} leaves nothing of eps={at:g} for the image: "
                "lower it or raise eps."
            )
    else:
        image_eps = local.from_scale(f.sensitivity, sigma, delta).epsilon
        if eps is not None and not 0.99 * eps <= image_eps + of_label <= 1.001 * eps:
            raise ConfigError(
                f"sigma={sigma:g} costs ε = {image_eps:.4g} for the image and the label "
                f"{of_label:g} more, not eps={eps:g} in all: leave eps or sigma out."
            )
    plan = LocalPlan(
        mechanism=name,
        map=f,
        epsilon=image_eps,
        delta=float(delta) if local.needs_delta else 0.0,
        label_epsilon=label_eps,
        classes=classes,
    )
    return plan, interpolated("finite_batch_factor")
