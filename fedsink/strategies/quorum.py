"""How many of the clients that are asked must answer.

>>> [Quorum(value).of(25) for value in (None, 0.75, 0.56, 1.0, 4, 40)]
[25, 19, 14, 25, 4, 25]
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedsink.errors import ConfigError
from fedsink.values import is_number


@dataclass(frozen=True)
class Quorum:
    """A number of clients, or a share of those that are asked.

    Args:
        value: a whole number of at least 1, a share in (0, 1], or None for all.

    Raises:
        ConfigError: it is something else.
    """

    value: float | None = None

    def __post_init__(self) -> None:
        value = self.value
        if value is None:
            return
        if not is_number(value) or not (isinstance(value, int) or 0.0 < value <= 1.0) or value <= 0:
            raise ConfigError(
                "strategy.quorum is null (all), a whole number of at least 1 or a share in (0, 1], "
                f"not {value!r}."
            )

    def of(self, asked: int) -> int:
        """How many answers are enough of so many clients."""
        if self.value is None:
            return asked
        if isinstance(self.value, int):
            return min(self.value, asked)
        return math.ceil(self.value * asked - 1e-9)  # 0.56 · 25 is 14.000000000000002


def check_quorum(value: float | None, clients: int) -> None:
    """Refuse what is no quorum, or one of more clients than there are.

    Raises:
        ConfigError: naming the key.
    """
    if isinstance(Quorum(value).value, int) and value is not None and value > clients:
        raise ConfigError(f"strategy.quorum={value} is more than clients={clients}.")
