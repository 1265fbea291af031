"""What a method says of itself before a run, beside its `RoundStrategy`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Protocol, Self

from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError
from fedsink.privacy import (
    LOCAL_NOISE,
    CentralPlan,
    ClippedGaussian,
    NoiseShare,
    UnprotectedPlan,
)
from fedsink.reporting.noise_share import notice
from fedsink.values import Config

NODE_ENGINES = ("local", "ray", "flower")
"""The engines that carry a strategy's messages to simulated nodes, whatever it asks."""


class PublicPlan(Protocol):
    """What is done to records, in public numbers."""

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values."""


class StrategySettings(ABC):
    """Everything public about a run of one method.

    A method is a frozen dataclass derived from this, and a `RoundStrategy` that names it in
    `Settings` and is built from (settings, generator, key). The registry finds the latter by
    `name`: in `fedsink.strategies.registry`, or under the entry points "fedsink.strategies" of
    an installed package. Its options are conf/strategy/NAME.yaml.

    Nothing else asks which method runs: what differs between methods is one of the members here.

    Attributes:
        name: as in `strategy.name`.
        mode: the privacy model, "central" or "ldp".
        title: what the progress display says.
        engines: the simulation engines that can run it. They are not inherited, since "fused"
            plays the rounds of `fedsink.strategies.DPSinkhorn` itself, and would do so for a
            method derived from it; only what plays these rounds unchanged may name it.
        plan: what is done to records.
        clients: K.
    """

    name: ClassVar[str]
    mode: ClassVar[str]
    title: ClassVar[str]
    engines: ClassVar[tuple[str, ...]] = NODE_ENGINES

    plan: PublicPlan
    clients: int

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "engines" not in vars(cls):
            cls.engines = NODE_ENGINES

    @classmethod
    @abstractmethod
    def from_config(cls, config: Config, data: DataSpec, clients: int, run: str) -> Self:
        """Settings from a resolved configuration, every value of it checked.

        Args:
            config: plain mappings and values; the method's own options are `config["strategy"]`.
            data: public description of the records.
            clients: K.
            run: public name of the run, to be stated in every request.

        Raises:
            FedsinkError: a value is unknown, out of range, or belongs to the other mode.
        """

    @abstractmethod
    def statement(self, noise: str) -> dict[str, Any]:
        """The content of privacy.json.

        Args:
            noise: kind of the clients' noise key, or "node" where each owner decides.
        """

    def notice(self, stated: Mapping[str, Any]) -> str | None:
        """A line for whoever starts the run; None where there is nothing to say.

        Args:
            stated: what `statement` returned.
        """
        return None

    def check_sizes(self, sizes: Sequence[int]) -> None:  # noqa: B027 (most accept all)
        """Refuse a deal under which a client would have to refuse every request.

        Args:
            sizes: how many records each simulated client holds.

        Raises:
            ConfigError: one of them holds too many.
        """

    def check_engine(self, engine: str) -> None:
        """Refuse an engine that cannot run this method.

        Raises:
            ConfigError: naming those that can.
        """
        if engine not in self.engines:
            *most, last = self.engines
            raise ConfigError(
                f"strategy={self.name} needs engine={', '.join(most)}{' or ' if most else ''}"
                f"{last}, not engine={engine}."
            )

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must share with a run that continues from it."""
        return {**asdict(self), "plan": self.plan.to_dict()}  # type: ignore[call-overload]


class CentralSettings(StrategySettings):
    """Everything public about a run of the central mode.

    Attributes:
        plan: what is clipped and noised in every round, with its accounting; without clip and
            noise an `UnprotectedPlan`.
        accountant: whose ε is reported, one of `fedsink.privacy.ACCOUNTANTS`.
        share: whether each reply holds all of the plan's noise, or the sum of a cohort's does.
    """

    mode: ClassVar[str] = "central"

    plan: CentralPlan
    accountant: str
    share: NoiseShare

    def __post_init__(self) -> None:
        if isinstance(self.plan, UnprotectedPlan) and self.share != LOCAL_NOISE:
            raise ConfigError(
                f"noise.share={self.share.name} has nothing to share where eps=inf adds no noise: "
                "leave one of them out."
            )
        self.share.check(self.plan.schedule, self.clients)

    def notice(self, stated: Mapping[str, Any]) -> str | None:
        """What a shared noise protects, where noise is shared."""
        return notice(stated, self.share, self.clients)

    def sharers(self, client: int) -> int:
        """n, over how many clients the noise of this client's cohort is spread."""
        return self.share.sharers(self.plan.schedule, client, self.clients)

    def noise_std(self, client: int) -> float:
        """Standard deviation of the noise in one client's reply, σS/√n."""
        return self.plan.with_noise(1 / self.sharers(client)).noise_std


def check_central(config: Config) -> None:
    """Refuse what belongs to the local mode.

    Raises:
        ConfigError: another mechanism than the central mode's, or a shuffler.
    """
    name = config["mechanism"]["name"]
    if name != ClippedGaussian.choice:
        raise ConfigError(
            f"mode=central noises gradients with mechanism={ClippedGaussian.choice}, not "
            f"{name!r}; mechanism={name} belongs to mode=ldp."
        )
    if config["shuffler"] != "none":
        raise ConfigError(
            f"shuffler={config['shuffler']} belongs to mode=ldp: a shuffler amplifies reports "
            "that are private one by one, and those of mode=central are sums over a batch."
        )


def signal_to_noise(energy: float, noise: float) -> dict[str, float]:
    """‖signal‖/‖noise‖ of a release, from the release alone, as a metric.

    Args:
        energy: its squared norm.
        noise: expected squared norm of the noise in it.

    Returns:
        {} without noise.
    """
    return {"signal_to_noise": max(0.0, energy / noise - 1.0) ** 0.5} if noise > 0.0 else {}


def noise_share(config: Config) -> NoiseShare:
    """Whose noise makes up the plan's; how it is drawn is the clients' half.

    Raises:
        FedsinkError: an entry of `noise` is unknown or out of range.
    """
    noise, known = config["noise"], ("backend", "share", "tolerate_dropouts")
    if unknown := sorted(set(noise) - set(known)):
        raise ConfigError(f"Unknown key noise.{unknown[0]}; there are {', '.join(known)}.")
    return NoiseShare(noise["share"], noise["tolerate_dropouts"])
