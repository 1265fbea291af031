"""Fused kernels by torch.compile, which pay for the compiler only where they earn it back.

The pairwise kernels are one pass over the differences x_i − y_j. Each function returns None where
compiled code is not wanted, for the caller's eager code to continue.

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

# About what the first compilation on a machine takes; later ones are read from its cache. So
# "auto" never takes much more than twice the time of the better choice.
_WORTH_SECONDS = 30.0
# Nominal seconds that eager code takes for one coordinate of one pair.
_SECONDS_PER_TERM = 3e-10


class Kernel(Generic[P, R]):
    """A function of tensors with a compiled twin.

    The function is written with n×m×d intermediates that the compiler fuses away, so it is never
    run uncompiled: whoever calls brings eager code for where `run` returns None.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        """Wrap a function; nothing is compiled yet."""
        self._function = function
        self._compiled: Callable[P, R] | None = None
        self._failed = False
        self._seconds = 0.0

    def wanted(self, seconds: float) -> bool:
        """Return whether to run compiled, and count `seconds` of eager work if not.

        Args:
            seconds: what the eager code takes by a fixed rule of the shapes, not by a clock: then
                two runs of the same work switch at the same call, and the switch tells nothing
                of values.

        Raises:
            ConfigError: for a value of FEDSINK_COMPILE other than 0, 1 and auto.
        """
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
        """Return the function's result from compiled code, or None if it cannot be compiled.

        Tensors should be contiguous with every size at least 2: other layouts, and sizes 0 and 1,
        are compiled separately.
        """
        try:
            if self._compiled is None:
                log.info("compiling %s", self._function.__name__)
                # One graph or none, also past the limit of recompilations: a fallback by pieces
                # would build the intermediates.
                self._compiled = cast(
                    Callable[P, R],
                    torch.compile(self._function, dynamic=True, fullgraph=True),
                )
            with torch.no_grad():
                return self._compiled(*args, **kwargs)
        except Exception as error:  # the compiler's own errors have no common type
            self._failed = True
            log.info("%s stays uncompiled: %s", self._function.__name__, error)
            return None


def fits(*tensors: Tensor) -> bool:
    """Return whether tensors suit `Kernel.run`: no derivative asked for, no size below 2."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return False
    return all(size > 1 for t in tensors for size in t.shape)


def absolute_distances(x: Tensor, y: Tensor) -> Tensor | None:
    """Return ‖x_i − y_j‖₁, shape (..., n, m)."""
    pair = _wanted(_l1, x, y)
    return None if pair is None else _finite(_l1.run(*pair), x, y)


def mixed_distances(x: Tensor, y: Tensor, m: float) -> Tensor | None:
    """Return ‖x_i − y_j‖₂² + m‖x_i − y_j‖₁, shape (..., n, m)."""
    pair = _wanted(_mixed, x, y)
    if pair is None:
        return None
    return _finite(_mixed.run(*pair, torch.full((), m, dtype=x.dtype, device=x.device)), x, y)


def sign_field(x: Tensor, y: Tensor, plan: Tensor) -> Tensor | None:
    """Return Σ_j P_ij sign(x_i − y_j), shape (..., n, d)."""
    pair = _wanted(_signs, x, y)
    if pair is None or plan.dim() != max(x.dim(), y.dim()) or not fits(plan):
        return None
    return _signs.run(*pair, plan.contiguous())


@Kernel
def _l1(x: Tensor, y: Tensor) -> Tensor:
    return (x.unsqueeze(-2) - y.unsqueeze(-3)).abs().sum(-1)


@Kernel
def _mixed(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    difference = (x.unsqueeze(-2) - y.unsqueeze(-3)).abs()
    return (difference * (difference + m)).sum(-1)


@Kernel
def _signs(x: Tensor, y: Tensor, plan: Tensor) -> Tensor:
    signs = (x.unsqueeze(-2) - y.unsqueeze(-3)).sign()
    return (signs * plan.unsqueeze(-1)).sum(-2)


def _wanted(kernel: Kernel[..., Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the points as the kernel takes them, None if the eager code is to run."""
    if max(x.dim(), y.dim()) > 3 or not fits(x, y):
        return None
    batch = max([len(points) for points in (x, y) if points.dim() == 3], default=1)
    if not kernel.wanted(_SECONDS_PER_TERM * batch * x.shape[-2] * y.shape[-2] * x.shape[-1]):
        return None
    return _shared(x), _shared(y)


def _shared(points: Tensor) -> Tensor:
    """Return the points contiguous, once if the whole batch shares them, and not as a view.

    The compiler tells views of one tensor from those of another.
    """
    if points.dim() == 3 and points.stride(0) == 0:
        points = points[0]
    if points._base is None and points.is_contiguous():
        return points
    return points.clone(memory_format=torch.contiguous_format)


def _finite(distances: Tensor | None, x: Tensor, y: Tensor) -> Tensor | None:
    """Return None also for distances that overflow: the eager code saturates them."""
    if distances is None or not bool(torch.isfinite(distances.sum())):
        return None
    batch = [len(points) for points in (x, y) if points.dim() == 3]
    if batch and distances.dim() == 2:  # both sides were shared
        distances = distances.expand(max(batch), *distances.shape)
    return distances
