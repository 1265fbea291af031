"""Everything about a GS-WGAN run that the server decides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from fedsink.configuration import Configuration
from fedsink.data.views import view_from_dict
from fedsink.errors import ConfigError
from fedsink.models.critics import CriticTraining
from fedsink.privacy import (
    LOCAL_NOISE,
    CentralPlan,
    CriticClip,
    JointSchedule,
    NoiseShare,
    PickSchedule,
    PrivacyPlan,
    RowClip,
    TurnSchedule,
    UnprotectedPlan,
    gs_wgan_epsilon,
)
from fedsink.privacy.adjacency import ADJACENCIES, describe
from fedsink.privacy.clips import ClipOfCritics
from fedsink.privacy.sampling import Schedule
from fedsink.protocol.dp_sinkhorn import GradientReply
from fedsink.protocol.gs_wgan import Critics
from fedsink.protocol.requests import UNNAMED
from fedsink.strategies.central.settings import CentralSettings, central_plan, common_settings
from fedsink.strategies.trainer import OptimizerSettings
from fedsink.values import flag, integer, positive, strictly

if TYPE_CHECKING:
    from flwr.app import RecordDict


@dataclass(frozen=True)
class GSWGANSettings(CentralSettings):
    """Everything about a GS-WGAN run; all of it is public.

    Attributes:
        plan: clip of the critics, noise, rounds and turns, with their accounting; without clip and
            noise an `UnprotectedPlan`.
        critics: what a client's critics are, and how they learn.
        view: coordinates of the gradient, as `View.to_dict()`.
        rows: n, generated images of a round whose gradient is asked for.
        fakes: f, further ones for the critics to train against.
        optimizer: the generator's optimiser.
        clients: K.
        accountant: whose ε is reported, one of `fedsink.privacy.ACCOUNTANTS`.
        run: public name of the run, stated in every request.
        share: whether each reply holds all of the plan's noise, or the sum of a turn's does.
        quorum: how many of the clients that are asked must answer, as in `Quorum`.
    """

    name: ClassVar[str] = "gs_wgan"
    title: ClassVar[str] = "GS-WGAN"
    remembers: ClassVar[bool] = True
    mechanism: ClassVar[str] = (
        "Gaussian on the sum of critics' gradients at the generated images, each clipped as a whole"
    )

    leaves: ClassVar[str] = "noised sums of critics' clipped gradients"

    plan: CentralPlan
    critics: Critics
    view: dict[str, Any]
    rows: int
    fakes: int
    optimizer: OptimizerSettings
    clients: int
    accountant: str = "pld"
    run: str = UNNAMED
    share: NoiseShare = LOCAL_NOISE
    quorum: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rows", "fakes"):
            integer(vars(self), name, where="strategy.")
        turns = self.plan.schedule.cohorts
        if turns > self.clients:
            raise ConfigError(
                f"strategy.turns={turns} leaves rounds in which none of clients={self.clients} is "
                "asked: choose at most as many turns as clients."
            )
        self.critics.architecture(view_from_dict(self.view))  # refused now rather than in a client

    @classmethod
    def from_config(cls, config: Configuration, run: str) -> Self:
        """Settings of GS-WGAN.

        Raises:
            FedsinkError: a value is unknown, out of range, or belongs to another method or mode.
        """
        chosen = config.strategy
        for key, clip in (
            ("strategy.default_clip", chosen["default_clip"]),
            ("clip", config.clip),
        ):
            if clip != "critic":
                raise ConfigError(
                    f"strategy={cls.name} clips the gradients of critics: leave out {key}={clip}."
                )
        published = flag(chosen, "published", where="strategy.")
        clip, schedule, sigma = (_published if published else _all_critics)(config)
        options = dict(chosen["critic"])
        kind, hidden, scale = (options.pop(name, None) for name in ("kind", "hidden", "scale"))
        training = strictly(CriticTraining, {**options, "critics": clip.critics}, "strategy.critic")
        return cls(
            plan=central_plan(config, clip, schedule, sigma),
            critics=Critics(training, len(config.classes), kind, hidden, scale),
            fakes=chosen["fakes"],
            **common_settings(config, run),
        )

    def reply(self, count: int, weights: int) -> RecordDict:
        """A gradient at all rows, for the only use that a message asks for."""
        zeros = torch.zeros(self.rows, view_from_dict(self.view).dimension)
        return GradientReply(zeros).to_record()

    @property
    def message_seconds(self) -> float:
        """By the steps of all critics, measured with the recipe for the digits."""
        return 45e-6 * self.critics.training.critics * self.critics.training.steps

    def statement(self, noise: str) -> dict[str, Any]:
        """The content of privacy.json, with all adjacencies that the same ε holds under."""
        stated = super().statement(noise)
        if isinstance(self.plan, UnprotectedPlan):
            return stated
        epsilon = stated["epsilon"]
        also = {
            name: describe(name)
            for name in ADJACENCIES
            if replace(self.plan, adjacency=name).epsilon(self.accountant) == epsilon
        }
        critics: dict[str, Any] = {"critics": self.critics.training.critics, "adjacencies": also}
        if self.plan.rate < 1.0:
            critics["mechanism"] = f"Poisson-subsampled {self.mechanism}"
        return {**stated, **critics, **self._claim(self.plan)}

    def notice(self, stated: Mapping[str, Any]) -> str | None:
        """What can be proved of the published form, beside what is claimed of it."""
        if "epsilon_published" not in stated:
            return super().notice(stated)
        return (
            f"strategy.published=true: ε = {stated['epsilon']:.4g} is what can be proved; "
            f"{stated['epsilon_published']:.4g} is {_CLAIM}."
        )

    def _claim(self, plan: PrivacyPlan) -> dict[str, Any]:
        """What privacy.json says of the published form alone."""
        clip, schedule = plan.clip, plan.schedule
        if not isinstance(clip, RowClip) or not isinstance(schedule, PickSchedule):
            return {}
        sigma = plan.noise_std / (2.0 * clip.bound)
        claimed = gs_wgan_epsilon(
            sigma, uses=plan.rounds * clip.rows, critics=schedule.clients, delta=plan.delta
        )
        return {
            "mechanism": (
                "Gaussian on one critic's gradient at the generated images, each row of which is "
                "clipped by itself"
            ),
            "row_sigma": sigma,
            "pick_seed": schedule.seed,
            "epsilon_published": claimed,
            "epsilon_published_meaning": _CLAIM,
        }


_CLAIM = "the paper's claim (Theorem A.1), not proved"
_Mechanism = tuple[ClipOfCritics, Schedule, float | None]


def _all_critics(config: Configuration) -> _Mechanism:
    """Each critic's gradient clipped as a whole; all clients answer, or those whose turn it is.

    Every critic of a client that answers is trained, whatever the rate at which critics are asked.
    """
    chosen = config.strategy
    if chosen["row_sigma"] is not None:
        raise ConfigError(
            f"strategy.row_sigma={chosen['row_sigma']} is the noise of the published form: leave "
            "it out, or set strategy.published=true."
        )
    turns = chosen["turns"]
    schedule = JointSchedule() if turns is None else TurnSchedule(turns)
    return CriticClip(chosen["bound"], chosen["critics"]), schedule, None


def _published(config: Configuration) -> _Mechanism:
    """Each row clipped by itself, one client of one critic picked a round, and the multiplier."""
    chosen, sigma = config.strategy, config.strategy["row_sigma"]
    mismatch = chosen["critic"]["mismatch"]
    for key, value, only, why in (
        ("strategy.critics", chosen["critics"], 1, "a client has one critic"),
        ("strategy.turns", chosen["turns"], None, "clients are picked at random"),
        ("noise.share", config.noise.share, LOCAL_NOISE.name, "one client a round answers"),
        ("policy", config.policy, None, "a node under a policy never answers it"),
        ("strategy.critic.mismatch", mismatch, 0.0, "its critics see records under their labels"),
    ):
        if value != only:
            raise ConfigError(
                f"strategy.published=true goes without {key}={value}: {why}, so "
                f"{'leave it out' if only is None else f'set {key}={only}'}."
            )
    if None not in (sigma, config.sigma):
        raise ConfigError(
            f"strategy.row_sigma={sigma} and sigma={config.sigma} both state the noise: leave one "
            "of them out."
        )
    clip = RowClip(chosen["bound"], integer(chosen, "rows", where="strategy."))
    if sigma is not None:
        sigma = positive(chosen, "row_sigma", where="strategy.", also="null or ")
        sigma /= math.sqrt(clip.rows)
    return clip, PickSchedule(config.clients, config.seed or 0), sigma
