"""How a client trains its critics in a round: public numbers, fixed for the run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedsink.errors import ModelError


@dataclass(frozen=True)
class CriticTraining:
    """Steps, batches and loss of the M critics of a client.

    Attributes:
        critics: M, among which a client deals its records.
        steps: of every critic in a round.
        warm: further steps in the first round of a critic's life.
        warm_generator: steps of a local generator of each critic's own before that, each behind
            `steps` of the critic against it; 0: there is none.
        batch: b, a critic's own records in a step, drawn with replacement.
        history: how many messages' generated rows a client keeps to train against.
        lr: learning rate of Adam.
        late: the part of the rounds that is left when the learning rate is halved.
        penalty: weight of the gradient penalty.
        drift: weight of the drift term.
        mismatch: w, the share of records under another label among what counts as generated; 0
            where there is one class alone.

    Raises:
        ModelError: a value is out of range.
    """

    critics: int
    steps: int = 5
    warm: int = 20
    batch: int = 4
    history: int = 4
    lr: float = 2e-3
    late: float = 0.3
    penalty: float = 10.0
    drift: float = 1e-3
    mismatch: float = 0.0
    warm_generator: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            ("critics", 1), ("steps", 0), ("warm", 0), ("batch", 1), ("history", 1),
            ("warm_generator", 0),
        ):  # fmt: skip
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ModelError(f"{name} must be a whole number of at least {least}, not {value}.")
        for name in ("lr", "penalty", "drift", "late", "mismatch"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ModelError(f"{name} must be a number, not {value!r}.")
            if not 0.0 <= value < math.inf:
                raise ModelError(f"{name} must be a finite number of at least 0, not {value}.")
            object.__setattr__(self, name, float(value))
        for name in ("late", "mismatch"):
            if getattr(self, name) > 1.0:
                raise ModelError(f"{name} must lie in [0, 1], not {getattr(self, name)}.")

        if self.warm_generator and not self.steps:
            raise ModelError(
                f"warm_generator={self.warm_generator} trains a generator against a critic that "
                "takes no steps: choose steps of at least 1, or leave it out."
            )

    def rate(self, round: int, rounds: int) -> float:
        """The learning rate of round 1 ≤ `round` ≤ `rounds`."""
        return self.lr / 2.0 if round > (1.0 - self.late) * rounds else self.lr

    def steps_after(self, trained: int) -> int:
        """Steps against the server's rows of a critic that has been trained in so many rounds."""
        return self.steps if trained else self.steps + self.warm

    @property
    def first_steps(self) -> int:
        """All steps of a critic's first round, those of its local generator included."""
        return self.steps_after(0) + self.warm_generator * (self.steps + 1)
