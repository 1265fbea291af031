"""Oracles of the sieges: exact distances, laws of noise, costs of a refusal."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from fedsink_papers.parameter_gradient.answer import parameter_total
from fedsink_papers.parameter_gradient.request import ParameterRequest
from scipy import stats
from torch import Tensor

from fedsink.clients.answers.dp_sinkhorn import client_total
from fedsink.clients.answers.gs_wgan import architecture, dealt
from fedsink.clients.answers.gs_wgan_critics import CriticMessage, CriticState, critic_totals
from fedsink.clients.records.pool import Pool
from fedsink.clients.records.shard import Shard
from fedsink.privacy import CriticClip, PrivacyPlan, Stream
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.gs_wgan import CriticRequest

Request = GradientRequest | ParameterRequest

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def total_of(request: Request, shard: Shard) -> Tensor:
    """Total that would be released of a shard's records without noise, under the test's coins."""
    coins = Stream(b"test", "sample")
    if isinstance(request, ParameterRequest):
        return parameter_total(request, shard, coins)
    return client_total(request, shard, coins)


def critics_total(request: CriticRequest, shard: Shard) -> Tensor:
    """Total of a shard's new critics in their first round, under the test's coins."""
    critic, training = architecture(request), request.critics.training
    parts = dealt(request, Pool([shard]), slice(0, 1))
    start = CriticState.start(critic, training.critics, request.critics.initial, parts.records)
    shown = CriticMessage(
        request.rows, request.row_labels, request.fakes, request.fake_labels, request.rate
    )
    assert isinstance(request.plan.clip, CriticClip)
    coins = [Stream(b"test", "critic")]
    totals, _ = critic_totals(critic, training, request.plan.clip, shown, parts, [start], coins)
    return totals[0]


def of_everybody(request: Request) -> Request:
    """Returns this request with a rate at which every record takes part."""
    if isinstance(request, ParameterRequest):
        asked = of_everybody(request.gradient)
        assert isinstance(asked, GradientRequest)
        return replace(request, gradient=asked)
    assert isinstance(request.plan, PrivacyPlan)
    return replace(request, plan=replace(request.plan, rate=1.0))


def gaussian_delta(epsilon: float, shift: float) -> float:
    """δ(ε) of normal noise whose mean moves by `shift` standard deviations.

    Balle and Wang 2018, theorem 8: independent of fedsink's accounting.
    """
    if shift == 0.0:
        return 0.0
    near, far = shift / 2 - epsilon / shift, -shift / 2 - epsilon / shift
    return float(stats.norm.cdf(near) - math.exp(min(700.0, epsilon + stats.norm.logcdf(far))))


@cache
def sampled_epsilon(rate: float, multiplier: float, uses: int, delta: float) -> float:
    """A lower bound on ε(δ) of Poisson-sampled normal noise, under add-remove."""
    one = from_gaussian_mechanism(
        multiplier, pessimistic_estimate=False, sampling_prob=rate, use_connect_dots=False,
        value_discretization_interval=1e-3,
    )  # fmt: skip
    return float(one.self_compose(uses).get_epsilon_for_delta(delta))


def assert_law(drawn: np.ndarray, law: Any) -> None:
    """Accepts the standard law, and would reject it two thirds or one and a half times as wide."""
    if drawn.size == 0:
        return
    assert stats.kstest(drawn, law.cdf).pvalue > 1e-6
    assert 1e-6 < _width(drawn, law) < 1 - 1e-6
    if drawn.size >= 400:
        assert _width(2 / 3 * drawn, law) < 1e-6
        assert _width(3 / 2 * drawn, law) > 1 - 1e-6


def _width(drawn: np.ndarray, law: Any) -> float:
    """The quantile of the exact law of Σx² (normal) or 2Σ|x| (Laplace), both χ²."""
    if law is stats.norm:
        return float(stats.chi2.cdf((drawn**2).sum(), drawn.size))
    return float(stats.chi2.cdf(2 * np.abs(drawn).sum(), 2 * drawn.size))


@dataclass
class Cost:
    """Cost of the dearest refusals: processor seconds and megabytes."""

    seconds: float = 0.0
    megabytes: float = 0.0


@contextmanager
def measured() -> Iterator[Cost]:
    """Measures processor seconds and the peak of the memory; only Linux tells the peak."""
    gc.freeze()  # the collector is to look at the message's objects, not at those of the tests
    cost, held, start = Cost(), _reset_peak(), time.process_time()
    yield cost
    cost.seconds = time.process_time() - start
    gc.unfreeze()
    if held is not None:
        cost.megabytes = _kilobytes("VmHWM") / 1e3 - held


def _reset_peak() -> float | None:
    try:
        _CLEAR.write_text("5")
    except OSError:
        return None
    return _kilobytes("VmRSS") / 1e3


def _kilobytes(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])
