"""A GPU for machines without one: tensors that say they are on `cuda` and compute on the CPU.

PyTorch's fake tensors run every operation with such a tensor first: their rules place the result
and refuse operands on different devices. Then the operation runs on the values. A path that mixes
devices therefore fails as on a GPU, and any other path has the results of the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_GPU = torch.device("cuda", 0)


class OnGpu(Tensor):
    """A tensor that says it is on the GPU."""

    held: Tensor  # its values, on the CPU
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> OnGpu:
        made: OnGpu = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(),
            dtype=held.dtype, device=_GPU,
        )  # fmt: skip
        made.held = held
        return made

    def tolist(self) -> Any:
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} was called where no GPU stands in.")


class StandIn(TorchDispatchMode):
    """Mode in which `cuda` is a device."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0  # that ran on the device
        self._rules = FakeTensorMode()

    def __enter__(self) -> StandIn:
        self._rules.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._rules.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (args, kwargs or {})
        leaves = tree_leaves(given)
        if not any(isinstance(v, OnGpu) or _names_gpu(v) for v in leaves):
            with no_dispatch():
                return func(*args, **(kwargs or {}))
        self.operations += 1
        devices = _devices(func, *given)
        positional, named = tree_map(_held, given)
        with no_dispatch():
            out = func(*positional, **named)
        same = {id(_held(v)): v for v in leaves if isinstance(v, Tensor)}

        def placed(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            device = next(devices)
            if id(value) in same:  # written in place
                return same[id(value)]
            return OnGpu(value) if device.type == "cuda" else value

        return tree_map(placed, out)


def _devices(func: Any, args: Any, kwargs: Any) -> Iterator[torch.device]:
    """Devices of the results; raises RuntimeError where the operands are on several devices."""

    def fake(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )

    try:
        out = func(*tree_map(fake, args), **tree_map(fake, kwargs))
    except (DynamicOutputShapeException, DataDependentOutputException):
        devices = {v.device for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor)}
        if len(devices) > 1:
            raise RuntimeError(f"{func} has operands on {devices}.") from None
        return repeat(devices.pop())
    return iter([v.device for v in tree_leaves(out) if isinstance(v, Tensor)])


def _held(value: Any) -> Any:
    if isinstance(value, OnGpu):
        return value.held
    return torch.device("cpu") if _names_gpu(value) else value


def _names_gpu(value: Any) -> bool:
    return isinstance(value, torch.device) and value.type == "cuda"


@contextmanager
def gpu_standing_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """`cuda` is a device inside; a backward pass, which needs a real one, gives zeros."""

    def gradients(outputs: Tensor, inputs: Tensor, grad_outputs: Tensor, **_: Any) -> Any:
        torch.add(outputs.detach(), grad_outputs)  # on one device, and of one shape
        return (torch.zeros_like(inputs),)

    def backward(points: Tensor, gradient: Tensor) -> None:
        torch.add(points.detach(), gradient)

    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with StandIn() as mode, monkeypatch.context() as patched:
            patched.setattr(torch.cuda, "is_available", lambda: True)
            patched.setattr(torch.cuda, "device_count", lambda: 1)
            patched.setattr(torch.cuda, "empty_cache", lambda: None)
            patched.setattr(torch.autograd, "grad", gradients)
            patched.setattr(Tensor, "backward", backward)
            yield mode
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
