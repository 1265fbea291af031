"""The common part of both modes' losses, and the way a package adds one.

mode=ldp: `strategy.loss` names a `LocalLoss`, the server's loss on privatized records.
mode=central: `strategy.self_term` names a `SelfTerm`, the server's half of a loss; nodes answer the
other.

    [project.entry-points."fedsink.losses"]
    denoised = "my_package.losses:Denoised"
"""

from __future__ import annotations

from abc import ABC
from typing import Any, TypeVar

from torch import Tensor

from fedsink.errors import ConfigError
from fedsink.registry import Registry, did_you_mean, gone


class Loss(ABC):  # noqa: B024 (its heirs are)
    """A part of a loss that a server computes, and keeps between rounds."""

    def state(self) -> dict[str, Tensor]:
        """Returns the tensors to resume from, by name."""
        return {}

    def load_state(self, tensors: dict[str, Tensor]) -> None:  # noqa: B027 (most have none)
        """Restores what `state` returned, from among other tensors."""


L = TypeVar("L", bound=Loss)


def find_loss(losses: Registry[type[L]], key: str, name: object, kind: type[L]) -> type[L]:
    """Returns the loss of a kind with a name.

    Args:
        losses: the losses of a mode, and those of packages for either.
        key: that names them.
        name: value of the key.
        kind: class of the mode's losses.

    Raises:
        ConfigError: there is no such loss, or it belongs to the other mode.
    """
    if isinstance(name, str) and (name in losses or gone(f"{key}={name}")):
        found: Any = losses.find(name)
        if isinstance(found, type) and issubclass(found, kind):
            return found
    fitting = sorted(n for n in losses if issubclass(losses[n], kind))
    raise ConfigError(
        f"{key}={name!r} is unknown; choose one of {', '.join(fitting)}."
        f"{did_you_mean(str(name), fitting)}"
    )
