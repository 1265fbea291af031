"""Everything random of a round, either keyed as in every engine or drawn by the device."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.models import Generator
from fedsink.privacy import PoissonSampler, ReproducibleKey, Stream
from fedsink.simulation.fused.layout import Layout
from fedsink.simulation.fused.records import Records
from fedsink.simulation.fused.table import Table


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


@dataclass(frozen=True)
class Source:
    """What draws are made for.

    Attributes:
        layout: of a round.
        records: whose samples are drawn.
        generator: whose latents are drawn.
        rate: q.
        capacity: B.
        dimension: D.
        key: of the clients' draws, not secret.
        server_key: of the latents.
    """

    layout: Layout
    records: Records
    generator: Generator
    rate: float
    capacity: int
    dimension: int
    key: ReproducibleKey
    server_key: bytes

    @property
    def device(self) -> torch.device:
        """Where the records are."""
        return self.records.labels.device


class Draws(ABC):
    """Random numbers of consecutive rounds.

    Attributes:
        generators: CUDA generators that `draw` takes from.
    """

    generators: tuple[torch.Generator, ...] = ()

    @abstractmethod
    def prepare(self, first: int, count: int) -> None:
        """Make ready for the rounds first, …, first + count − 1 (on the host)."""

    @abstractmethod
    def draw(self, at: Tensor, labels: Tensor) -> Draw:
        """Those of round first + at, with at (1,) on the device; may be recorded.

        Args:
            at: which of the rounds.
            labels: which class each client is asked about, (K,).
        """


class KeyedDraws(Draws):
    """The draws of every other engine: the same bits for the same seed.

    Args:
        source: what they are for.
        ahead: rounds that are drawn at once.
    """

    def __init__(self, source: Source, ahead: int) -> None:
        self._source = source
        layout, places = source.layout, (source.layout.clients, source.capacity)
        rows, device = (layout.rows, source.generator.latent_dim), source.device
        noise = (layout.clients, layout.block_rows, source.dimension)
        self._latents = Table(ahead, rows, torch.float32, device)
        self._chosen = Table(ahead, places, torch.int64, device)
        self._present = Table(ahead, places, torch.bool, device)
        self._noise = Table(ahead, noise, torch.float64, device)
        self._overflows = Table(ahead, (), torch.int64, device)

    def prepare(self, first: int, count: int) -> None:
        """Draw all of them."""
        for place in range(count):
            self._draw(place, first + place)
        for table in (self._latents, self._chosen, self._present, self._noise, self._overflows):
            table.send()

    def _draw(self, place: int, round: int) -> None:
        source, layout = self._source, self._source.layout
        stream = Stream(source.server_key, "train", round)
        self._latents.host[place] = source.generator.latent(layout.rows, stream).cpu()
        overflows = 0
        for client, label in enumerate(layout.client_labels(round).tolist()):
            chosen, present, more = self._sample(client, label, round)
            self._chosen.host[place, client] = chosen
            self._present.host[place, client] = present
            overflows += more
            noise = source.key.stream("noise", client=client, round=round)
            self._noise.host[place, client] = noise.normal(layout.block_rows, source.dimension)
        self._overflows.host[place] = overflows

    def _sample(self, client: int, label: int, round: int) -> tuple[Tensor, Tensor, bool]:
        """`PaddedBatch.draw`'s sample, and whether it was larger than the capacity."""
        source = self._source
        size = int(source.records.sizes[client, label])
        start = int(source.records.starts[client, label])
        stream = source.key.stream("sample", client=client, round=round)
        # One place more, whose record is dropped, tells an overflow.
        places, present = PoissonSampler(source.rate).draw_at_most(
            size, source.capacity + 1, stream
        )
        chosen = torch.where(present, start + places, 0)[:-1]
        return chosen, present[:-1], bool(present[-1])

    def draw(self, at: Tensor, labels: Tensor) -> Draw:
        """Look them up."""
        return Draw(
            self._latents.at(at),
            self._chosen.at(at),
            self._present.at(at),
            self._noise.at(at),
            self._overflows.at(at),
        )


class DeviceDraws(Draws):
    """The same laws, drawn where they are used from a generator seeded by (seed, first round).

    A Poisson sample is drawn by its gaps, which are geometric: B + 1 numbers, however many
    records there are. It begins at a random record, so that whom an overflow leaves out is no
    particular one.

    Args:
        source: what they are for.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._random = torch.Generator(source.device)
        self.generators = (self._random,) if source.device.type == "cuda" else ()
        self._starts = source.records.starts.to(source.device)
        self._sizes = source.records.sizes.to(source.device)
        # ln(1 − q): −∞ at q = 1, where every gap is 1.
        self._log_skip = math.log1p(-source.rate) if source.rate < 1.0 else -math.inf

    def prepare(self, first: int, count: int) -> None:
        """Seed the generator."""
        stream = self._source.key.stream("device", client=0, round=first)
        self._random.manual_seed(int(stream.uniform(1) * 2.0**52))

    def draw(self, at: Tensor, labels: Tensor) -> Draw:
        """Draw them."""
        source, layout = self._source, self._source.layout
        chosen, present, overflows = self._sample(labels)
        noise = self._normal(layout.clients, layout.block_rows, source.dimension)
        return Draw(self._latents(), chosen, present, noise, overflows)

    def _sample(self, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        clients, capacity = self._source.layout.clients, self._source.capacity
        size = self._sizes.gather(1, labels.unsqueeze(-1))
        start = self._starts.gather(1, labels.unsqueeze(-1))
        gaps = (self._uniform(clients, capacity + 1).log() / self._log_skip).floor() + 1.0
        places = gaps.cumsum(-1) - 1.0
        present = places < size
        turn = (self._uniform(clients, 1) * size).floor()
        within = torch.remainder(torch.where(present, places, 0.0) + turn, size.clamp(min=1))
        chosen = torch.where(present, start + within.to(torch.int64), 0)
        return chosen[:, :-1], present[:, :-1], present[:, -1].sum()

    def _latents(self) -> Tensor:
        generator = self._source.generator
        shape = (self._source.layout.rows, generator.latent_dim)
        if generator.latent_law == "normal":
            return self._normal(*shape).to(torch.float32)
        unit = self._uniform(*shape)
        return (unit if generator.latent_law == "unit" else 2.0 * unit - 1.0).to(torch.float32)

    def _uniform(self, *shape: int) -> Tensor:
        """Values in (0, 1]."""
        device = self._source.device
        return 1.0 - torch.rand(shape, generator=self._random, dtype=torch.float64, device=device)

    def _normal(self, *shape: int) -> Tensor:
        device = self._source.device
        return torch.randn(shape, generator=self._random, dtype=torch.float64, device=device)
