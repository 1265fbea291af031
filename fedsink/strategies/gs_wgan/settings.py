"""Everything about a GS-WGAN run that the server decides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

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
    TurnSchedule,
    UnprotectedPlan,
)
from fedsink.privacy.adjacency import ADJACENCIES, describe
from fedsink.protocol import Critics
from fedsink.protocol.run import UNNAMED
from fedsink.strategies.central.settings import CentralSettings, central_plan
from fedsink.strategies.trainer import OptimizerSettings
from fedsink.values import given, integer, strictly


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
    mechanism: ClassVar[str] = (
        "Gaussian on the sum of critics' gradients at the generated images, each clipped as a whole"
    )

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
        turns = self.plan.schedule.period
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
        if config.clip != chosen["default_clip"]:
            raise ConfigError(
                f"strategy={cls.name} clips the gradients of critics: leave out clip={config.clip}."
            )
        clip, turns = CriticClip(chosen["bound"], chosen["critics"]), chosen["turns"]
        schedule = JointSchedule() if turns is None else TurnSchedule(turns)
        options = dict(chosen["critic"])
        kind, hidden, scale = (options.pop(name, None) for name in ("kind", "hidden", "scale"))
        training = strictly(CriticTraining, {**options, "critics": clip.critics}, "strategy.critic")
        return cls(
            plan=central_plan(config, clip, schedule),
            critics=Critics(training, len(config.classes), kind, hidden, scale),
            view={"shape": list(config.data.shape), **given(config.view)},
            rows=chosen["rows"],
            fakes=chosen["fakes"],
            optimizer=strictly(OptimizerSettings, chosen["optimizer"], "strategy.optimizer"),
            clients=config.clients,
            accountant=config.accountant,
            run=run,
            share=config.noise.shared,
            quorum=chosen["quorum"],
        )

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
        return {**stated, "critics": self.critics.training.critics, "adjacencies": also}
