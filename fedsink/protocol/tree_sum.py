"""A sum of clients' replies that is the same in every engine, bit for bit.

Integers of shared noise add up exactly, modulo 2^64. Float addition is not associative, so the
order must not depend on the process that adds.
Here the replies of a block of consecutive clients are added one after the other, and the blocks
along the binary tree over their numbers: blocks 2i and 2i+1 first, then pairs of pairs, and so
on. A process with the blocks lo..hi−1 adds those in whole subtrees, and the receiver of the
parts adds the rest.

>>> parts = TreeSum(0, 6)
>>> for block in (0, 1, 1, 2, 5):
...     parts.add(block, torch.tensor([float(block)]))
>>> [(block, float(part)) for block, part in parts.parts()]
[(0, 4.0), (5, 5.0)]
>>> whole = TreeSum()
>>> for block, part in parts.parts():
...     whole.add(block, part)
>>> float(whole.total())
9.0
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCK = 8
"""Consecutive clients of a broadcast whose replies are computed together and added in order.

Floats computed or added together may differ in their last bits from those apart. So a broadcast
is cut only at multiples of this number, however many processes share the work.
"""

FEW = 512
"""So many clients are at least in a block of those below."""


def summed_block(clients: int) -> int:
    """Returns the same for clients whose records are one batch: its cost is one of a block.

    About 32 blocks of all clients, so that as many processes can share them, but none of a few.
    """
    return max(FEW, 1 << (max(clients - 1, 0) // 32).bit_length())


class TreeSum:
    """Adds tensors of blocks of growing numbers along the tree of these numbers.

    Floats are added in float64, integers in int64, of the blocks lo ≤ b < hi (None: to the last
    there is). It holds about log₂ of the number of blocks as partial sums.
    """

    def __init__(self, lo: int = 0, hi: int | None = None) -> None:
        self._lo = lo
        self._hi = hi
        self._parts: list[tuple[int, Tensor]] = []

    def add(self, block: int, values: Tensor) -> None:
        """Adds one more client's values to a block, or the part that another sum returned for it.

        A number below that of the last one, or not of this range, is a ValueError.
        """
        if self._parts and block == self._parts[-1][0]:
            self._add_to_last(values)
            return
        # A copy, because sums are made in place.
        self._append(block, _widened(values, copy=True))

    def add_block(self, block: int, replies: Tensor) -> bool:
        """Adds the float32 or int64 replies of a whole block of clients, (k, ...), at once.

        Floats are added up in float32 first, unless that overflows: a sum of eight loses little
        more than a bit of a reply, and one addition in float64 replaces eight. Returns True if
        every value of the replies is finite.
        """
        if self._parts and block == self._parts[-1][0]:
            raise ValueError(f"Block {block} was added already.")
        total = replies.sum(0)
        finite = math.isfinite(float(total.sum()))
        if not finite:
            total = replies.sum(0, dtype=torch.float64)
            finite = bool(total.isfinite().all())
        self._append(block, total)
        return finite

    def parts(self) -> list[tuple[int, Tensor]]:
        """Returns the sums of whole subtrees, each under the number of its first block.

        All are in float64 or int64, except the sum of a single block, which may still be in
        float32.
        """
        self._merge(64)
        return list(self._parts)

    def total(self) -> Tensor:
        """Returns the sum of what was added, unless a block of another range lies between."""
        parts = self.parts()
        if len(parts) != 1:
            raise ValueError(f"There are {len(parts)} partial sums, not one.")
        return _widened(parts[0][1])

    def _append(self, block: int, values: Tensor) -> None:
        last = self._parts[-1][0] if self._parts else self._lo
        if block < last or (self._hi is not None and block >= self._hi):
            raise ValueError(f"Block {block} cannot be added behind block {last}.")
        if self._parts:
            self._merge(_level(last, block))
        self._parts.append((block, values))

    def _add_to_last(self, values: Tensor) -> None:
        block, total = self._parts.pop()
        total = _widened(total)  # a block's own sum may still be in float32
        total += values
        self._parts.append((block, total))

    def _merge(self, level: int) -> None:
        """Closes the subtrees below this level that hold only blocks of this range."""
        while len(self._parts) > 1:
            (left, _), (right, values) = self._parts[-2:]
            height = _level(left, right)
            start = left >> height << height
            outside = self._hi is not None and start + (1 << height) > self._hi
            if height >= level or start < self._lo or outside:
                return
            self._parts.pop()
            self._add_to_last(values)


def _widened(values: Tensor, *, copy: bool = False) -> Tensor:
    return values.to(torch.float64 if values.is_floating_point() else torch.int64, copy=copy)


def _level(left: int, right: int) -> int:
    """Returns the height of the smallest subtree that holds both."""
    return (left ^ right).bit_length()
