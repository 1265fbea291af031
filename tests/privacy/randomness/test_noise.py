from __future__ import annotations

import hashlib
import itertools
import math
import threading
import time

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats
from scipy.special import log_ndtr

from fedsink.errors import PrivacyError
from fedsink.privacy.randomness import noise
from fedsink.privacy.randomness.noise import (
    SMOOTHING,
    SideBySide,
    Stream,
    Streams,
    discrete_gaussian,
    integers_each,
    uniforms,
)
from fedsink.privacy.randomness.secure import SecureStream

DRAWS = 20_000


def test_same_key_and_context_give_the_same_values_on_every_call_sequence():
    def sequence() -> list[torch.Tensor]:
        stream = Stream(b"key", "noise", 3, b"x")
        return [stream.uniform(4), stream.normal(2, 3), stream.laplace(5), stream.permutation(6)]

    for first, second in zip(sequence(), sequence(), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("client", [None, 0, 7, 2**40 - 1])
def test_values_are_the_documented_expansion(client: int | None) -> None:
    prefix = b"".join(
        tag + len(text).to_bytes(8, "big") + text for tag, text in [(b"b", b"key"), (b"s", b"a")]
    )
    stream, number = Stream(b"key", "a"), 0
    if client is not None:
        stream, number = stream.of(client), client + 1
    stream.uniform(3)
    counter = number.to_bytes(8, "little") + (1 << 40).to_bytes(8, "little")  # of the second call
    key = algorithms.AES(hashlib.shake_256(prefix).digest(32))
    block = Cipher(key, modes.ECB()).encryptor().update(counter)
    words = [int.from_bytes(block[i : i + 8], "little") for i in (0, 8)]
    expected = torch.tensor([((word >> 12) + 0.5) / 2**52 for word in words], dtype=torch.float64)
    assert torch.equal(stream.uniform(2), expected)


@pytest.mark.parametrize("at_once", [1, 2, 3, 7, 1 << 16])
def test_streams_give_each_client_its_own_values_whoever_is_drawn_with_it(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "_AT_ONCE", at_once)
    one, two = Stream(b"key", "a"), Stream(b"key", "b")
    clients, counts = [5, 0, 2**40 - 1, 7, 4, 100], [3, 0, 1, 12, 1, 4]
    for streams, own in (
        (Streams(one, clients), [one.of(k) for k in clients]),
        (
            Streams.joined([Streams(one, clients[:2]), Streams(two, clients[2:])]),
            [one.of(k) for k in clients[:2]] + [two.of(k) for k in clients[2:]],
        ),
    ):
        assert len(streams) == len(own)
        for _ in range(2):  # calls
            expected = [stream.uniform(n) for stream, n in zip(own, counts, strict=True)]
            assert torch.equal(uniforms(streams, counts), torch.cat(expected))
    assert uniforms(Streams(one, []), []).shape == (0,)


def test_clients_side_by_side_have_the_values_of_their_own_streams() -> None:
    parent, clients, counts = Stream(b"key"), [4, 0, 9], np.array([3, 0, 2])
    together = SideBySide(Streams(parent, clients), counts)
    own = [parent.of(k) for k in clients]
    for draw in (
        lambda stream, n: stream.uniform(n, 3),
        lambda stream, n: stream.laplace(n),
        lambda stream, n: stream.add_gaussian(torch.ones(n, 2), 2.0),
        lambda stream, n: stream.child("labels").uniform(n),
    ):
        each = [draw(stream, int(n)) for stream, n in zip(own, counts, strict=True)]
        assert torch.equal(draw(together, 5), torch.cat(each))
    order = SideBySide(Streams(parent, clients), counts).permutation(5)
    first, _, last = (
        parent.of(k).permutation(int(n)) for k, n in zip(clients, counts, strict=True)
    )
    assert torch.equal(order, torch.cat([first, 3 + last]))
    with pytest.raises(PrivacyError, match=r"side by side have 5 rows, not \(2, 5\)"):
        together.normal(2, 5)


def test_no_value_is_drawn_together_and_one_by_one() -> None:
    streams = Streams(Stream(b"key"), [3, 1])
    assert torch.equal(streams.each()[1].uniform(2), Stream(b"key").of(1).uniform(2))
    for again in (streams.each, lambda: uniforms(streams, [1, 1])):
        with pytest.raises(PrivacyError):
            again()
    drawn = Streams(Stream(b"key"), [3, 1])
    uniforms(drawn, [1, 1])
    with pytest.raises(PrivacyError, match="their values are spent"):
        drawn.each()


def test_no_two_clients_share_a_value_with_each_other_or_with_their_parent() -> None:
    parent = Stream(b"key", "a")
    streams = Streams(parent, range(2000))
    drawn = [
        *uniforms(streams, [3] * 2000).tolist(),
        *uniforms(streams, [1] * 2000).tolist(),  # a second call
        *(float(parent.child("c").of(k).uniform(1)) for k in range(100)),
        *parent.uniform(4000).tolist(),
        *parent.of(2000).child("b").uniform(10).tolist(),
        *parent.child("b").uniform(10).tolist(),
    ]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("client", [-1, 2**40])
def test_a_client_beyond_the_counters_is_refused(client: int) -> None:
    with pytest.raises(PrivacyError, match=f"have streams, not {client}"):
        Stream(b"key").of(client)
    with pytest.raises(PrivacyError, match="streams, not 3"):
        Stream(b"key").of(3).of(3)


def test_a_stream_ends_before_its_counters_repeat() -> None:
    stream = Stream(b"key")
    stream._calls = itertools.count(2**24 - 1)
    stream.uniform(1)
    with pytest.raises(PrivacyError, match="make a child of it"):
        stream.uniform(1)


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


def test_pieces_join_without_repeats_and_a_longer_draw_extends_a_shorter_one():
    n = 2 * noise._AT_ONCE + 1001
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
