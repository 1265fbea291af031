"""The operations of a computation."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Operations(TorchDispatchMode):
    """Writes down every tensor operation: its name, and the shapes and types that go in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, ...]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # the names are torch's
        out = func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs, out))
        shapes = [(tuple(t.shape), t.dtype) for t in leaves if isinstance(t, torch.Tensor)]
        self.seen.append((str(func), *shapes))
        return out
