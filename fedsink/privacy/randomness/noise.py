"""Keyed randomness: every random number in fedsink is a function of a key and a context.

A `Stream` expands ``key, context`` with AES into uniforms, normals, Laplace variates and
permutations; `Streams` are those of many clients, drawn from at once. There is no global state, so
results do not depend on scheduling, and two clients can never share noise by being seeded alike.

>>> stream = Stream(b"key", "noise", 3)
>>> bool((stream.uniform(5) == Stream(b"key", "noise", 3).uniform(5)).all())
True
>>> both = Streams(stream, [7, 9])  # the same values as one by one
>>> bool((uniforms(both, [1, 2])[1:] == stream.of(9).uniform(2)).all())
True
"""

from __future__ import annotations

import hashlib
import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from math import prod
from typing import TypeGuard

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedsink.errors import PrivacyError

_AT_ONCE = 1 << 16  # blocks of two words; it bounds the memory and stays in the cache
_CALL_BITS, _BLOCK_BITS = 24, 40

Numbers = Sequence[int] | np.ndarray


def _encode(item: str | int | bytes) -> bytes:
    """Returns type tag, length and content, so that no two contexts have one encoding."""
    if isinstance(item, bytes):
        tag, content = b"b", item
    elif isinstance(item, str):
        tag, content = b"s", item.encode()
    else:
        try:
            tag, content = b"i", str(operator.index(item)).encode()
        except TypeError:
            raise PrivacyError(
                f"a stream's context is made of str, int and bytes, not {type(item).__name__}: "
                "convert the item first."
            ) from None
    return tag + len(content).to_bytes(8, "big") + content


class Stream:
    """Deterministic random numbers for one key and one context.

    Words 2b and 2b + 1 of call c are the block AES-256(K, n ‖ 2⁴⁰c + b), of little-endian words,
    with the key K = SHAKE-256(key ‖ context); items of the context have their length before them.
    n is 0, or k + 1 in the stream `of` client k: so the streams of all clients share a key, and
    never a counter. Successive calls give fresh values. The variates are inverse-CDF transforms of
    uniforms in double precision; they are not hardened against the floating-point attack of Mironov
    (2012), "On significance of the least significant bits for differential privacy": real devices
    use `SecureStream`.

    Guarantees:
        - The same key and context give the same values on every call sequence.
        - Threads that draw from one stream never get the same values.
        - Different keys or contexts give independent values, also where their texts
          concatenate alike.
        - Different clients get independent values, the same ones whoever is drawn with them.
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
        self._prefix, self._number = _encode(key) + b"".join(map(_encode, context)), 0
        self._calls = itertools.count()  # its next() is atomic, as += is not

    def child(self, *context: str | int | bytes) -> Stream:
        """Returns a fresh stream for this stream's context followed by `context`.

        It does not depend on how many values were already drawn here, and is of the same client.
        Raises PrivacyError for an empty context, which would repeat this stream's own values.
        """
        if not context:
            raise PrivacyError("a child stream needs a context: name its purpose.")
        return self._fresh(self._prefix + b"".join(map(_encode, context)), self._number)

    def of(self, client: int) -> Stream:
        """Returns the fresh stream of client 0 ≤ k < 2⁴⁰ under this stream's key and context."""
        if self._number or not 0 <= client < 1 << 40:
            raise PrivacyError(f"clients 0 to 2^40 - 1 have streams, not {client}.")
        return self._fresh(self._prefix, int(client) + 1)

    @staticmethod
    def _fresh(prefix: bytes, number: int) -> Stream:
        stream = Stream.__new__(Stream)
        stream._prefix, stream._number, stream._calls = prefix, number, itertools.count()
        return stream

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
        """Yields `count` uniform 64-bit words in pieces; one call takes one counter value."""
        return _words(self._prefix, next(self._calls), [self._number], [count])


class Streams:
    """Fresh streams of some clients, under one or several streams' keys, drawn from at once.

    Guarantees:
        - Each client's values are those of its own stream, `parent.of(client)`.
        - No value is drawn twice: neither by two calls, nor together and then one by one.
    """

    def __init__(self, parent: Stream, clients: Numbers) -> None:
        self._parts = [(parent, np.asarray(clients, dtype=np.int64))]
        self._calls = itertools.count()

    @classmethod
    def joined(cls, several: Sequence[Streams]) -> Streams:
        """Returns the streams of all of these, from which nothing was drawn."""
        streams = cls.__new__(cls)
        streams._parts, streams._calls = [], itertools.count()
        parts = itertools.chain.from_iterable(some._parts for some in several)
        for _, alike in itertools.groupby(parts, lambda part: part[0]._prefix):
            parents, clients = zip(*alike, strict=True)  # clients of one key are drawn at once
            streams._parts.append((parents[0], np.concatenate(clients)))
        return streams

    def __len__(self) -> int:
        return sum(len(clients) for _, clients in self._parts)

    def child(self, *context: str | int | bytes) -> Streams:
        """Returns the children of these streams."""
        return Streams.joined([Streams(p.child(*context), clients) for p, clients in self._parts])

    def each(self) -> list[Stream]:
        """Returns the streams; from then on nothing is drawn from them together."""
        if next(self._calls):
            raise PrivacyError("these streams were drawn from together: their values are spent.")
        self._calls = itertools.count(1 << _CALL_BITS)
        return [parent.of(int(k)) for parent, clients in self._parts for k in clients]

    def _words(self, counts: Numbers) -> Iterator[np.ndarray]:
        """Yields the next `counts[i]` words of stream i, one stream after the other, in pieces."""
        call, start = next(self._calls), 0
        for parent, clients in self._parts:
            some = counts[start : start + len(clients)]
            yield from _words(parent._prefix, call, clients + 1, some)
            start += len(clients)


