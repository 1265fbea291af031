from __future__ import annotations

import itertools
import math
import multiprocessing
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedsink.errors import PrivacyError
from fedsink.privacy.domain import NOISE_MULTIPLIER
from fedsink.privacy.randomness.noise import Stream
from fedsink.privacy.randomness.secure import _CHUNK, SecureStream, _mechanism, grid

SIZES = st.integers(1, 10**8)
SCALES = st.floats(2.0**-126, 2.0**120)


@pytest.mark.medium
@given(SIZES, SCALES, st.floats(1e-3, 2.0**45))
@settings(max_examples=60, deadline=None)
def test_opendp_confirms_the_claimed_concentrated_privacy(size, std, multiplier):
    sensitivity = std / multiplier
    wide, k = grid(std, size, norm=2)
    assert _mechanism(size, wide, k, 2).map(sensitivity) <= (sensitivity / std) ** 2 / 2


@given(SIZES, SCALES, st.floats(1e-3, 2.0**45))
@settings(max_examples=60, deadline=None)
def test_opendp_confirms_the_claimed_pure_privacy(size, scale, multiplier):
    sensitivity = scale / multiplier
    wide, k = grid(scale, size, norm=1)
    assert _mechanism(size, wide, k, 1).map(sensitivity) <= sensitivity / scale


@pytest.mark.parametrize("norm", [1, 2])
def test_without_the_widening_the_claim_would_not_hold(norm):
    size, scale, sensitivity = 47_040, 1.1, 2.0**-36
    _, k = grid(scale, size, norm)
    claim = sensitivity / scale if norm == 1 else (sensitivity / scale) ** 2 / 2
    assert _mechanism(size, scale, k, norm).map(sensitivity) > claim


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("size", [1, 47_040, 10**8])
def test_the_claim_holds_up_to_its_limit_beyond_what_plans_admit(norm, size):
    def kept(multiplier: float) -> bool:
        wide, k = grid(1.0, size, norm)
        claim = 1 / multiplier if norm == 1 else (1 / multiplier) ** 2 / 2
        return _mechanism(size, wide, k, norm).map(1 / multiplier) <= claim

    assert all(map(kept, (1.0, 2.0**24, 2.0**26, NOISE_MULTIPLIER.high, 2.0**45)))
    assert not kept(2.0**48)


@given(SIZES, SCALES)
def test_the_scale_is_never_undercut_and_the_grid_costs_at_most_its_share(size, scale):
    for norm in (1, 2):
        wide, k = grid(scale, size, norm)
        assert scale < wide <= scale * (1 + 1e-6)
        assert size ** (1 / norm) * 2.0**k <= 2.0**-70 * scale * (1 + 1e-12)


@pytest.mark.parametrize("step", [0.1, 0.25, 0.5, 1.0])
def test_the_discrete_gaussian_is_as_near_the_rounded_continuous_one_as_stated(step):
    points = np.arange(-400, 401)
    discrete = stats.norm.pdf(points * step)
    discrete /= discrete.sum()
    rounded = stats.norm.cdf((points + 0.5) * step) - stats.norm.cdf((points - 0.5) * step)
    distance = np.abs(discrete - rounded).sum() / 2
    assert distance <= step**2 / 8
    assert distance > step**2 / 80  # the bound says something


def test_values_are_noised_around_themselves_in_their_order_across_chunks():
    values = torch.arange(2 * _CHUNK + 5, dtype=torch.float64).reshape(1, -1)
    for add in (SecureStream().add_gaussian, SecureStream().add_laplace):
        noised = add(values, 1e-3)
        assert noised.dtype == torch.float32
        assert noised.shape == values.shape
        assert float((noised - values).abs().max()) < 0.05
        assert float((noised - values).abs().max()) > 1e-3


def test_every_shape_is_answered():
    stream = SecureStream()
    for shape in ((), (0,), (0, 3), (2, 0), (2, 3, 4)):
        for add in (stream.add_gaussian, stream.add_laplace):
            assert add(torch.zeros(shape), 1.0).shape == shape


