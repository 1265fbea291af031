"""The rule that recipes follow where nothing was measured: settings from public sizes only.

The rule was fitted to the measured recipes (digits, MNIST and Fashion-MNIST) and meets them within
a small factor (tests/conf/test_rule.py). It uses the shape of a record, the number of classes, the
nominal number of records, the clients and (ε, δ), and nothing that a client holds.
YAML refers to it as `${rule:NAME}`, `fedsink suggest` prints it, and methods that are made in
Python (`fedsink.strategies.recipes`) take from it what they are not told.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedsink.privacy.accounting.accountants import gaussian_multiplier
from fedsink.privacy.mechanisms import local_mechanism

_NOISY = 2500.0
_MOST_COORDINATES = 200.0

REASONS = {
    "central": {
        "rate": "0.5 where noise limits, else 0.2; clip=batch: four records of a class in a batch",
        "rounds": "more than 4000 bring little at any ε",
        "view.radius": "half the shorter side, at least 6, at most about 200 coordinates",
        "generator.radius": "the band in which there is a gradient",
        "generator.latent_dim": "grows with log₂(N/C)",
        "generator.hidden": "by the size of a picture",
        "strategy.rows": "√(N/C)/4, from 5 to 20; clip=batch: half of it",
        "strategy.bound": "0.3·√(C·H·W), halved where noise limits; clip=batch: 1",
        "strategy.lam": "0.16·√(C·H·W); clip=record: times 4 where noise limits",
        "strategy.history": "about 50 remembered rows",
        "strategy.optimizer.lr": "falls with √(N/C) below 6000 records of a class",
        "observation.latent_range": "noise leaves generators too narrow",
    },
    "ldp": {
        "mechanism.label_eps": "where a class's mean is known best",
        "map.pool": "halves sides from 24 pixels",
        "map.block": "1.6 ln ε, more for more records of a class",
        "strategy.batch": "a quarter of the records, from 100 to 1000",
        "strategy.finite_batch_factor": "smaller for little noise",
        "rounds": "they cost nothing",
        "generator.latent_dim": "grows with log₂(N/C)",
        "generator.hidden": "by the size of a picture",
    },
}
"""The reason for each setting of the rule, by its key."""


POINTS: dict[str, dict[str, Any]] = {
    "central": {
        "view": {"name": "pixel"}, "ema": 0.99,
        "latent_dim": 8, "hidden": [64, 64], "output": "linear", "batch_norm": False,
        "record": {"lam": 0.1, "rows": 50, "history": 8, "lr": 5e-4},
        "batch": {"lam": 0.1, "rows": 50, "history": 8, "lr": 5e-4},
        "critic": {"rows": 50, "fakes": 100, "hidden": 32, "scale": 1.0, "steps": 4, "warm": 40,
                   "batch": 8, "lr": 5e-4},
    },
    "ldp": {
        "rounds": 400, "batch": 300, "latent_dim": 8, "hidden": [64, 64], "output": "linear",
        "by_eps": {"eps": [10, 20, 35], "label_eps": [3, 4, 5],
                   "finite_batch_factor": [1.0, 1.0, 1.0]},
    },
}  # fmt: skip
"""Settings of points of any size, those of the default recipes (fedsink/conf/recipe/default)."""


@dataclass(frozen=True)
class Sizes:
    """The public sizes of a run on pictures, and the settings that they suggest.

    Attributes:
        shape: the shape of a record, (channels, height, width).
        classes: C.
        records: N, the nominal number of records of all clients.
        clients: K.
        eps: ε of the run; infinite where nothing is protected.
        delta: δ.
        mechanism: the mechanism of the local mode; "gaussian" in the central one.
    """

    shape: tuple[int, ...]
    classes: int
    records: int
    clients: int
    eps: float
    delta: float
    mechanism: str = "gaussian"

    @property
    def per_class(self) -> float:
        """N/C, records of a class."""
        return self.records / self.classes

    @property
    def side(self) -> int:
        """Shorter side of a picture."""
        return min(self.shape[1:])

    @property
    def length(self) -> float:
        """√(C·H·W): distances between pictures in [−1, 1] are proportional to it."""
        return math.sqrt(math.prod(self.shape))

    @cached_property
    def signal(self) -> float:
        """(N/C)·μ/√K with μ of the Gaussian mechanism of (ε, δ): signal over noise, at best.

        It is the clipped sum of a class's records over the noise of K clients that each add their
        own noise, if the whole budget goes into one round. No number of rounds exceeds it.
        """
        if math.isinf(self.eps):
            return math.inf
        return self.per_class / gaussian_multiplier(self.eps, self.delta) / math.sqrt(self.clients)

    @property
    def noisy(self) -> bool:
        """True if noise, and not the generator, limits the central mode."""
        return self.signal < _NOISY

    def central(self) -> dict[str, Any]:
        """Returns settings of the central mode, by the name of their place in a recipe."""
        rows = _between(5, round(math.sqrt(self.per_class) / 4), 20)
        whole = math.sqrt(4 * _MOST_COORDINATES / math.pi / self.shape[0])
        radius = min(max(6.0, self.side / 2), whole, self.side)
        lam, bound = 0.16 * self.length, 0.3 * self.length
        common = {
            "history": _between(3, round(50 / rows), 8),
            "lr": _rounded(1.5e-3 * min(1.0, math.sqrt(self.per_class / 6000))),
        }
        few = 4.0 * self.clients * self.classes / self.records  # four records of a class in a batch
        record = {"rate": 0.2, "lam": _rounded(lam), "bound": _rounded(bound), "rows": rows}
        if self.noisy:  # softer assignments shorten contributions: the same σ means less noise
            record |= {"rate": 0.5, "lam": _rounded(4 * lam), "bound": _rounded(bound / 2)}
        batch = {"rate": min(1.0, _rounded(few)), "lam": _rounded(lam), "bound": 1.0}
        batch["rows"] = max(3, rows // 2)
        return {
            "radius": float(round(radius)),
            "latent_dim": self._latents,
            "hidden": self._hidden,
            "latent_range": 1.3 if self.noisy else 1.2,
            "record": {**common, **record},
            "batch": {**common, **batch},
        }

    def local(self) -> dict[str, Any]:
        """Returns settings of the local mode for a finite ε, by their place in a recipe."""
        finer = {"l1": (0.27, -1.05), "l2": (0.5, -1.0)}
        slope, start = finer[local_mechanism(self.mechanism).norm]
        block = 1.6 * math.log(self.eps) + slope * math.log(self.per_class) + start
        return {
            "label_eps": self.label_eps,
            "pool": self._pool,
            "block": _between(2, round(block / math.sqrt(self.shape[0])), self.side // self._pool),
            "finite_batch_factor": float(np.interp(self.eps, [10, 20, 35], [1.0, 0.9, 0.85])),
            "batch": _between(100, self.records // 4, 1000),
            "rounds": _between(800, 100 * round(math.sqrt(self.per_class) / 2.5), 3000),
            "latent_dim": 2 * self._latents,
            "hidden": self._hidden,
        }

    @property
    def label_eps(self) -> float:
        """ε_l, the label's part of ε: where r(ε_l)/σ(ε − ε_l) is largest, up to half of ε.

        r = (e^ε_l − 1)/(e^ε_l + C − 1) is the part of a difference between classes that remains
        after randomized response, and σ the picture's noise: the ratio limits how well the mean of
        a class is known.
        """
        if self.classes < 2:
            return 0.0
        mechanism = local_mechanism(self.mechanism)
        delta = self.delta if mechanism.needs_delta else 0.0

        def signal(part: float) -> float:
            contrast = -math.expm1(-part) / (1 + (self.classes - 1) * math.exp(-part))
            return contrast / mechanism.from_epsilon(1.0, self.eps - part, delta).scale

        step = min(0.1, self.eps / 100)
        parts = [step * number for number in range(1, int(self.eps / step / 2) + 1)]
        return _rounded(max(parts, key=signal))

    @property
    def _pool(self) -> int:
        """Side of the squares of pixels that are averaged: 2 where large pictures allow it."""
        return 2 if self.side >= 24 and not any(side % 2 for side in self.shape[1:]) else 1

    @property
    def _latents(self) -> int:
        return _between(2, round(math.log2(self.per_class) - 4.5), 8)

    @property
    def _hidden(self) -> list[int]:
        return [128, 128] if self.side < 16 else [256, 256]


def _between(low: int, number: int, high: int) -> int:
    return max(low, min(number, high))


def _rounded(number: float) -> float:
    """Rounds to two significant digits: a rule of thumb has no further ones."""
    return float(f"{number:.2g}")
