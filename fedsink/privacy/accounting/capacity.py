"""A fixed batch capacity: at most B sampled records take part, so that sizes and times say nothing.

Where at most B records are sampled, all take part; where more are, some rule that depends on no
record's values keeps B of them. What that costs depends on the clip.

*Batch clip: nothing.* Fix the other records' coins and the coins of the rule. If x is not sampled,
the batch is a function of only these coins, the same with and without x in the data. If x is
sampled, the batch is another one, and two clipped gradients are never further apart than 2Δ, the
sensitivity, whichever records were kept. So the two releases are N(u) against
(1 − q)·N(u) + q·N(v) with ‖u − v‖ ≤ 2Δ, as without a capacity. The same argument with a second
record x' covers replace-one.

*Record clip: an overflow's probability, in δ.* Here a sampled x can displace another record, which
moves the sum by 2Δ instead of Δ. Fix the coins of all *other* records in all rounds; they have the
same law for both data sets. Call them good if fewer than B others are sampled in each of the
`uses` rounds that may touch x. Given good coins no round that holds x overflows, and the run is the
composition of Poisson-subsampled Gaussians, (ε, δ')-indistinguishable. Averaging over the coins,
P(M(D) ∈ S) ≤ e^ε P(M(D') ∈ S) + δ' + P(not good), and by the union bound
P(not good) ≤ uses · P(Binomial(N − 1, q) ≥ B) with N the nominal number of records: a shard that
holds fewer overflows less. The accountant therefore gets δ' = δ − that bound. dp_accounting's
`TruncatedSubsampledGaussianDpEvent` is not used: it holds for one exact data set size and is not
monotone in it, while a shard may hold any number of records up to N.

>>> capacity_for(0.2, nominal_records=600, uses=400, delta=1e-5)
189
"""

from __future__ import annotations

from scipy import stats

from fedsink.values import privacy_checks as checks

_SHARE = 1e-3  # of δ, that an overflow may cost


def overflow_probability(rate: float, capacity: int, nominal_records: int, uses: int) -> float:
    """Returns uses·P(Binomial(N − 1, q) ≥ B), a bound on the chance of meeting a full batch.

    Args:
        rate: q in (0, 1].
        capacity: B ≥ 1.
        nominal_records: N ≥ 1, public; no client takes part with more.
        uses: number of rounds in which one record may take part, ≥ 1.

    Raises:
        PrivacyError: If a value is out of range.
    """
    rate = checks.probability("rate", rate)
    capacity = checks.count("capacity", capacity)
    nominal_records = checks.count("nominal_records", nominal_records)
    one = float(stats.binom.sf(capacity - 1, nominal_records - 1, rate))
    return min(1.0, checks.count("uses", uses) * one)


def capacity_for(rate: float, nominal_records: int, uses: int, delta: float) -> int:
    """Returns the smallest capacity, up to N, whose overflow costs at most δ/1000.

    Args:
        rate: q in (0, 1].
        nominal_records: N ≥ 1, public; no client takes part with more.
        uses: number of rounds in which one record may take part, ≥ 1.
        delta: δ of the whole run.

    Raises:
        PrivacyError: If a value is out of range.
    """
    allowed = _SHARE * checks.failure_probability(delta)
    # A record has only N − 1 others, so a capacity of N never overflows.
    low, high = 0, checks.count("nominal_records", nominal_records)
    while high - low > 1:
        middle = (low + high) // 2
        if overflow_probability(rate, middle, nominal_records, uses) <= allowed:
            high = middle
        else:
            low = middle
    return high
