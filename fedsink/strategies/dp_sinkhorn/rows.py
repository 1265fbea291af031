"""Generated rows of a round, the same ones under every engine."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsink.data.views import View
from fedsink.models import Generator
from fedsink.privacy import Stream
from fedsink.strategies.dp_sinkhorn.layout import Layout


class Rows:
    """Makes rows of groups from latents that the server's key decides on.

    Args:
        generator: makes them.
        view: their coordinates.
        layout: of a round.
        key: keys the latents (not secret).

    Attributes:
        latent_dim, latent_law: how many latents a row has, and what law they follow.
    """

    def __init__(self, generator: Generator, view: View, layout: Layout, key: bytes) -> None:
        self._generator, self._view, self._layout, self._key = generator, view, layout, key
        self.latent_dim, self.latent_law = generator.latent_dim, generator.latent_law

    def __call__(self, z: Tensor, labels: Tensor) -> Tensor:
        """Rows of these latents and labels, (R, D), with their graph."""
        points: Tensor = self._view(self._generator(z, labels))
        return points

    def latents(self, purpose: str, number: int, kinds: Tensor) -> tuple[Tensor, Tensor]:
        """Latents, (R, latent_dim), and labels, (R,), of fresh groups of these kinds."""
        labels = self._layout.row_labels(kinds).flatten()
        return self._generator.latent(len(labels), Stream(self._key, purpose, number)), labels

    @torch.no_grad()
    def untrained(self, kinds: Tensor, number: int) -> Tensor:
        """Rows before the first round, of groups of these kinds, (G, n + n′, D)."""
        return self(*self.latents("history", number, kinds)).unflatten(0, (len(kinds), -1))
