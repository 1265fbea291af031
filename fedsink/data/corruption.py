"""A defect in the records of some simulated clients, which a generator is to bring to light."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedsink.errors import ConfigError
from fedsink.values import checks, strictly

_KINDS = ("invert",)


@dataclass(frozen=True)
class Corruption:
    """Alters every picture of some simulated clients, and none of the others.

    Attributes:
        kind: "invert": x ← 1 − x, as where a device stores ink as white.
        share: of the K clients, in [0, 1]: round(share·K) of them, drawn by `seed`.
        seed: public seed of that draw.
        clients: numbers of the altered clients; replaces `share`.

    Raises:
        ConfigError: an unknown kind, a share outside [0, 1], a repeated or negative number, or not
            exactly one of `share` and `clients`.
    """

    kind: str
    share: float | None = None
    seed: int = 0
    clients: tuple[int, ...] | None = None

    @classmethod
    def from_config(cls, values: object) -> Corruption | None:
        """Returns the defect that `data.corrupt` states; None for null.

        Raises:
            ConfigError: as for the class, or `values` is no table of these keys.
        """
        if values is None:
            return None
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"data.corrupt is null or such as {{kind: invert, share: 0.5}}, not {values!r}."
            )
        return strictly(cls, values, "data.corrupt")

    def __post_init__(self) -> None:
        checks.choice("data.corrupt.kind", self.kind, *_KINDS)
        checks.count("data.corrupt.seed", self.seed, minimum=0)
        if (self.share is None) == (self.clients is None):
            raise ConfigError(
                f"data.corrupt takes share or clients, one of them: it has share={self.share} and "
                f"clients={self.clients}."
            )
        if self.share is not None:
            checks.within("data.corrupt.share", self.share, "[0, 1]")
        if self.clients is not None and not _are_numbers(self.clients):
            raise ConfigError(
                "data.corrupt.clients must list numbers of clients, each once, not "
                f"{self.clients!r}."
            )

    def chosen(self, clients: int) -> frozenset[int]:
        """Returns the numbers of the altered clients among `clients`.

        Raises:
            ConfigError: a listed client does not exist.
        """
        if self.share is not None:
            order = np.random.Generator(np.random.PCG64(self.seed)).permutation(clients)
            return frozenset(order[: round(self.share * clients)].tolist())
        numbers = self.clients or ()
        if beyond := sorted(number for number in numbers if number >= clients):
            raise ConfigError(
                f"data.corrupt.clients names client {beyond[0]}, and the {clients} clients are 0 "
                f"to {clients - 1}."
            )
        return frozenset(numbers)

    def __call__(self, images: Tensor) -> Tensor:
        """Returns the altered pictures of one client, (N, C, H, W) in [0, 1]."""
        return 1.0 - images


def _are_numbers(values: object) -> bool:
    return (
        isinstance(values, tuple)
        and all(type(value) is int and value >= 0 for value in values)
        and len(set(values)) == len(values)
    )
