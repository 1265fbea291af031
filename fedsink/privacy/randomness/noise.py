"""Keyed randomness: every random number in fedsink is a function of a key and a context.

A `Stream` expands ``key, context`` with SHAKE-256 into uniforms, normals, Laplace variates and
permutations. There is no global state, so results do not depend on scheduling, and two clients
can never share noise by being seeded alike.

>>> stream = Stream(b"key", "noise", 3)
>>> bool((stream.uniform(5) == Stream(b"key", "noise", 3).uniform(5)).all())
True
"""

from __future__ import annotations

import hashlib
import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod

import numpy as np
import torch

from fedsink.errors import PrivacyError

_BLOCK_WORDS = 1 << 17  # hashlib refuses more than 2^29 bytes at once; 1 MiB blocks bound memory


def _encode(item: str | int | bytes) -> bytes:
    """Returns type tag, length and content, so that no two contexts have one encoding."""
    if type(item) is int:  # clients and rounds: few different values, used again and again
        return _encode_int(item)
    if isinstance(item, bytes):
        tag, content = b"b", item
    elif isinstance(item, str):
        tag, content = b"s", item.encode()
    else:
        try:
            return _encode_int(operator.index(item))
        except TypeError:
            raise PrivacyError(
                f"a stream's context is made of str, int and bytes, not {type(item).__name__}: "
                "convert the item first."
            ) from None
    return tag + len(content).to_bytes(8, "big") + content


@lru_cache(maxsize=1 << 16)
def _encode_int(item: int) -> bytes:
    content = str(item).encode()
    return b"i" + len(content).to_bytes(8, "big") + content


class Stream:
    """Deterministic random numbers for one key and one context.

    Block i of call c is ``SHAKE-256(key ‖ context ‖ c ‖ i)``; items of the context have their
    length before them, c and i a fixed one;
    successive calls give fresh values. The variates are inverse-CDF transforms of uniforms in
    double precision; they are not hardened against the floating-point attack of Mironov (2012),
    "On significance of the least significant bits for differential privacy": real devices use
    `SecureStream`.

    Guarantees:
        - The same key and context give the same values on every call sequence.
        - Threads that draw from one stream never get the same values.
        - Different keys or contexts give independent values, also where their texts
          concatenate alike.
        - Uniforms lie strictly inside (0, 1), so no variate is infinite.
        - Normals have unit standard deviation and Laplace variates unit scale.

    Args:
        key: Secret or public key bytes; non-empty.
        context: Use of the numbers (purpose, client, round, ...).

    Raises:
        PrivacyError: If the key is empty or the context holds another type.
    """

    def __init__(self, key: bytes, *context: str | int | bytes) -> None:
        if not isinstance(key, bytes) or not key:
            raise PrivacyError("a stream's key must be non-empty bytes: pass for example 32 bytes.")
        self._prefix = _encode(key) + b"".join(map(_encode, context))
        self._calls = itertools.count()  # its next() is atomic, as += is not

    def child(self, *context: str | int | bytes) -> Stream:
        """Returns a fresh stream for this stream's context followed by `context`.

        It does not depend on how many values were already drawn here. Raises PrivacyError for an
        empty context, which would repeat this stream's own values.
        """
        if not context:
            raise PrivacyError("a child stream needs a context: name its purpose.")
        child = Stream.__new__(Stream)
        child._prefix = self._prefix + b"".join(map(_encode, context))
        child._calls = itertools.count()
        return child

    def uniform(self, *shape: int) -> torch.Tensor:
        """Returns uniform variates in the open interval (0, 1), float64, of this shape.

        u = (k + 1/2)·2⁻⁵² with k the top 52 bits of a word: with 53 bits the largest k would
        round to exactly 1.
        """
        return uniforms([self], [_size(shape)]).reshape(shape)

    def normal(self, *shape: int) -> torch.Tensor:
        """Returns standard normal variates Φ⁻¹(u), float64, of the given shape."""
        variates: torch.Tensor = torch.special.ndtri(self.uniform(*shape))
        return variates

    def laplace(self, *shape: int) -> torch.Tensor:
        """Returns Laplace variates of unit scale, float64: −sign(u − ½)·log(1 − 2|u − ½|)."""
        centred = self.uniform(*shape).numpy() - 0.5
        # numpy's log does not depend on how threads cut the array; torch's may differ by an ulp.
        return torch.from_numpy(np.asarray(-np.sign(centred) * np.log1p(-2.0 * np.abs(centred))))

    def permutation(self, n: int) -> torch.Tensor:
        """Returns a uniform permutation of 0, ..., n − 1, int64: the argsort of n 64-bit words."""
        words = np.concatenate([np.empty(0, np.uint64), *self._words(_size((n,)))])
        return torch.from_numpy(np.argsort(words, kind="stable").astype(np.int64))

    def add_gaussian(self, values: torch.Tensor, std: float) -> torch.Tensor:
        """Returns `values` + N(0, std² I), added in float64, as float32 on the values' device.

        A float-safe stream overrides it; `add_gaussian_each` does this for several streams.
        """
        return noised(values, std, self.normal(*values.shape))

    def integers(self, size: int, scale: float) -> torch.Tensor:
        """Returns `size` variates of the discrete Gaussian N_Z(0, scale²), int64.

        Every release of integers gets its noise here: a secure stream overrides it.
        """
        return discrete_gaussian(self.normal(2, size), scale)

    def add_laplace(self, values: torch.Tensor, scale: float) -> torch.Tensor:
        """Returns `values` + Laplace noise of this scale; otherwise like `add_gaussian`."""
        return noised(values, scale, self.laplace(*values.shape))

    def _words(self, count: int) -> Iterator[np.ndarray]:
        """Yields `count` uniform 64-bit words in blocks; one call takes one counter value."""
        call = self._prefix + b"c" + next(self._calls).to_bytes(8, "big")
        for block, start in enumerate(range(0, count, _BLOCK_WORDS)):
            words = min(_BLOCK_WORDS, count - start)
            digest = hashlib.shake_256(call + block.to_bytes(8, "big")).digest(8 * words)
            yield np.frombuffer(digest, dtype="<u8")


