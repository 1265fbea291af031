"""A function of fixed shapes, compiled where that is wanted and possible."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

import torch

log = logging.getLogger("fedsink.simulation")

P = ParamSpec("P")
R = TypeVar("R")


class Compiled(Generic[P, R]):
    """Calls a function, compiled as one graph for the shapes of its first call.

    `FEDSINK_COMPILE` in the environment decides as for `fedsink.transport.kernels.compiled`. Only
    "auto" (the default) differs: on a GPU it compiles at once, as launching is most of a small
    kernel's time, on a CPU never. Where compiling fails, the function itself continues.

    Args:
        function: free of side effects and of looks at values.
        device: where it computes.
    """

    def __init__(self, function: Callable[P, R], device: torch.device) -> None:
        self._function = function
        mode = os.environ.get("FEDSINK_COMPILE", "auto")
        self._compiled: Callable[P, R] | None = None
        if mode == "1" or (mode == "auto" and device.type == "cuda"):
            self._compiled = torch.compile(function, fullgraph=True, dynamic=False)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function's result."""
        if self._compiled is not None:
            try:
                return self._compiled(*args, **kwargs)
            except Exception as error:  # the compiler's own errors have no common type
                if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                    raise  # what was recorded so far is lost
                log.info("the fused step stays uncompiled: %s", error)
                self._compiled = None
        return self._function(*args, **kwargs)
