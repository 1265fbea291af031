"""One round of the central mode: generate, clients' gradients, noise, backpropagate, average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from fedsink.clients.shard import Shard
from fedsink.data.views import View, view_from_dict
from fedsink.errors import ConfigError
from fedsink.models import Generator
from fedsink.privacy import RecordClip, ReproducibleKey
from fedsink.privacy.mechanisms.clipping import sampled_clip
from fedsink.simulation.fused.capture import Captured
from fedsink.simulation.fused.compiled import Compiled
from fedsink.simulation.fused.draws import DeviceDraws, Draw, Draws, KeyedDraws
from fedsink.simulation.fused.records import Records
from fedsink.simulation.fused.timetable import Entry, Timetable
from fedsink.simulation.fused.trainer import StaticTrainer
from fedsink.strategies.dp_sinkhorn.rows import Rows
from fedsink.strategies.dp_sinkhorn.settings import DPSinkhornSettings
from fedsink.strategies.self_term import SelfParts, self_term, with_labels
from fedsink.transport import (
    FixedSolver,
    batch_gradients,
    clipped_sums,
    summed_at_once,
)

DrawsName = Literal["keyed", "device"]


class FusedStep:
    """DP-Sinkhorn's rounds for all clients of one process, on fixed shapes.

    Every sample has the plan's capacity of places: what a larger one costs is in the plan's δ
    (`clip=record`) or nothing (`clip=batch`), see `fedsink.privacy.capacity_for`. On a GPU a round
    is one CUDA graph.

    Args:
        settings: of the run; the plan has a capacity, and one use per message.
        generator: trained in place; it decides on the device.
        shards: every client's records.
        seed: keys samples and noise. It is not secret: for simulations alone.
        server_key: keys the latents.
        draws: "keyed" draws what every other engine draws, on the host; "device" draws the same
            laws on the device.
        capture: "auto" records on a GPU; False never does.
        ahead: rounds that are prepared at once. With draws="device" a run that continues after a
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
        draws: DrawsName = "keyed",
        capture: Literal["auto", False] = "auto",
        ahead: int = 32,
    ) -> None:
        self.settings, self.generator, self.round = settings, generator, 0
        plan, self._view = settings.plan, view_from_dict(settings.view)
        _check(settings, self._view)
        if draws not in ("keyed", "device"):
            raise ConfigError(f"engine.draws is keyed or device, not {draws!r}.")
        if ahead < 1:
            raise ConfigError(f"engine.ahead must be at least 1, not {ahead}.")
        device = next(generator.parameters()).device
        self.trainer = StaticTrainer(generator, settings.optimizer, plan.rounds)
        self._clip, layout = sampled_clip(plan.clip), settings.layout
        self._records = Records(shards, settings, device)
        self._rows = Rows(generator, self._view, layout, server_key)
        self._self_term = self_term(
            settings.self_term, settings.objective, self._clip, layout,
            torch.zeros(0, self._view.dimension, device=device), widest=self._view.diagonal_bound,
        )  # fmt: skip
        diameter = settings.objective.diameter(self._view.norm_bound, labels=layout.mixed)
        # ‖v‖₁ ≤ √D‖v‖₂
        absolute = math.sqrt(self._records.coordinates.shape[1]) * diameter
        self._solver = FixedSolver(diameter**2 + settings.objective.m * absolute, diameter)
        kind = KeyedDraws if draws == "keyed" else DeviceDraws
        self._draws: Draws = kind(settings, self._records, self._rows, ReproducibleKey(seed), ahead)
        self._timetable = Timetable(layout, self.trainer, ahead, device)
        self._ahead, self._ready = ahead, 0
        self._at = torch.zeros(1, dtype=torch.int64, device=device)
        sharers = [settings.sharers(client) for client in range(settings.clients)]
        self._shares = 1.0 / torch.tensor(sharers, dtype=torch.float64, device=device)
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
            self._self_term.fill(self._rows.untrained)
        if self.round >= self._ready:
            self._prepare()
        self._once()
        self.round += 1
        if self.trainer.ema:
            self.trainer.ema.updates += 1

    def metrics(self) -> dict[str, float]:
        """Loss and signal-to-noise of the last round, as `DPSinkhorn` reports them."""
        loss, signal = self._energy.tolist()
        return {"loss": loss**0.5} | self.settings.signal_to_noise(signal)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights, moments, average and history, named as `DPSinkhorn` names them."""
        tensors, values = self.trainer.state()
        return tensors | self._self_term.state(), values

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any], round: int) -> None:
        """Continue after a round from what `state` returned."""
        self.trainer.load_state(tensors, values)
        self._self_term.load_state(tensors)
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
        drawn = self._draws.draw(self._at)
        points = self._rows(drawn.latents, now.row_labels.flatten())
        with torch.no_grad():
            rows = points.detach().unflatten(0, now.row_labels.shape)
            gradient, energy = self._answer(rows, now, drawn)
            self._self_term.remember(rows[:, : self.settings.layout.group_rows], now.kinds)
            self._energy.copy_(energy)
            self.overflows.add_(drawn.overflows)
        self.trainer.apply(points, gradient, now.rate, now.weight)
        self._at.add_(1)

    def _answered(self, rows: Tensor, now: Entry, drawn: Draw) -> tuple[Tensor, Tensor]:
        """The gradient at every row, (R, D) float64; its energy and that of the clients' part."""
        layout, settings = self.settings.layout, self.settings
        parts = self._self_term(rows, now.kinds, now.row_labels)
        means = layout.means(self._release(rows, parts, now, drawn), now.positions)
        gradient = layout.gradient(means, parts.outside, settings.gradient_scale)
        return gradient, torch.stack((gradient.square().sum(), means.square().sum()))

    def _release(self, rows: Tensor, parts: SelfParts, now: Entry, drawn: Draw) -> Tensor:
        """Every client's clipped and noised gradient, (K, n, D) float32."""
        totals = self._totals(rows, parts, now, drawn)
        return self.settings.plan.release_drawn(totals, drawn.noise, self._shares)

    def _totals(self, rows: Tensor, parts: SelfParts, now: Entry, drawn: Draw) -> Tensor:
        """Every client's clipped sum, (K, n, D)."""
        layout, objective, clip = self.settings.layout, self.settings.objective, self._clip

        def asked(values: Tensor) -> Tensor:
            return layout.in_blocks(values).index_select(0, now.positions)

        x, row_labels = asked(rows), asked(now.row_labels)
        batch, lam = self._records.batch(drawn.chosen, drawn.present), objective.lam
        y, present = batch.records, batch.present
        if isinstance(clip, RecordClip):
            mask, radius = batch.meets(row_labels), self._view.norm_bound
            f = asked(parts.potentials)
            return clipped_sums(x, y, f, lam, clip.bound, mask=mask, radius=radius, unseen=True)
        x, own = with_labels(x, row_labels, objective, layout), asked(parts.inside)
        cost = objective.bounded_cost
        return clip.apply_each(batch_gradients(x, y, own, present, cost, lam, self._solver))


