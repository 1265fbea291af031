"""Noise for real devices: float-safe, from the operating system's entropy, drawn once.

`Stream` computes noise in floating point, and Mironov (2012), "On significance of the least
significant bits for differential privacy", reads the un-noised value off the gaps between the
floats it can reach. `SecureStream` draws from the discrete Gaussian and Laplace laws in exact
integer arithmetic instead (OpenDP; Canonne, Kamath, Steinke 2020, Algorithms 1-3).
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from fedsink.errors import PrivacyError
from fedsink.privacy.domain import noise_scale
from fedsink.privacy.randomness.noise import Stream

_SLACK = 2.0**-24
_GRID_BITS = 70
_CHUNK = 1 << 13  # values drawn by one thread at a time


class SecureStream(Stream):
    r"""Randomness of the operating system: nothing repeats, nothing can be recomputed.

    `add_gaussian` and `add_laplace` round the n values to a grid of step h = 2^k and add an
    exactly sampled discrete variate of scale s = (1 + 2⁻²⁴)·std on that grid, with h chosen so
    that √n·h (Gaussian) or n·h (Laplace) is at most 2⁻⁷⁰·std. Why a mechanism of
    sensitivity Δ ≥ 2⁻⁴⁵·std keeps the multiplier std/Δ that it claims (plans admit up to 2⁴⁰,
    `domain.NOISE_MULTIPLIER`):

    - Rounding moves two neighbouring inputs apart by at most √n·h in L2, n·h in L1; so the
      sensitivity on the grid is Δ + 2⁻⁷⁰·std < (1 + 2⁻²⁴)·Δ, and s over that is at least std/Δ.
      OpenDP's own privacy map adds the same terms.
    - The Laplace mechanism on the grid is then (Δ/scale)-differentially private, purely.
    - The discrete Gaussian is (Δ/std)²/2 zero-concentrated (Canonne et al., Theorem 4). The
      accountants know the continuous Gaussian, of which its rounding to the grid is
      post-processing. With a = h/s, ``P(rounded = j) ≥ e^{−a²/8}·P(discrete = j)`` for all j, so
      one coordinate is within total variation a²/8 of it, n of them within n·a²/8 ≤ 2⁻¹⁴³.
      T releases add at most (1 + e^ε)·T·2⁻¹⁴³ to δ, also where they are subsampled and composed:
      below 1e-32 for a million releases at ε = 10.
    - OpenDP's conversion to float64 and ours to float32 see the noised value only:
      post-processing.

    Uniforms, permutations, `normal` and `laplace` come from AES under 32 fresh bytes of the
    operating system for every call. They decide samples, orders and randomized response,
    whose laws have finitely many outcomes, so that there are no low bits to read; but they are
    multiples of 2⁻⁵²: the chance that a record is sampled is within 2⁻⁵² of q, two of n words tie
    with probability below n²·2⁻⁶⁵, and randomized response is off its ε by at most
    2⁻⁵¹·(e^ε + C), 2e-7 at ε = 20 (beyond ε = 35 it could not hold its claim). `normal` and
    `laplace` are ordinary floats: for public randomness, not for a release.

    Not covered: the sampler rejects candidates, so the time of a release depends on its noise.

    Guarantees:
        - No two streams, calls, threads or forked processes share randomness.
        - A child stream is a secure stream.
        - The claimed std or scale is never undercut: the noise is 1 + 2⁻²⁴ times as wide.
        - Values that are not finite are refused before any noise is drawn.

    Raises:
        PrivacyError: If OpenDP is not installed.
    """

    def __init__(self) -> None:
        _opendp()
        super().__init__(b"secure")  # never used: every call draws its own key

    def child(self, *context: str | int | bytes) -> SecureStream:
        """Returns another secure stream; the context is checked, but changes nothing."""
        super().child(*context)
        return SecureStream()

    def add_gaussian(self, values: torch.Tensor, std: float) -> torch.Tensor:
        """Returns `values` + discrete N(0, s² I), s ≥ std, as float32 on the values' device.

        Raises:
            PrivacyError: If a value is not finite or `std` is outside float32's normal range.
        """
        return _release(values, std, norm=2)

    def add_laplace(self, values: torch.Tensor, scale: float) -> torch.Tensor:
        """Returns `values` + discrete Laplace noise of at least this scale; like `add_gaussian`."""
        return _release(values, scale, norm=1)

    def integers(self, size: int, scale: float) -> torch.Tensor:
        """Returns `size` variates of the discrete Gaussian N_Z(0, scale²), exactly, int64.

        OpenDP's mechanism on the integers draws them, with zeros as its values.
        """
        if not 0.0 < scale <= 2.0**58:
            raise PrivacyError(f"the scale of discrete noise must lie in (0, 2^58], not {scale!r}.")
        dp = _opendp()

        def drawn(chunk: np.ndarray) -> np.ndarray:
            domain = dp.vector_domain(dp.atom_domain(T="i64"), size=len(chunk))
            measurement = dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=scale)
            return np.asarray(measurement(chunk.tolist()), np.int64)

        return torch.from_numpy(_by_chunks(drawn, np.zeros(size, np.int64)))

    def _words(self, count: int) -> Iterator[np.ndarray]:
        """Returns `count` uniform 64-bit words by a key of this call: forks cannot share it."""
        yield from Stream(os.urandom(32))._words(count)


def grid(scale: float, size: int, norm: int) -> tuple[float, int]:
    """Returns the widened scale s and the grid's exponent k for `size` values.

    `scale` is the claimed std and `norm` 2 for Gaussian noise, Laplace noise has its scale and 1.
    """
    scale = noise_scale(scale)
    exponent = math.frexp(scale)[1] - 1  # 2^exponent ≤ scale
    terms = -(-(max(1, size) - 1).bit_length() // norm)  # 2^terms ≥ size^(1/norm)
    return scale * (1.0 + _SLACK), exponent - _GRID_BITS - terms


def _release(values: torch.Tensor, scale: float, norm: int) -> torch.Tensor:
    """Returns every value through the discrete mechanism; coordinates are independent."""
    flat = values.detach().to("cpu", torch.float64).flatten().numpy()
    wide, k = grid(scale, flat.size, norm)
    if not np.isfinite(flat).all():
        raise PrivacyError("values to noise must be finite: map non-finite values to zero.")

    def noised(chunk: np.ndarray) -> np.ndarray:
        return np.asarray(_mechanism(len(chunk), wide, k, norm)(chunk.tolist()))

    out = _by_chunks(noised, flat)
    return torch.from_numpy(out).to(torch.float32).reshape(values.shape).to(values.device)


def _by_chunks(sample: Callable[[np.ndarray], np.ndarray], values: np.ndarray) -> np.ndarray:
    """Returns `sample` of all values: OpenDP samples outside Python's lock, so threads help."""
    chunks = [values[start : start + _CHUNK] for start in range(0, values.size, _CHUNK)]
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return np.concatenate([values[:0], *pool.map(sample, chunks)])


def _mechanism(size: int, scale: float, k: int, norm: int) -> Any:
    """Returns OpenDP's measurement for vectors of `size` floats on the grid 2^k."""
    dp = _opendp()
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=size)
    if norm == 2:
        return dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=scale, k=k)
    return dp.m.make_laplace(domain, dp.l1_distance(T=float), scale=scale, k=k)


def _opendp() -> Any:
    try:
        dp = importlib.import_module("opendp.prelude")
    except ModuleNotFoundError:
        raise PrivacyError(
            "secure noise needs the Python package opendp, fedsink's extra `secure`: install it "
            'with `pip install opendp`, or choose noise="fast" in a simulation.'
        ) from None
    dp.enable_features("contrib")
    return dp
