"""What a method says of itself before a run, beside its `RoundStrategy`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from fedsink.configuration import Configuration
from fedsink.errors import ConfigError

if TYPE_CHECKING:
    from flwr.app import RecordDict


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
        remembers: whether its clients keep anything from message to message.
        plan: what is done to records.
        clients: K.
        quorum: how many of the clients that are asked must answer, as in `Quorum`.
        leaves: what a reply of a client holds, in words.
        uses_per_message: U, how many uses of the plan one reply answers for.
    """

    name: ClassVar[str]
    mode: ClassVar[str]
    title: ClassVar[str]
    remembers: ClassVar[bool] = False
    leaves: ClassVar[str] = "what its method sends"

    plan: PublicPlan
    clients: int
    quorum: float | None = None
    uses_per_message: int = 1

    @classmethod
    @abstractmethod
    def from_config(cls, config: Configuration, run: str) -> Self:
        """Settings from a configuration.

        The class checks its own values, so that there is nothing to check here.

        Args:
            config: whose `strategy` has the method's own options.
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

    def reply(self, count: int, weights: int) -> RecordDict | None:
        """A reply as clients send it, of zeros: its size is public, and that of every reply.

        Args:
            count: uses of the plan that it answers for (central), or records that it holds (ldp).
            weights: of the generator.

        Returns:
            None where the method does not say.
        """
        return None

    def asked(self, client: int, rounds: int) -> int:
        """For how many uses of the plan a client is asked in so many rounds."""
        return rounds

    @property
    def exchanges(self) -> int:
        """How many exchanges of messages a run has."""
        return 1

    @property
    def messages(self) -> int:
        """How many of them a client takes part in."""
        return 1

    @property
    def message_seconds(self) -> float:
        """About how long a simulated client computes for one message, on one core.

        It decides over nothing but what `engine=auto` takes; 0 leaves a run in one process.
        """
        return 0.0

    def check_sizes(self, sizes: Sequence[int]) -> None:  # noqa: B027 (most accept all)
        """Refuse a deal under which a client would have to refuse every request.

        Args:
            sizes: how many records each simulated client holds.

        Raises:
            ConfigError: one of them holds too many.
        """

    def check_address(self, address: str | None) -> None:
        """Refuse a cluster whose nodes may not be this machine, where the clients remember.

        Args:
            address: of the cluster; None: all clients are on this machine.

        Raises:
            ConfigError: the method's clients keep what they have learned on this machine's disk.
        """
        if address is not None and self.remembers:
            raise ConfigError(
                f"strategy={self.name} keeps on this machine's disk what its clients have learned: "
                "leave out engine.address."
            )

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must share with a run that continues from it."""
        return {**asdict(self), "plan": self.plan.to_dict()}  # type: ignore[call-overload]
