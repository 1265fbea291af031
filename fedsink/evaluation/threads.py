"""Limiting the processor threads of the libraries that train classifiers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def limit_threads(threads: int | None) -> Iterator[None]:
    """Run the body with at most `threads` threads in PyTorch and in NumPy's linear algebra.

    None leaves both as they are. The former limits are restored at the end, also after an error.

    Raises:
        ValueError: threads below 1.
    """
    if threads is None:
        yield
        return
    if threads < 1:
        raise ValueError(f"threads must be at least 1 or None; received {threads}.")
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    with threadpool_limits(limits=threads):
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)
