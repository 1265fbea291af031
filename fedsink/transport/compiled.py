"""Functions of tensors compiled by torch.compile once their work pays for the compiler.

`FEDSINK_COMPILE` in the environment chooses: "0" never compiles, "1" compiles at the first call,
"auto" (the default) once a kernel's work would have taken half a minute without. Without a C++
compiler, or where compilation fails, the callers' eager code takes over, with the same results to
rounding.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from fedsink.errors import ConfigError

log = logging.getLogger("fedsink.transport")

P = ParamSpec("P")
R = TypeVar("R")

# About the time of the first compilation on a machine; later ones are read from its cache. So
# "auto" never takes much more than twice the time of the better choice.
_WORTH_SECONDS = 30.0


class Kernel(Generic[P, R]):
    """A function of tensors with a compiled twin."""

    # Its n×m×d intermediates are fused away by the compiler, so it is never run uncompiled: where
    # `wanted` is false or `run` returns None, its caller runs eager code.

    def __init__(self, function: Callable[P, R]) -> None:
        self._function = function
        self._compiled: Callable[P, R] | None = None
        self._failed = False
        self._seconds = 0.0

    def wanted(self, seconds: float) -> bool:
        """Returns whether to run compiled, and counts `seconds` of eager work if not."""
        # By a fixed rule of the shapes, not by a clock: two runs of the same work switch at the
        # same call, and the switch reveals nothing about values.
        # In compiled code and in a recording no compiler can be called.
        if torch.compiler.is_compiling() or (
            torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
        ):
            return False
        mode = os.environ.get("FEDSINK_COMPILE", "auto")
        if mode not in ("0", "1", "auto"):
            raise ConfigError(f'FEDSINK_COMPILE must be 0, 1 or auto, got "{mode}".')
        if mode == "0" or self._failed:
            return False
        if mode == "1" or self._compiled is not None or self._seconds >= _WORTH_SECONDS:
            return True
        self._seconds += seconds
        return False

    def run(self, *args: P.args, **kwargs: P.kwargs) -> R | None:
        """Returns the function's result from compiled code, or None if it cannot be compiled."""
        # Tensors should be contiguous: other layouts, and sizes 0 and 1, are compiled separately.
        try:
            if self._compiled is None:
                log.info("compiling %s", self._function.__name__)
                # One graph or none, also past the limit of recompilations: a fallback by pieces
                # would build the intermediates.
                self._compiled = cast(
                    Callable[P, R], torch.compile(self._function, dynamic=True, fullgraph=True)
                )
            with torch.no_grad():
                return self._compiled(*args, **kwargs)
        except Exception as error:  # the compiler's own errors have no common type
            self._failed = True
            log.info("%s stays uncompiled: %s", self._function.__name__, error)
            return None


def fits(*tensors: Tensor) -> bool:
    """Returns whether tensors suit `Kernel.run`: no derivative asked for, no size below 2."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return False
    return all(size > 1 for t in tensors for size in t.shape)
