"""Central mode with critics at the clients: generated images go out, critics' gradients come back.

A message asks for one round of the mechanism. Its reply is the sum of the clipped gradients of a
client's critics at the message's rows, with noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from torch import Tensor

from fedsink.data.views import View
from fedsink.errors import ConfigError
from fedsink.models.critics import (
    ConvolutionCritic,
    Critic,
    CriticTraining,
    LocalGenerator,
    PerceptronCritic,
)
from fedsink.privacy import Stream
from fedsink.privacy.clips import ClipOfCritics
from fedsink.privacy.domain import Interval
from fedsink.protocol.requests import CentralRequest, check_rows, table
from fedsink.values import privacy_checks as checks

MOST_WEIGHTS = 1 << 25  # of all critics of a client; a node keeps three numbers for each
MOST_PAIRS = 1 << 24  # of a record and a generated row, that a message shows to a client's critics
MOST_FAKES = 1 << 20  # rows that a client keeps to train against

# Their part of the public numeric domain, see `fedsink.privacy.domain`.
_SCALE = Interval("the scale of a critic's coordinates", 2.0**-20, 2.0**20)
_WIDTH = Interval("the critics' width", 1, 2.0**14)
_SEED = Interval("the seed of the critics' weights", 0, 2.0**62)
_DOMAIN = {
    "lr": Interval("the learning rate of the critics", 0.0, 2.0**20),
    "penalty": Interval("the weight of the critics' penalty", 0.0, 2.0**20),
    "drift": Interval("the weight of the critics' drift", 0.0, 2.0**20),
}
_COUNTS = {
    "steps": Interval("the critics' steps", 0, 2.0**14),
    "warm": Interval("the critics' steps before the first round", 0, 2.0**14),
    "warm_generator": Interval("the steps of the critics' local generators", 0, 2.0**14),
    "batch": Interval("the critics' batch", 1, 2.0**14),
    "history": Interval("the critics' history", 1, 2.0**14),
}


@dataclass(frozen=True)
class Critics:
    """Architecture and training of a client's critics (public, fixed for a run).

    A value outside the public domain (`fedsink.privacy.domain`), or more pairs than `MOST_PAIRS`,
    must show when this is made, before a record is looked at: as a ConfigError, ModelError or
    PrivacyError.
    """

    training: CriticTraining  # number of critics, their steps and their batches
    classes: int  # L, number of public classes
    kind: str = PerceptronCritic.name  # on the view's coordinates; "convolution": on pixels
    hidden: int = 32  # width of a perceptron's layers, or features of the first convolution
    # A perceptron divides coordinates by it, a local generator multiplies by it: about the norm of
    # a record's coordinates.
    scale: float = 10.0
    seed: int = 0  # of the initial weights, which every critic of every client starts with

    def __post_init__(self) -> None:
        kinds = PerceptronCritic.name, ConvolutionCritic.name
        if self.kind not in kinds:
            raise ConfigError(f"A critic is a {' or a '.join(kinds)}, not {self.kind!r}.")
        checks.count("classes", self.classes)
        _SEED.check_count(self.seed)
        _WIDTH.check_count(self.hidden)
        _SCALE.check(self.scale)
        for name, interval in _DOMAIN.items():
            interval.check(getattr(self.training, name))
        for name, interval in _COUNTS.items():
            interval.check_count(getattr(self.training, name))
        pairs = self.training.critics * self.training.batch * self.training.first_steps
        if pairs > MOST_PAIRS:
            raise ConfigError(
                f"The critics of a client would see {pairs} pairs in the first round, where "
                f"{MOST_PAIRS} is the most: choose fewer critics, steps or records a step."
            )

    def architecture(self, view: View) -> Critic:
        """Returns the architecture on records in a view.

        A ValueError: it does not fit the view, or all critics, or all their local generators, have
        more than `MOST_WEIGHTS`.
        """
        critic: Critic
        if self.kind == ConvolutionCritic.name:
            critic = ConvolutionCritic(view, self.classes, self.hidden)
        else:
            critic = PerceptronCritic(view.dimension, self.classes, self.hidden, self.scale)
        local = self.local_generator(critic)
        weights = self.training.critics * max(critic.size, 0 if local is None else local.size)
        if weights > MOST_WEIGHTS:
            raise ConfigError(
                f"The critics of a client, or their local generators, would have {weights} "
                f"weights, where {MOST_WEIGHTS} is the most: choose fewer or narrower ones."
            )
        return critic

    def local_generator(self, critic: Critic) -> LocalGenerator | None:
        """Returns the generator that each critic is trained against at first; None: none."""
        if not self.training.warm_generator:
            return None
        return LocalGenerator(critic.dimension, self.classes, self.scale)

    @property
    def initial(self) -> Stream:
        """Public source of the weights that every critic starts with."""
        return Stream(b"fedsink critics", self.seed)

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON-able form, which `from_dict` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Critics:
        """Reads what `to_dict` wrote; raises KeyError, TypeError or ValueError for all else."""
        return cls(**{**fields, "training": CriticTraining(**fields["training"])})


@dataclass(frozen=True, kw_only=True)
class CriticRequest(CentralRequest):
    """Asks one client for one round of the mechanism; see also `CentralRequest`."""

    name = "gs_wgan"
    kind = "critic request"

    critics: Annotated[Critics, Critics.from_dict]
    view: Annotated[dict[str, Any], table]  # linear coordinates of rows and gradient: View.to_dict
    rows: Tensor  # X, where the critics' gradients are asked for, (n, D)
    row_labels: Tensor  # (n,) int64
    fakes: Tensor  # rows of the same generator for the critics to train against, (f, D)
    fake_labels: Tensor  # (f,) int64

    @property
    def reply_shape(self) -> tuple[int, ...]:
        return tuple(self.rows.shape)

    @property
    def rate(self) -> float:
        """Learning rate of the critics in this round."""
        return self.critics.training.rate(self.round, self.plan.rounds)

    def check(self) -> None:
        """Refuses a request whose parts do not fit together: a ValueError names the part.

        Builds nothing from it: see `Critics.architecture`.
        """
        super().check()
        training = self.critics.training
        check_rows(self.rows, self.row_labels, self.critics.classes)
        ClipOfCritics.expect(self.plan.clip).check_size(training.critics, len(self.rows))
        check_rows(self.fakes, self.fake_labels, self.critics.classes)
        if self.fakes.shape[1] != self.rows.shape[1]:
            raise ValueError(
                f"The rows to train against have {self.fakes.shape[1]} coordinates, the others "
                f"{self.rows.shape[1]}."
            )
        rows = training.history * len(self.fakes)
        if rows > MOST_FAKES:
            raise ValueError(
                f"The critics would keep {rows} rows to train against, where {MOST_FAKES} is the "
                "most: send fewer, or choose a shorter history."
            )