def uniforms(streams: Sequence[Stream], counts: Sequence[int]) -> torch.Tensor:
    """Returns the next `counts[i]` uniforms of stream i, one stream after the other, float64.

    Equals `stream.uniform(count)` of each stream, at a cost per value only.
    """
    out = np.empty(sum(counts), dtype=np.float64)
    start = 0
    for stream, count in zip(streams, counts, strict=True):
        for words in stream._words(count):
            out[start : start + words.size] = words >> np.uint64(12)
            start += words.size
    out += 0.5
    out *= 2.0**-52
    return torch.from_numpy(out)


def integers_each(streams: Sequence[Stream], size: int, scale: float) -> torch.Tensor:
    """Returns `stream.integers(size, scale)` of each stream, (len(streams), size) int64."""
    if any(type(stream) is not Stream for stream in streams):  # which override the noise
        return torch.stack([stream.integers(size, scale) for stream in streams])
    drawn = torch.special.ndtri(uniforms(streams, [2 * size] * len(streams)))
    return discrete_gaussian(drawn.reshape(-1, 2, size).transpose(0, 1), scale)


def add_gaussian_each(streams: Sequence[Stream], values: torch.Tensor, std: float) -> torch.Tensor:
    """Returns `stream.add_gaussian(row, std)` of each row of `values` and its own stream."""
    if any(type(stream) is not Stream for stream in streams):  # which override the noise
        rows = [s.add_gaussian(row, std) for s, row in zip(streams, values, strict=True)]
        return torch.stack(rows)
    counts = [values[0].numel()] * len(streams) if len(streams) else []
    return noised(values, std, torch.special.ndtri(uniforms(streams, counts)).reshape(values.shape))


def noised(
    values: torch.Tensor, scale: float | torch.Tensor, variates: torch.Tensor
) -> torch.Tensor:
    """Returns `values` + scale·variates, added in float64 and cast once to float32."""
    return (values.to(torch.float64) + scale * variates.to(values.device)).to(torch.float32)


def _size(shape: tuple[int, ...]) -> int:
    """Returns the number of elements of a shape; refuses negative sizes."""
    if any(length < 0 for length in shape):
        raise PrivacyError(f"a shape must not be negative, received {shape}: pass sizes ≥ 0.")
    return prod(shape)


SMOOTHING = 3.0
"""η, the parameter of the integers' own law around a continuous Gaussian.

Sums of exp(−(k − c)²/(2η²)) over all integers k are √(2π)·η for every c, up to a factor within
1 ± 2·exp(−2π²η²)·(1 + 10⁻²⁰⁰) = 1 ± 1.4·10⁻⁷⁷ (Poisson summation).
"""

# (T + ½)/z as a polynomial in z², see `discrete_gaussian`.
_QUANTILES = (
    2.9860393328229438, 1.3280360185219903e-05, -2.4567460268841473e-08, 5.481847521678669e-11,
    -1.3440652983757216e-13, 3.4472496284945483e-16, -8.305565684752442e-19,
    1.385980110795123e-21, -5.14785080843622e-25,
)  # fmt: skip


def discrete_gaussian(normals: torch.Tensor, scale: float) -> torch.Tensor:
    """Variates of N_Z(0, s²), P(x) ∝ exp(−x²/(2s²)), from two standard normal variates each.

    >>> discrete_gaussian(torch.tensor([[0.0], [0.0]]), 10.0)
    tensor([0])

    With z₁ of them, G = √(s² − η²)·z₁; then x is an integer with P(x | G) ∝ exp(−(x − G)²/(2η²)):
    exactly N_Z(0, s²) but for a factor within 1 ± 10⁻⁷⁶ (see `fedsink.privacy.integer_gaussian`).
    As the normaliser of the second law is the same for every G, P(x ≤ k | G) = F(k − G) with
    F(t) = Σ_{j≥0} exp(−(t − j)²/(2η²))/(√(2π)·η), an increasing function. So x = ⌈G + T⌉ with
    T = F⁻¹(Φ(z₂)), which a polynomial of z₂ gives within 5·10⁻¹³ for |z₂| ≤ 8.3.

    Distance from the law: normals are functions of uniforms with 52 bits, so that |z| ≤ 8.3 and an
    event of probability below 2⁻⁵² has another one; G and T are rounded to 2⁻⁵² of themselves. The
    noise is not hardened against whoever reads low bits: owners' secure noise is OpenDP's.

    `normals` are (2, ...) float64, the variates (...) int64; s is from η to 2⁵⁸.
    """
    if not SMOOTHING <= scale <= 2.0**58:
        raise PrivacyError(
            f"the scale of discrete noise must lie in [{SMOOTHING:g}, 2^58], received {scale!r}: "
            "choose a finer or a coarser granularity."
        )
    first, second = normals
    square = second * second
    quotient = torch.full_like(square, _QUANTILES[-1])
    for coefficient in reversed(_QUANTILES[:-1]):
        quotient.mul_(square).add_(coefficient)
    steps = quotient.mul_(second).sub_(0.5)
    return steps.add_(first, alpha=math.sqrt(scale**2 - SMOOTHING**2)).ceil_().to(torch.int64)
