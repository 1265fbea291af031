"""The public settings of a run, and what they answer before it starts.

>>> [Quorum(value).of(25) for value in (None, 0.75, 0.56, 1.0, 4, 40)]
[25, 19, 14, 25, 4, 25]
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from fedsink import __version__
from fedsink.configuration import Configuration
from fedsink.errors import ConfigError
from fedsink.values import is_number

if TYPE_CHECKING:
    from flwr.app import RecordDict


@dataclass(frozen=True)
class Quorum:
    """The number of clients that must answer.

    Args:
        value: a whole number of at least 1, a share in (0, 1] of those that are asked, or None for
            all of them.
        spare: where the value is None, number of clients that may be missing.

    Raises:
        ConfigError: the value is something else.
    """

    value: float | None = None
    spare: int = 0

    def __post_init__(self) -> None:
        value = self.value
        if value is None:
            return
        if not is_number(value) or not (isinstance(value, int) or 0.0 < value <= 1.0) or value <= 0:
            raise ConfigError(
                "strategy.quorum is null (all), a whole number of at least 1 or a share in (0, 1], "
                f"not {value!r}."
            )

    def of(self, clients: int) -> int:
        """Returns the number of answers that are enough where so many clients are asked."""
        if self.value is None:
            return max(1, clients - self.spare)
        if isinstance(self.value, int):
            return min(self.value, clients)
        return max(1, math.ceil(self.value * clients - 1e-9))  # 0.56 · 25 is 14.000000000000002


def check_quorum(value: float | None, clients: int) -> None:
    """Refuses a value that is no quorum, or a quorum of more clients than there are.

    Raises:
        ConfigError: naming the key.
    """
    if isinstance(Quorum(value).value, int) and value is not None and value > clients:
        raise ConfigError(f"strategy.quorum={value} is more than clients={clients}.")


class PublicPlan(Protocol):
    """A description of what is done to records, in public numbers."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as JSON values."""


class StrategySettings(ABC):
    """Everything public about a run of one method.

    A method derives a frozen dataclass from this class, and names it in the `Settings` of its
    `RoundStrategy`. Its options are conf/strategy/NAME.yaml. No other code asks which method runs:
    a member of this class answers wherever methods differ.

    Attributes:
        name: as in `strategy.name`.
        mode: the privacy model, "central" or "ldp".
        title: shown beside the progress.
        remembers: whether clients keep a state from message to message.
        many_clients: so many answers a round are worth sharing among processes (`engine=auto`).
        leaves: what a client's reply holds, in words.
        plan: what is done to records.
        clients: K.
        quorum: number of the clients asked that must answer, as in `Quorum`.
        uses_per_message: U, number of uses of the plan that one reply answers for.
    """

    name: ClassVar[str]
    mode: ClassVar[str]
    title: ClassVar[str]
    remembers: ClassVar[bool] = False
    many_clients: ClassVar[float] = math.inf
    leaves: ClassVar[str] = "what its method sends"

    plan: PublicPlan
    clients: int
    quorum: float | None = None
    uses_per_message: int = 1

    @classmethod
    @abstractmethod
    def from_config(cls, config: Configuration, run: str) -> Self:
        """Reads the settings from a configuration; `__post_init__` checks their values.

        Args:
            config: its `strategy` has the method's own options.
            run: public name of the run, stated in every request.

        Raises:
            FedsinkError: a value is unknown, out of range, or belongs to the other mode.
        """

    @abstractmethod
    def statement(self, noise: str) -> dict[str, Any]:
        """Returns the promise of privacy.json.

        Args:
            noise: kind of the clients' noise key, or "node" where each owner decides.
        """

    def stated(self, noise: str) -> dict[str, Any]:
        """Returns the content of privacy.json, with the plan that its numbers follow from.

        Args:
            noise: as in `statement`.
        """
        plan = {"mode": self.mode, **self.plan.to_dict()}
        return {**self.statement(noise), "method": self.name, "fedsink": __version__, "plan": plan}

    def notice(self, stated: Mapping[str, Any]) -> str | None:
        """Returns a line for the person who starts the run, or None.

        Args:
            stated: what `statement` or `stated` returned.
        """
        return None

    @property
    def enough(self) -> Quorum:
        """Number of the clients asked that must answer."""
        return Quorum(self.quorum)

    @property
    def masked_run(self) -> str | None:
        """Name of the run whose replies are added up under masks; None: no masks."""
        return None

    def reply(self, count: int, weights: int) -> RecordDict | None:
        """Returns a client's reply made of zeros, whose size is that of every reply.

        Args:
            count: uses of the plan that it answers for (central), or records that it holds (ldp).
            weights: of the generator.

        Returns:
            None where the method does not say.
        """
        return None

    @property
    def adds_up(self) -> bool:
        """True if the totals of all clients make one sum before noise that they share is added."""
        return False

    def asked(self, client: int, rounds: int) -> int:
        """Returns the number of uses that a client is asked for in the first `rounds` rounds."""
        return rounds

    def check_sizes(self, sizes: Sequence[int]) -> None:  # noqa: B027 (most accept all)
        """Refuses a partition under which a client would have to refuse every request.

        Args:
            sizes: number of records of each simulated client.

        Raises:
            ConfigError: naming the client's number of records.
        """

    def check_address(self, address: str | None) -> None:
        """Refuses a cluster of several machines where clients keep a state on this one.

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
        """Returns the values that a checkpoint and a run that continues from it have in common."""
        return {**asdict(self), "plan": self.plan.to_dict()}  # type: ignore[call-overload]