def _check(settings: DPSinkhornSettings, view: View) -> None:
    """Refuse settings that cannot be fused."""
    objective, clip, capacity = settings.objective, settings.plan.clip, settings.plan.capacity
    uses = settings.uses_per_message
    record, kind = isinstance(clip, RecordClip), settings.self_term.kind
    published = kind == "semi_debiased" and objective.solver == "annealed"
    if capacity is None:
        why = "computes samples in a fixed number of places: set capacity=auto, or a number."
    elif uses != 1:
        why = f"takes a step in every round: strategy.uses_per_message is 1, not {uses}."
    elif objective.cost != "mixed":
        why = f"has no transport for strategy.cost={objective.cost}: use engine=local."
    elif not (kind == "history" if record else published):
        why = (
            "runs clip=record with strategy.self_term=history, or clip=batch with "
            "strategy.self_term=semi_debiased and strategy.solver=annealed: choose one of them, or "
            "engine=local."
        )
    elif record and not summed_at_once(
        capacity, view.dimension, objective.lam, clip.bound, view.norm_bound
    ):
        why = (
            f"could round past a record's bound with λ = {objective.lam:g}, Δ = {clip.bound:g} and "
            f"records of norm up to {view.norm_bound:g}: use engine=local, which sums record by "
            "record."
        )
    elif not record and len(view.shape) == 1:
        why = "with clip=batch needs images, of bounded distances: use engine=local for points."
    else:
        return
    raise ConfigError(f"engine=fused {why}")
