from __future__ import annotations

import hashlib
import itertools
import math
import threading
import time

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import log_ndtr

from fedsink.errors import PrivacyError
from fedsink.privacy.randomness.noise import (
    _BLOCK_WORDS,
    SMOOTHING,
    Stream,
    discrete_gaussian,
    integers_each,
)
from fedsink.privacy.randomness.secure import SecureStream

DRAWS = 20_000


def test_same_key_and_context_give_the_same_values_on_every_call_sequence():
    def sequence() -> list[torch.Tensor]:
        stream = Stream(b"key", "noise", 3, b"x")
        return [stream.uniform(4), stream.normal(2, 3), stream.laplace(5), stream.permutation(6)]

    for first, second in zip(sequence(), sequence(), strict=True):
        assert torch.equal(first, second)


def test_values_are_the_documented_hash_expansion():
    prefix = b"".join(
        tag + len(text).to_bytes(8, "big") + text for tag, text in [(b"b", b"key"), (b"s", b"a")]
    )
    digest = hashlib.shake_256(prefix + b"c" + bytes(8) + bytes(8)).digest(16)
    words = [int.from_bytes(digest[i : i + 8], "little") for i in (0, 8)]
    expected = torch.tensor([((word >> 12) + 0.5) / 2**52 for word in words], dtype=torch.float64)
    assert torch.equal(Stream(b"key", "a").uniform(2), expected)


def test_successive_calls_are_fresh():
    stream = Stream(b"key")
    assert not torch.equal(stream.uniform(8), stream.uniform(8))


def test_different_keys_or_contexts_never_collide_also_where_texts_concatenate_alike():
    streams = [
        Stream(b"key"),
        Stream(b"keyy"),
        Stream(b"k", "ey"),
        Stream(b"key", "ab"),
        Stream(b"key", "a", "b"),
        Stream(b"key", "asb"),  # with the tags of strings and bytes inside
        Stream(b"keysab"),
        Stream(b"key", "", "ab"),
        Stream(b"key", b"ab"),
        Stream(b"key", "1"),
        Stream(b"key", 1),
        Stream(b"key", 11),
        Stream(b"key", -1),
        *(Stream(b"key", client, round) for client in range(20) for round in range(20)),
    ]
    words = [tuple(stream.uniform(2).tolist()) for stream in streams]
    assert len(set(words)) == len(words)


def test_streams_of_neighbouring_contexts_are_uncorrelated():
    draws = np.stack([Stream(b"key", "noise", 0, i).normal(DRAWS).numpy() for i in range(8)])
    for first, second in itertools.combinations(draws, 2):
        assert stats.pearsonr(first, second).pvalue > 1e-4


def test_uniforms_lie_strictly_inside_the_unit_interval(monkeypatch):
    for word in (0, 2**64 - 1):
        extreme = np.array([word], dtype=np.uint64)
        monkeypatch.setattr(Stream, "_words", lambda self, count, words=extreme: iter([words]))
        assert 0 < float(Stream(b"key").uniform(1)) < 1
        assert torch.isfinite(Stream(b"key").normal(1)).all()
        assert torch.isfinite(Stream(b"key").laplace(1)).all()