def test_noise_is_relative_to_its_scale_from_the_least_to_the_largest():
    for scale in (2.0**-126, 1e-10, 1e10, 2.0**120):
        noise = SecureStream().add_gaussian(torch.zeros(500), scale).double().numpy() / scale
        assert stats.kstest(noise, "norm").pvalue > 1e-6


def test_noise_is_finer_than_the_values_and_hides_their_low_bits():
    # A multiple of 2^-10 plus coarse noise would keep the value's own residue.
    values = torch.full((2000,), 1 + 2.0**-20)
    residues = torch.remainder(SecureStream().add_laplace(values, 1.0).double() * 2**10, 1.0)
    assert stats.kstest(residues.numpy(), "uniform").pvalue > 1e-6


def test_no_noise_is_drawn_in_floating_point(monkeypatch):
    """Pitfall 10."""

    def forbidden(self, *arguments):
        raise AssertionError("noise in floating point")

    for name in ("normal", "laplace", "add_gaussian", "add_laplace"):
        monkeypatch.setattr(Stream, name, forbidden)
    for add in (SecureStream().add_gaussian, SecureStream().add_laplace):
        assert bool(add(torch.zeros(9), 1.0).any())


@pytest.mark.parametrize(
    ("values", "scales", "message"),
    [
        ([math.nan, math.inf, -math.inf], [1.0], "must be finite: map non-finite values to zero"),
        ([0.0], [0.0, -1.0, math.nan, math.inf], "must be a finite number > 0, received"),
        ([0.0], [1e-40, 1e38], r"must lie in \[2\^-126, 2\^120\], received"),
    ],
)
def test_values_and_scales_that_no_release_can_carry_are_refused(values, scales, message):
    for value, scale in itertools.product(values, scales):
        for add in (SecureStream().add_gaussian, SecureStream().add_laplace):
            with pytest.raises(PrivacyError, match=message):
                add(torch.tensor([0.0, value]), scale)


def test_no_two_streams_or_calls_share_randomness():
    stream = SecureStream()
    drawn = [
        tuple(draw.tolist())
        for source in (stream, stream, SecureStream(), stream.child("a"), stream.child("a"))
        for draw in (
            source.uniform(4),
            source.normal(4),
            source.laplace(4),
            source.add_gaussian(torch.zeros(4), 1.0),
            source.add_laplace(torch.zeros(4), 1.0),
        )
    ]
    assert len({value for draw in drawn for value in draw}) == 4 * len(drawn)


def test_a_child_stream_is_secure_and_needs_a_context():
    assert isinstance(SecureStream().child("image").child(1), SecureStream)
    with pytest.raises(PrivacyError, match="needs a context: name its purpose"):
        SecureStream().child()


def test_threads_never_share_randomness():
    stream, drawn = SecureStream(), []

    def draw() -> None:
        drawn.extend(stream.uniform(50).tolist())
        drawn.extend(stream.add_gaussian(torch.zeros(50), 1.0).tolist())

    threads = [threading.Thread(target=draw) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(drawn) == 800
    assert len(set(drawn)) > 790  # float32 values of 50 draws may coincide


@pytest.mark.skipif(sys.platform == "win32", reason="forks are POSIX")
def test_forked_workers_draw_fresh_noise():
    stream = SecureStream()
    stream.uniform(2)  # both generators are seeded before the fork
    stream.add_gaussian(torch.zeros(2), 1.0)

    def draw(pipe) -> None:
        noise = stream.add_gaussian(torch.zeros(4), 1.0)
        pipe.send([*stream.uniform(4).tolist(), *noise.tolist()])

    context, drawn = multiprocessing.get_context("fork"), []
    for _ in range(2):
        here, there = context.Pipe()
        worker = context.Process(target=draw, args=(there,))
        worker.start()
        drawn.append(here.recv())
        worker.join(30)
        assert worker.exitcode == 0
    here, there = context.Pipe()
    draw(there)
    drawn.append(here.recv())
    assert len({value for values in drawn for value in values}) == 24


def test_without_opendp_the_stream_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    with pytest.raises(PrivacyError, match=r"opendp, .* `secure`: .*`pip install opendp`"):
        SecureStream()
