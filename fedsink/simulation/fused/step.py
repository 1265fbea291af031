"""One round of the central mode: generate, clients' gradients, noise, backpropagate, average."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedsink.clients.shard import Shard
from fedsink.data.views import View, view_from_dict
from fedsink.errors import ConfigError
from fedsink.models import Generator
from fedsink.privacy import RecordClip, ReproducibleKey, Stream
from fedsink.simulation.fused.capture import Captured
from fedsink.simulation.fused.clients import batch_totals, record_totals, refuse_wide
from fedsink.simulation.fused.compiled import Compiled
from fedsink.simulation.fused.draws import DeviceDraws, Draw, Draws, KeyedDraws, Source
from fedsink.simulation.fused.layout import Layout
from fedsink.simulation.fused.records import Records, appended
from fedsink.simulation.fused.self_part import SelfParts, self_term
from fedsink.simulation.fused.timetable import Entry, Timetable
from fedsink.simulation.fused.trainer import StaticTrainer
from fedsink.strategies.dp_sinkhorn.settings import DPSinkhornSettings


class FusedStep:
    """DP-Sinkhorn's rounds for all clients of one process, on fixed shapes.

    Every sample has the plan's capacity of places: what a larger one costs is in the plan's δ
    (`clip=record`) or nothing (`clip=batch`), see `fedsink.privacy.capacity`. On a GPU a round is
    one CUDA graph.

    Args:
        settings: of the run; the plan has a capacity, and one use per message.
        generator: trained in place; it decides on the device.
        shards: every client's records.
        seed: keys samples and noise. It is not secret: for simulations alone.
        server_key: keys the latents.
        draws: "keyed" draws what every other engine draws, on the host; "device" draws the same
            laws on the device.
        capture: "auto" records on a GPU; False never does.
        ahead: rounds that are prepared at once. With draws="device" a run that goes on after a
            multiple of it equals one that never stopped.

    Attributes:
        round: rounds done.
        overflows: samples that were larger than the capacity, on the device. Nothing but a
            simulation can know.

    Raises:
        ConfigError: the settings are none that can be fused.
        DataError: there are no records, or more at a client than the plan accounts for.
    """

    def __init__(
        self,
        settings: DPSinkhornSettings,
        generator: Generator,
        shards: Sequence[Shard],
        *,
        seed: int,
        server_key: bytes,
        draws: Literal["keyed", "device"] = "keyed",
        capture: Literal["auto", False] = "auto",
        ahead: int = 32,
    ) -> None:
        self.settings, self.generator, self.round = settings, generator, 0
        plan, self._view = settings.plan, view_from_dict(settings.view)
        capacity = _checked(settings, self._view)
        if draws not in ("keyed", "device"):
            raise ConfigError(f"engine.draws is keyed or device, not {draws!r}.")
        if ahead < 1:
            raise ConfigError(f"engine.ahead must be at least 1, not {ahead}.")
        device = next(generator.parameters()).device
        self.trainer = StaticTrainer(generator, settings.optimizer, plan.rounds)
        self._layout = layout = Layout.of(settings)
        self._records = Records(shards, settings, layout, device)
        if isinstance(plan.clip, RecordClip):
            places = max(capacity, settings.self_term.history * layout.group_rows)
            refuse_wide(
                plan.clip, settings.objective.lam, self._view.norm_bound, places,
                self._view.dimension,
            )  # fmt: skip
        like = torch.zeros(0, self._view.dimension, device=device)
        self._self_term = self_term(settings, layout, like, _widest(self._view))
        self._server_key = server_key
        source = Source(
            layout, self._records, generator, plan.rate, capacity, self._view.dimension,
            ReproducibleKey(seed), server_key,
        )  # fmt: skip
        self._draws: Draws
        self._draws = KeyedDraws(source, ahead) if draws == "keyed" else DeviceDraws(source)
        self._timetable = Timetable(layout, self.trainer, ahead, device)
        self._ahead, self._ready = ahead, 0
        self._at = torch.zeros(1, dtype=torch.int64, device=device)
        stds = [settings.noise_std(client) for client in range(settings.clients)]
        self._noise_std = torch.tensor(stds, dtype=torch.float64, device=device).reshape(-1, 1, 1)
        self._energy = torch.zeros(2, dtype=torch.float64, device=device)
        self.overflows = torch.zeros((), dtype=torch.int64, device=device)
        self._answer = Compiled(self._answered, device)
        recorded = capture == "auto" and device.type == "cuda"
        self._once = Captured(self._compute, self._draws.generators, enabled=recorded)

    def step(self) -> None:
        """Play the next round; on a GPU this returns before it is over.

        Raises:
            ConfigError: all rounds of the plan are done.
        """
        plan = self.settings.plan
        if self.round >= plan.rounds:
            raise ConfigError(f"The plan has {plan.rounds} rounds, and all of them are done.")
        if self.round == 0:
            self._fill_history()
        if self.round >= self._ready:
            self._prepare()
        self._once()
        self.round += 1
        if self.trainer.ema:
            self.trainer.ema.updates += 1

    def metrics(self) -> dict[str, float]:
        """Loss and signal-to-noise of the last round, as `DPSinkhorn` reports them."""
        layout, plan = self._layout, self.settings.plan
        loss, signal = self._energy.tolist()
        if plan.noise_std == 0.0:
            return {"loss": loss**0.5}
        rows = layout.blocks * layout.block_rows
        variance = self.settings.mean_noise_variance
        noise = rows * self._view.dimension * variance * layout.blocks / layout.clients
        return {"loss": loss**0.5, "signal_to_noise": max(0.0, signal / noise - 1.0) ** 0.5}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights, moments, average and history, named as `DPSinkhorn` names them."""
        tensors, values = self.trainer.state()
        return tensors | {f"history.{k}": v for k, v in self._self_term.state().items()}, values

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any], round: int) -> None:
        """Go on after a round from what `state` returned."""
        self.trainer.load_state(tensors, values)
        prefix = "history."
        self._self_term.load_state(
            {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
        )
        self.round = self._ready = round
        self._once.forget()

    def _prepare(self) -> None:
        """Make ready for the rounds up to the next multiple of `ahead`."""
        behind = min((self.round // self._ahead + 1) * self._ahead, self.settings.plan.rounds)
        for part in (self._timetable, self._draws):
            part.prepare(self.round + 1, behind - self.round)
        self._at.zero_()
        self._ready = behind

    def _compute(self) -> None:
        """One round from values in fixed places to values in fixed places."""
        now = self._timetable.at(self._at)
        drawn = self._draws.draw(self._at, now.client_labels)
        points = self._view(self.generator(drawn.latents, now.row_labels))
        with torch.no_grad():
            rows = points.detach()
            gradient, energy = self._answer(rows, now, drawn)
            self._self_term.remember(rows, now.group_labels)
            self._energy.copy_(energy)
            self.overflows.add_(drawn.overflows)
        self.trainer.apply(points, gradient, now.rate, now.weight)
        self._at.add_(1)

    def _answered(self, rows: Tensor, now: Entry, drawn: Draw) -> tuple[Tensor, Tensor]:
        """The gradient at every row, (R, D) float64; its energy and that of the clients' part."""
        parts = self._self_term(rows, now.row_labels, now.group_labels)
        means = self._means(self._release(rows, parts, now, drawn), now.positions)
        gradient = self._gradient(means, parts)
        return gradient, torch.stack((gradient.square().sum(), means.square().sum()))

    def _release(self, rows: Tensor, parts: SelfParts, now: Entry, drawn: Draw) -> Tensor:
        """Every client's clipped and noised gradient, (K, n, D) float32."""
        layout, objective, plan = self._layout, self.settings.objective, self.settings.plan
        x = appended(rows, now.row_labels, layout, objective.label_weight)
        x = self._asked(x.unflatten(0, (layout.groups, -1))[:, : layout.group_rows], now)
        y = self._records.coordinates[drawn.chosen]
        if isinstance(plan.clip, RecordClip):
            mask = drawn.present.unsqueeze(1).expand(-1, layout.block_rows, -1)
            if not layout.by_class:  # a record meets the rows of its own class alone
                mask = mask & (
                    now.row_labels[:, None] == self._records.labels[drawn.chosen].unsqueeze(1)
                )
            f = self._asked(parts.potentials.unsqueeze(-1), now).squeeze(-1)
            totals = record_totals(x, y, f, mask, objective.lam, plan.clip.bound)
        else:
            own, radius = self._asked(parts.inside, now), self._view.norm_bound
            totals = batch_totals(x, y, own, drawn.present, objective, plan.clip, radius)
        # As `Stream.add_gaussian` does it.
        return (totals.to(torch.float64) + self._noise_std * drawn.noise).to(torch.float32)

    def _asked(self, values: Tensor, now: Entry) -> Tensor:
        """The rows that each client is asked about, (K, n, ·), of values (G, n′, ·)."""
        blocks = values.reshape(self._layout.blocks, self._layout.block_rows, -1)
        return blocks.index_select(0, now.positions)

    def _means(self, releases: Tensor, positions: Tensor) -> Tensor:
        """The mean over the clients of each block, (P, n, D) float64."""
        blocks = torch.arange(self._layout.blocks, device=positions.device)
        shares = (positions == blocks.unsqueeze(-1)).to(torch.float64)
        shares /= shares.sum(-1, keepdim=True)
        means = shares @ releases.to(torch.float64).flatten(1)
        return means.unflatten(-1, releases.shape[1:])

    def _gradient(self, means: Tensor, parts: SelfParts) -> Tensor:
        """means/scale plus the self term, for every row, (R, D) float64."""
        layout = self._layout
        record = isinstance(self.settings.plan.clip, RecordClip)
        scale = self.settings.nominal_batch if record else 1.0
        shared = means.reshape(layout.groups, layout.group_rows, -1) / scale
        return (pad(shared, (0, 0, 0, layout.extra)) + parts.outside).flatten(0, 1)

    def _fill_history(self) -> None:
        """Before the first round, history is what the untrained generator makes."""
        if not isinstance(self.settings.plan.clip, RecordClip):
            return
        device = self._at.device
        classes = torch.arange(self._layout.classes, device=device)
        labels = classes.repeat_interleave(self._layout.group_rows)
        for number in range(self.settings.self_term.history):
            stream = Stream(self._server_key, "history", number)
            z = self.generator.latent(len(labels), stream)
            with torch.no_grad():
                self._self_term.remember(self._view(self.generator(z, labels)), classes)


def _checked(settings: DPSinkhornSettings, view: View) -> int:
    """The plan's capacity, if these settings can be fused."""
    capacity = settings.plan.capacity
    if capacity is None:
        raise ConfigError(
            "engine=fused computes samples in a fixed number of places: set capacity=auto, or a "
            "number."
        )
    if settings.uses_per_message != 1:
        raise ConfigError(
            "engine=fused takes a step in every round: strategy.uses_per_message is 1, not "
            f"{settings.uses_per_message}."
        )
    if settings.objective.cost != "mixed":
        raise ConfigError(
            f"engine=fused has no transport for strategy.cost={settings.objective.cost}: use "
            "engine=local."
        )
    if not isinstance(settings.plan.clip, RecordClip) and len(view.shape) == 1:
        raise ConfigError(
            "engine=fused with clip=batch needs images, whose distances are bounded: use "
            "engine=local for points."
        )
    return capacity


def _widest(view: View) -> float:
    """A bound on the diagonal of a box that holds images in this view."""
    widest = 2.0 * view.norm_bound
    return widest if view.name == "pixel" else widest * view.dimension**0.5