def test_threads_that_draw_from_one_stream_never_get_the_same_values():
    stream, drawn, together = Stream(b"key"), [], threading.Barrier(4)

    def give_way(frame, event, arg):  # to another thread, at every instruction of the expansion
        frame.f_trace_opcodes = True
        if frame.f_code is Stream._words.__code__:
            time.sleep(0)
        return give_way

    def draw() -> None:
        together.wait()
        drawn.extend(float(stream.uniform(1)) for _ in range(50))

    threading.settrace(give_way)
    try:
        threads = [threading.Thread(target=draw) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.settrace(None)
    assert len(drawn) == len(set(drawn)) == 200


def test_blocks_join_without_repeats_and_a_longer_draw_extends_a_shorter_one():
    n = _BLOCK_WORDS + 1000
    long = Stream(b"key").uniform(n)
    assert torch.equal(Stream(b"key").uniform(500), long[:500])
    assert long.unique().numel() == n


def test_values_do_not_depend_on_the_number_of_threads():
    threads = torch.get_num_threads()
    try:
        results = []
        for number in (1, 2):
            torch.set_num_threads(number)
            stream = Stream(b"key")
            results.append((stream.normal(100_003), stream.laplace(100_003)))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_global_random_state_is_neither_read_nor_changed():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = Stream(b"key").normal(3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(Stream(b"key").normal(3), first)


def test_child_extends_the_context_and_ignores_what_was_drawn():
    parent = Stream(b"key", "a")
    parent.uniform(3)
    child = parent.child("b", 2).normal(4)
    assert torch.equal(child, Stream(b"key", "a", "b", 2).normal(4))
    assert not torch.equal(parent.child("c").normal(4), child)


def test_shapes_and_dtypes():
    stream = Stream(b"key")
    for draw in (stream.uniform, stream.normal, stream.laplace):
        assert draw().shape == ()
        assert draw(2, 0, 3).shape == (2, 0, 3)
        assert draw(2, 3).dtype == torch.float64
    assert stream.permutation(0).shape == (0,)
    assert stream.permutation(3).dtype == torch.int64


@pytest.mark.parametrize("key", [b"", "text", None])
def test_a_bad_key_is_refused(key):
    with pytest.raises(PrivacyError, match="key must be non-empty bytes"):
        Stream(key)


def test_bad_contexts_and_shapes_are_refused():
    with pytest.raises(PrivacyError, match="not float"):
        Stream(b"key", 0.5)
    with pytest.raises(PrivacyError, match="needs a context: name its purpose"):
        Stream(b"key").child()
    with pytest.raises(PrivacyError, match=r"must not be negative, received \(2, -1\)"):
        Stream(b"key").normal(2, -1)


MANY = 400_000


def pmf(scale: float) -> tuple[np.ndarray, np.ndarray]:
    """The integers within 12 scales, and their probabilities under N_Z(0, scale²)."""
    support = np.arange(-math.ceil(12 * scale), math.ceil(12 * scale) + 1)
    weights = np.exp(-(support**2) / (2 * scale**2))
    return support, weights / weights.sum()


def chi_square(values: np.ndarray, scale: float) -> float:
    """p-value of the hypothesis that integers are from N_Z(0, scale²)."""
    support, law = pmf(scale)
    clipped = np.clip(values, support[0], support[-1])
    counts = np.bincount(clipped - support[0], minlength=len(support))
    kept = law * len(values) > 10
    expected = np.append(law[kept], law[~kept].sum()) * len(values)
    found = np.append(counts[kept], counts[~kept].sum())
    return float(stats.chisquare(found, expected).pvalue)


@pytest.mark.parametrize("scale", [SMOOTHING, 3.2, 5.0, 40.0])
def test_variates_have_the_exact_law(scale: float) -> None:
    values = Stream(b"key", "law").integers(MANY, scale).numpy()
    assert chi_square(values, scale) > 1e-6
    assert chi_square(values, scale * 2 / 3) < 1e-12
    assert chi_square(values, scale * 3 / 2) < 1e-12
    assert chi_square(values + 1, scale) < 1e-12 or scale > 10


@pytest.mark.parametrize("scale", [3.0, 1e3, 2.0**30, 2.0**50])
def test_the_variance_is_the_scales_square(scale: float) -> None:
    values = Stream(b"key", "variance").integers(MANY, scale).double()
    spread = (2 / MANY) ** 0.5  # one standard deviation of a variance, relative
    assert float(values.square().mean()) / scale**2 == pytest.approx(1.0, abs=6 * spread)
    assert abs(float(values.mean())) < 6 * scale / MANY**0.5


def test_the_polynomial_inverts_the_law_of_the_integers_around_a_gaussian() -> None:
    """F(t) = Σ_{j≥0} exp(−(t − j)²/2η²)/(√(2π)η) at the polynomial's value is Φ(z)."""
    z = torch.linspace(-8.3, -1e-3, 2000, dtype=torch.float64)
    quotient = torch.stack([torch.zeros_like(z), z])
    # With s = η the Gaussian vanishes: the least integer above T is the variate.
    upper = discrete_gaussian(quotient, SMOOTHING).double().numpy()
    steps = np.arange(0, 140)[:, None]

    def law(t: np.ndarray) -> np.ndarray:
        exponents = -((t - steps) ** 2) / (2 * SMOOTHING**2)
        largest = exponents.max(0)
        total = np.log(np.exp(exponents - largest).sum(0)) + largest
        return np.asarray(total - math.log(math.sqrt(2 * math.pi) * SMOOTHING))

    target = log_ndtr(z.numpy())
    assert (law(upper - 1) <= target + 1e-9).all()
    assert (law(upper) >= target - 1e-9).all()


def test_streams_are_drawn_together_as_each_by_itself() -> None:
    streams = [Stream(b"key", number) for number in range(3)]
    each = torch.stack([Stream(b"key", number).integers(50, 7.0) for number in range(3)])
    together = integers_each(streams, 50, 7.0)
    assert torch.equal(together, each)
    assert len({tuple(row.tolist()) for row in together}) == 3


def test_secure_integers_have_the_exact_law() -> None:
    pytest.importorskip("opendp")
    values = SecureStream().integers(20_000, 4.0)
    assert values.dtype == torch.int64
    assert chi_square(values.numpy(), 4.0) > 1e-9
    assert chi_square(values.numpy(), 4.0 * 2 / 3) < 1e-12
    assert chi_square(values.numpy(), 4.0 * 3 / 2) < 1e-12
    mixed = [Stream(b"key"), SecureStream()]
    assert torch.equal(integers_each(mixed, 9, 5.0)[0], Stream(b"key").integers(9, 5.0))


@pytest.mark.parametrize("scale", [0.0, -3.0, 2.9, math.nan, math.inf, 2.0**59])
def test_a_scale_out_of_range_is_refused(scale: float) -> None:
    with pytest.raises(PrivacyError, match="scale of discrete noise must lie in"):
        discrete_gaussian(torch.zeros(2, 1, dtype=torch.float64), scale)
    if scale != 2.9:
        with pytest.raises(PrivacyError, match="scale of discrete noise must lie in"):
            SecureStream().integers(1, scale)