class SideBySide(Stream):
    """Streams of several clients as one, for values that lie client by client in the first axis.

    Guarantees:
        - Each client's values are those of its own stream, whoever is drawn with it.
        - A permutation moves no client's values to another one.

    Args:
        streams: one for each client.
        counts: number of each client's rows.
    """

    def __init__(self, streams: Streams, counts: np.ndarray) -> None:
        self._streams, self._counts = streams, counts

    def child(self, *context: str | int | bytes) -> SideBySide:
        """Returns the children of these streams."""
        return SideBySide(self._streams.child(*context), self._counts)

    def uniform(self, *shape: int) -> torch.Tensor:
        """Returns uniforms of a shape whose first axis has the rows of all clients."""
        return uniforms(self._streams, self._of(shape)).reshape(shape)

    def permutation(self, n: int) -> torch.Tensor:
        """Returns a uniform permutation of each client's own places."""
        words = np.concatenate([np.empty(0, np.uint64), *self._streams._words(self._of((n,)))])
        owners = np.repeat(np.arange(len(self._counts)), self._counts)
        return torch.from_numpy(np.lexsort((words, owners)))

    def _of(self, shape: tuple[int, ...]) -> np.ndarray:
        if not shape or shape[0] != self._counts.sum():
            raise PrivacyError(f"clients side by side have {self._counts.sum()} rows, not {shape}.")
        return self._counts * prod(shape[1:])


Several = Streams | Sequence[Stream]


def _words(
    prefix: bytes,
    call: int,
    numbers: Sequence[int] | np.ndarray,
    counts: Sequence[int] | np.ndarray,
) -> Iterator[np.ndarray]:
    """Yields words of one call for each number, in pieces; see `Stream` for the counters."""
    if call >> _CALL_BITS:
        raise PrivacyError(f"a stream gives values {1 << _CALL_BITS} times: make a child of it.")
    key = hashlib.shake_256(prefix).digest(32)
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    counts = np.asarray(counts, dtype=np.int64)
    ends = ((counts + 1) // 2).cumsum()  # of each number's blocks among all of them
    starts, odd = ends - (counts + 1) // 2, counts % 2 == 1
    for low in range(0, int(ends[-1]) if len(ends) else 0, _AT_ONCE):
        high = min(low + _AT_ONCE, int(ends[-1]))
        first, last = np.searchsorted(ends, [low, high - 1], side="right")
        here = slice(first, last + 1)
        each = np.minimum(ends[here], high) - np.maximum(starts[here], low)
        counters = np.empty((high - low, 2), dtype="<u8")
        counters[:, 0] = np.repeat(np.asarray(numbers)[here], each)
        counters[:, 1] = np.arange(low, high) - np.repeat(starts[here], each)
        counters[:, 1] |= call << _BLOCK_BITS
        words = np.frombuffer(cipher.update(counters.tobytes()), dtype="<u8")
        halves = ends[here][odd[here]]
        unused = 2 * (halves[halves <= high] - low) - 1  # second words of odd counts' last blocks
        yield np.delete(words, unused) if unused.size else words


def overridden(streams: Several) -> TypeGuard[Sequence[Stream]]:
    """Tells whether some stream draws by itself, as secure ones do: then each is asked alone."""
    return not isinstance(streams, Streams) and any(type(one) is not Stream for one in streams)


def uniforms(streams: Several, counts: Numbers) -> torch.Tensor:
    """Returns the next `counts[i]` uniforms of stream i, one stream after the other, float64.

    Equals `stream.uniform(count)` of each stream, at a cost per value only.
    """
    pieces: Iterator[np.ndarray]
    if isinstance(streams, Streams):
        pieces = streams._words(counts)
    else:
        pairs = zip(streams, counts, strict=True)
        pieces = itertools.chain.from_iterable(s._words(count) for s, count in pairs)
    out = np.empty(int(np.sum(counts)), dtype=np.float64)
    start = 0
    for words in pieces:
        out[start : start + words.size] = words >> np.uint64(12)
        start += words.size
    out += 0.5
    out *= 2.0**-52
    return torch.from_numpy(out)


def integers_each(streams: Several, size: int, scale: float) -> torch.Tensor:
    """Returns `stream.integers(size, scale)` of each stream, (len(streams), size) int64."""
    if overridden(streams):
        return torch.stack([stream.integers(size, scale) for stream in streams])
    drawn = torch.special.ndtri(uniforms(streams, [2 * size] * len(streams)))
    return discrete_gaussian(drawn.reshape(-1, 2, size).transpose(0, 1), scale)


def add_gaussian_each(streams: Several, values: torch.Tensor, std: float) -> torch.Tensor:
    """Returns `stream.add_gaussian(row, std)` of each row of `values` and its own stream."""
    if overridden(streams):
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
