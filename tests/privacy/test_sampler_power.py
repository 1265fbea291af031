"""Every sampler of every backend has the right law, and the tests would see a wrong one.

Each test accepts the drawn variates and rejects the same variates at 2/3 and 3/2 of the scale.
The secure backend is fresh in every run: an acceptance fails by chance with probability 1e-6, and
samples are so large that a rejection misses its bound with less still (five standard deviations
of the statistic to spare).
"""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats

from fedsink.privacy import (
    BatchClip,
    Gaussian,
    JointSchedule,
    Laplace,
    PoissonSampler,
    PrivacyPlan,
    RandomizedResponse,
    Stream,
)
from fedsink.privacy.randomness.secure import SecureStream

from ..support.laws import assert_law

DRAWS = 250_000  # so many that one half of the expected exceedances of 4σ is rejected
SCALE = 0.37
ACCEPT, REJECT = 1e-6, 1e-9
BACKENDS = {"fast": lambda: Stream(b"key", "power"), "secure": SecureStream}
LAWS = {"gaussian": stats.norm, "laplace": stats.laplace}

backends = pytest.mark.parametrize("backend", BACKENDS)
laws = pytest.mark.parametrize("law", LAWS)


@cache
def noise(backend: str, law: str) -> np.ndarray:
    """Released noise in units of its claimed scale."""
    stream = BACKENDS[backend]()
    add = stream.add_gaussian if law == "gaussian" else stream.add_laplace
    return add(torch.zeros(DRAWS), SCALE).double().numpy() / SCALE


def exceedance(values: np.ndarray, law: str, bound: float) -> float:
    """p-value of how many values lie beyond the bound."""
    beyond = int((np.abs(values) > bound).sum())
    return stats.binomtest(beyond, len(values), 2 * LAWS[law].sf(bound)).pvalue


@pytest.mark.medium
@pytest.mark.quick("*fast*", "gaussian-secure")
@backends
@laws
def test_noise_has_the_claimed_law_and_scale(backend, law):
    assert_law(noise(backend, law), LAWS[law])


@pytest.mark.medium
@backends
@laws
def test_noise_is_centred(backend, law):
    values = noise(backend, law)
    error = LAWS[law].std() / np.sqrt(DRAWS)
    assert abs(values.mean()) < 5 * error
    assert abs((values + 0.05).mean()) > 5 * error


@pytest.mark.medium
@backends
@laws
@pytest.mark.parametrize("std", [3, 4])
def test_tails_are_neither_truncated_nor_of_another_scale(backend, law, std):
    values, bound = noise(backend, law), std * LAWS[law].std()
    assert exceedance(values, law, bound) > ACCEPT
    assert exceedance(np.clip(values, -bound, bound), law, bound) < ACCEPT
    for wrong in (2 / 3, 3 / 2):
        assert exceedance(values * wrong, law, bound) < ACCEPT


@backends
@laws
def test_coordinates_are_uncorrelated(backend, law):
    values = noise(backend, law)
    assert stats.pearsonr(values[:-1], values[1:]).pvalue > ACCEPT
    mixed = values[:-1] + 0.05 * values[1:]
    assert stats.pearsonr(mixed[:-1], mixed[1:]).pvalue < REJECT


@pytest.mark.medium
@backends
def test_mechanisms_release_noise_of_the_scale_they_state(backend):
    plan = PrivacyPlan.solve(
        rate=0.1, clip=BatchClip(0.5), schedule=JointSchedule(), delta=1e-5, sigma=1.1, rounds=10
    )
    gaussian, laplace = Gaussian(2.0, 3.0, 1e-5), Laplace(2.0, 3.0)
    for release, law in (
        (gaussian.privatize, stats.norm(scale=gaussian.scale)),
        (laplace.privatize, stats.laplace(scale=laplace.scale)),
        (
            lambda total, stream: plan.release(plan.clip.clip(total), stream),
            stats.norm(scale=plan.noise_std),
        ),
    ):
        assert_law(release(torch.zeros(400, 50), BACKENDS[backend]()), law)


@backends
def test_uniforms_fill_the_unit_interval(backend):
    values = BACKENDS[backend]().uniform(DRAWS).numpy()
    assert stats.kstest(values, "uniform").pvalue > ACCEPT
    assert stats.kstest(2 / 3 * values, "uniform").pvalue < REJECT
    assert (
        stats.kstest((3 / 2 * values)[values < 2 / 3], stats.uniform(0, 2 / 3).cdf).pvalue < REJECT
    )
    low_bits = (values * 2.0**52).astype(np.int64) & 255
    assert stats.chisquare(np.bincount(low_bits, minlength=256)).pvalue > ACCEPT


@backends
@pytest.mark.parametrize("law", ["normal", "laplace"])
def test_unreleased_variates_have_unit_scale(backend, law):
    drawn = getattr(BACKENDS[backend](), law)(20_000)
    assert_law(drawn, {"normal": stats.norm, "laplace": stats.laplace}[law])


@backends
@pytest.mark.parametrize("rate", [0.01, 0.2])
def test_poisson_samples_have_the_rate(backend, rate):
    drawn = PoissonSampler(rate).draw(DRAWS, BACKENDS[backend]()).numpy()
    assert stats.binomtest(len(drawn), DRAWS, rate).pvalue > ACCEPT
    for wrong in (2 / 3, 3 / 2):
        assert stats.binomtest(len(drawn), DRAWS, rate * wrong).pvalue < REJECT
    assert stats.kstest(drawn / DRAWS, "uniform").pvalue > ACCEPT  # every record alike


@backends
@pytest.mark.parametrize("label", [0, 3, 9])
def test_randomized_response_answers_with_its_probabilities(backend, label):
    response, n = RandomizedResponse(10, 2.0), 40_000
    answers = response.privatize(torch.full((n,), label), BACKENDS[backend]())
    observed = np.bincount(answers.numpy(), minlength=10)

    def p_value(epsilon: float) -> float:
        expected = RandomizedResponse(10, epsilon).log_likelihood().exp()[:, label].numpy()
        return float(stats.chisquare(observed, n * expected).pvalue)

    assert p_value(2.0) > ACCEPT
    for wrong in (2 / 3, 3 / 2):
        assert p_value(2.0 * wrong) < REJECT


@backends
def test_permutations_are_uniform_and_a_naive_shuffle_is_rejected(backend):
    stream, order = BACKENDS[backend](), list(itertools.permutations(range(3)))
    counts, naive = np.zeros(6), np.zeros(6)
    for _ in range(6000):
        drawn = stream.permutation(3).tolist()
        counts[order.index(tuple(drawn))] += 1
    for swaps in itertools.product(range(3), repeat=3):  # every card with a card drawn from all
        cards = [0, 1, 2]
        for i, j in enumerate(swaps):
            cards[i], cards[j] = cards[j], cards[i]
        naive[order.index(tuple(cards))] += 6000 / 27
    assert stats.chisquare(counts).pvalue > ACCEPT
    assert stats.chisquare(naive).pvalue < REJECT
    first = np.array([int(stream.permutation(100)[0]) for _ in range(3000)])
    assert stats.kstest((first + 0.5) / 100, "uniform").pvalue > ACCEPT
