"""Everything random of a round, either keyed as in every engine or drawn by the device."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsink.data.views import view_from_dict
from fedsink.privacy import PoissonSampler, ReproducibleKey
from fedsink.simulation.fused.records import Records
from fedsink.simulation.fused.table import Table
from fedsink.strategies.dp_sinkhorn.rows import Rows
from fedsink.strategies.dp_sinkhorn.settings import DPSinkhornSettings


@dataclass(frozen=True)
class Draw:
    """The random numbers of one round, on the device.

    Attributes:
        latents: z, (R, latent_dim).
        chosen: indices of the sampled records, (K, B).
        present: which places hold one, (K, B) bool.
        noise: standard normals, (K, n, D) float64.
        overflows: how many clients sampled more than B, ().
    """

    latents: Tensor
    chosen: Tensor
    present: Tensor
    noise: Tensor
    overflows: Tensor


class Draws(ABC):
    """Random numbers of consecutive rounds.

    Args:
        settings: of the run; its plan has a capacity.
        records: whose samples are drawn.
        rows: whose latents are drawn.
        key: of the clients' draws, not secret.
        ahead: rounds that are prepared at once.

    Attributes:
        generators: CUDA generators that `draw` takes from.
    """

    generators: tuple[torch.Generator, ...] = ()

    def __init__(
        self,
        settings: DPSinkhornSettings,
        records: Records,
        rows: Rows,
        key: ReproducibleKey,
        ahead: int,
    ) -> None:
        self._layout, self._records, self._rows, self._key = settings.layout, records, rows, key
        self._device, self._rate = records.labels.device, settings.plan.rate
        # One place more, whose record is dropped, tells an overflow.
        self._places = (settings.plan.capacity or 0) + 1
        dimension = view_from_dict(settings.view).dimension
        self._noise_shape = self._layout.clients, self._layout.block_rows, dimension
        self._table = Table(ahead, self._columns(), self._device)

    @abstractmethod
    def _columns(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """What is drawn ahead."""

    def prepare(self, first: int, count: int) -> None:
        """Make ready for the rounds first, …, first + count − 1 (on the host)."""
        for place in range(count):
            self._table.write(place, *self._prepared(first + place))
        self._table.send()

    @abstractmethod
    def _prepared(self, round: int) -> tuple[Tensor, ...]:
        """The columns' values of a round."""

    @abstractmethod
    def draw(self, at: Tensor) -> Draw:
        """Those of round first + at, with at (1,) on the device; may be recorded."""


class KeyedDraws(Draws):
    """The draws of every other engine: the same bits for the same seed."""

    def _columns(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        places = self._layout.clients, self._places - 1
        return [
            ((self._layout.rows, self._rows.latent_dim), torch.float32),
            (places, torch.int64),
            (places, torch.bool),
            (self._noise_shape, torch.float64),
            ((), torch.int64),
        ]

    def _prepared(self, round: int) -> tuple[Tensor, ...]:
        layout, streams = self._layout, self._key.stream
        latents, _ = self._rows.latents("train", round, layout.group_labels(round))
        clients = range(layout.clients)
        samples = [streams("sample", client=client, round=round) for client in clients]
        drawn = self._records.pool.draw_places(
            PoissonSampler(self._rate), self._places, layout.asked(round), slice(None), samples
        )
        noises = [streams("noise", client=client, round=round) for client in clients]
        noise = torch.stack([stream.normal(*self._noise_shape[1:]) for stream in noises])
        chosen, present = self._records.places[drawn.chosen], drawn.present
        return latents, chosen[:, :-1], present[:, :-1], noise, present[:, -1].sum()

    def draw(self, at: Tensor) -> Draw:
        """Look them up."""
        return Draw(*self._table.at(at))


class DeviceDraws(Draws):
    """The same laws, drawn where they are used from a generator seeded by (seed, first round).

    A Poisson sample is drawn by its gaps, which are geometric: B + 1 numbers, however many
    records there are. It begins at a random record, so that whom an overflow leaves out is no
    particular one.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._random = torch.Generator(self._device)
        self.generators = (self._random,) if self._device.type == "cuda" else ()
        # ln(1 − q): −∞ at q = 1, where every gap is 1.
        self._log_skip = math.log1p(-self._rate) if self._rate < 1.0 else -math.inf

    def _columns(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        return [((self._layout.clients, 1), torch.int64)] * 2

    def _prepared(self, round: int) -> tuple[Tensor, ...]:
        """Where each client's records of the round's class begin, and how many there are."""
        _, starts, sizes = self._records.pool.runs(self._layout.asked(round), slice(None))
        return starts.unsqueeze(-1), sizes.unsqueeze(-1)

    def prepare(self, first: int, count: int) -> None:
        """Seed the generator as well."""
        super().prepare(first, count)
        stream = self._key.stream("device", client=0, round=first)
        self._random.manual_seed(int(stream.uniform(1) * 2.0**52))

    def draw(self, at: Tensor) -> Draw:
        """Draw them."""
        chosen, present, overflows = self._sample(*self._table.at(at))
        return Draw(self._latents(), chosen, present, self._normal(*self._noise_shape), overflows)

    def _sample(self, start: Tensor, size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gaps = (self._uniform(len(size), self._places).log() / self._log_skip).floor() + 1.0
        places = gaps.cumsum(-1) - 1.0
        present = places < size
        turn = (self._uniform(len(size), 1) * size).floor()
        within = torch.remainder(torch.where(present, places, 0.0) + turn, size.clamp(min=1))
        chosen = torch.where(present, start + within.to(torch.int64), 0)
        return chosen[:, :-1], present[:, :-1], present[:, -1].sum()

    def _latents(self) -> Tensor:
        shape, law = (self._layout.rows, self._rows.latent_dim), self._rows.latent_law
        if law == "normal":
            return self._normal(*shape).to(torch.float32)
        unit = self._uniform(*shape)
        return (unit if law == "unit" else 2.0 * unit - 1.0).to(torch.float32)

    def _uniform(self, *shape: int) -> Tensor:
        """Values in (0, 1]."""
        device = self._device
        return 1.0 - torch.rand(shape, generator=self._random, dtype=torch.float64, device=device)

    def _normal(self, *shape: int) -> Tensor:
        device = self._device
        return torch.randn(shape, generator=self._random, dtype=torch.float64, device=device)
