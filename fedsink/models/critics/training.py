"""Training of a client's critics: public numbers fixed for the run, and the loss of WGAN-GP."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.errors import ModelError
from fedsink.models.critics.architectures import Critic
from fedsink.values import Checks

_checks = Checks(ModelError)


@dataclass(frozen=True)
class CriticTraining:
    """Steps, batches and loss of the M critics of a client.

    Attributes:
        critics: M, among which a client deals its records.
        steps: steps of every critic in a round.
        warm: further steps in a critic's first round.
        warm_generator: steps before that of a `LocalGenerator` for each critic, each after `steps`
            of the critic against it; 0: there is none.
        batch: b, records of a critic in a step, drawn with replacement.
        history: number of messages whose generated rows a client keeps to train against.
        lr: learning rate of Adam.
        late: share of the rounds that is left when the learning rate is halved.
        penalty: weight of the gradient penalty.
        drift: weight of the drift term.
        mismatch: w, the share of records under another label among the points that count as
            generated; 0 where there is only one class.

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
            _checks.count(name, getattr(self, name), minimum=least)
        for name in ("lr", "penalty", "drift"):
            object.__setattr__(self, name, _checks.number(name, getattr(self, name)))
        for name in ("late", "mismatch"):
            object.__setattr__(self, name, _checks.within(name, getattr(self, name), "[0, 1]"))
        if self.warm_generator and not self.steps:
            raise ModelError(
                f"warm_generator={self.warm_generator} trains a generator against a critic that "
                "takes no steps: choose steps of at least 1, or leave it out."
            )

    def rate(self, round: int, rounds: int) -> float:
        """Returns the learning rate of round 1 ≤ `round` ≤ `rounds`."""
        whole = (1.0 - self.late) * rounds + 1e-9  # (1 − 0.8)·5 is 0.9999999999999998
        return self.lr / 2.0 if round > whole else self.lr

    def steps_after(self, trained: int) -> int:
        """Returns the steps against the server's rows, after `trained` rounds of a critic."""
        return self.steps if trained else self.steps + self.warm

    @property
    def first_steps(self) -> int:
        """Number of all steps of a critic's first round, those of its local generator included."""
        return self.steps_after(0) + self.warm_generator * (self.steps + 1)


def wgan_gp_losses(
    critic: Critic,
    weights: Tensor,
    fakes: Tensor,
    records: Tensor,
    shares: Tensor,
    labels: Tensor,
    *,
    penalty: float,
    drift: float,
    mismatch: float = 0.0,
    others: Tensor | None = None,
) -> Tensor:
    """Returns the loss of each critic, (M,), to be minimised over its weights.

    mean D(x', l) − mean D(x, l) + penalty·mean (‖∇D(x̂, l)‖ − 1)² + drift·mean D(x, l)² with
    generated x', records x and x̂ = x + u(x' − x) (WGAN-GP: Gulrajani et al. 2017, equation 3; the
    drift term: Karras et al. 2018, appendix A.1). With a mismatch w > 0 the first term is
    (1 − w)·mean D(x', l) + w·mean D(x, l̃): a record under another label l̃ counts as generated
    (matching-aware critics: Reed et al. 2016, algorithm 1).

    Args:
        critic: the architecture.
        weights: (M, W).
        fakes: x', (M, B, D).
        records: x, (M, B, D).
        shares: u in [0, 1], (M, B).
        labels: of both points of each pair, (M, B) int64.
        penalty: weight of the gradient penalty.
        drift: weight of the drift term.
        mismatch: w in [0, 1].
        others: l̃, (M, B) int64; None: w counts as 0.
    """
    pairs = fakes.shape[1]
    scores = critic.scores(weights, torch.cat([fakes, records], 1), torch.cat([labels, labels], 1))
    fake, real = scores.split(pairs, dim=1)
    if others is not None:
        fake = torch.lerp(fake, critic.scores(weights, records, others), mismatch)
    between = torch.lerp(records, fakes, shares.unsqueeze(-1).to(fakes))
    slopes = torch.linalg.vector_norm(critic.gradients(weights, between, labels), dim=-1)
    return (fake - real + penalty * (slopes - 1.0).square() + drift * real.square()).mean(1)
