from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from fedsink.audit.privatize_once import audit_uploads, line_plan, plane_plan
from fedsink.clients.privatize_once import privatize
from fedsink.clients.shard import Shard
from fedsink.data.maps import PointBall
from fedsink.errors import ConfigError
from fedsink.privacy import RandomizedResponse, ReproducibleKey, Stream
from fedsink.protocol.privatize_once import LocalPlan

from .conftest import WeakKey

_DELTA = {"laplace": 0.0, "gaussian": 1e-5}


def _audit(mechanism: str, key: Any = None, trials: int = 2000, **options: Any) -> Any:
    plan = line_plan(mechanism, 1.0, _DELTA[mechanism])
    return audit_uploads(plan, key or ReproducibleKey(0), trials=trials, confidence=0.95, **options)


def doubled_range(
    shard: Shard, plan: LocalPlan, stream: Callable[[str], Stream]
) -> tuple[Tensor, Tensor]:
    """The map lets through twice the diameter that the noise was made for."""
    return privatize(Shard(2.0 * shard.images, shard.labels), _wide(plan), stream)


@cache
def _wide(plan: LocalPlan, radius: float = 2.0) -> LocalPlan:
    """The plan with another map, and the noise that it had."""
    wide = replace(plan, map=PointBall(plan.map.norm, radius, plan.map.dimension))
    object.__setattr__(wide.image_mechanism, "scale", plan.image_mechanism.scale)
    return wide


def no_projection(
    shard: Shard, plan: LocalPlan, stream: Callable[[str], Stream]
) -> tuple[Tensor, Tensor]:
    """The records are noised as they are."""
    return privatize(shard, _wide(plan, 1e3), stream)


def own_labels(
    shard: Shard, plan: LocalPlan, stream: Callable[[str], Stream]
) -> tuple[Tensor, Tensor]:
    """Labels leave as they are."""
    return privatize(shard, plan, stream)[0], shard.labels


def half_randomized_labels(
    shard: Shard, plan: LocalPlan, stream: Callable[[str], Stream]
) -> tuple[Tensor, Tensor]:
    """Labels are kept with the probability at which twice the ε would keep them."""
    values, labels = privatize(shard, plan, stream)
    if plan.label_mechanism is not None:
        twice = RandomizedResponse(plan.classes, 2 * plan.label_mechanism.epsilon)
        labels = twice.privatize(shard.labels, stream("label"))
    return values, labels


def same_noise_for_every_record(
    shard: Shard, plan: LocalPlan, stream: Callable[[str], Stream]
) -> tuple[Tensor, Tensor]:
    """Each record is privatized by itself, with a stream that was used before."""
    parts = [
        privatize(Shard(shard.images[i : i + 1], shard.labels[i : i + 1]), plan, stream)
        for i in range(len(shard))
    ]
    return torch.cat([values for values, _ in parts]), torch.cat([labels for _, labels in parts])


@pytest.mark.medium
@pytest.mark.quick("gaussian")
@pytest.mark.parametrize("mechanism", _DELTA)
def test_the_correct_mechanism_is_not_flagged_and_its_bound_is_not_empty(mechanism: str) -> None:
    found = _audit(mechanism)
    assert not any(finding.violated for finding in found)
    assert {finding.claim for finding in found} == {1.0}
    assert max(finding.bound for finding in found) > 0.3


@pytest.mark.medium
@pytest.mark.quick("sensitivity doubled-gaussian", "no noise-gaussian")
@pytest.mark.parametrize("mechanism", _DELTA)
@pytest.mark.parametrize(
    ("trials", "faulty"),
    [
        pytest.param(4000, {"key": WeakKey(0.5)}, id="half the noise"),
        pytest.param(200, {"key": WeakKey(0.0)}, id="no noise"),
        pytest.param(4000, {"release": doubled_range}, id="sensitivity doubled"),
        pytest.param(200, {"release": same_noise_for_every_record}, id="the same noise twice"),
    ],
)
def test_planted_faults_are_caught_at_a_claim_of_one(
    mechanism: str, trials: int, faulty: dict[str, Any]
) -> None:
    assert any(finding.violated for finding in _audit(mechanism, trials=trials, **faulty))


@pytest.mark.medium
@pytest.mark.quick("no projection-gaussian", "own labels-gaussian")
@pytest.mark.parametrize("mechanism", _DELTA)
@pytest.mark.parametrize(
    ("of", "trials", "release"),
    [
        pytest.param("one record beyond the ball", 500, no_projection, id="no projection"),
        pytest.param("one label", 500, own_labels, id="own labels"),
        pytest.param("one label", 4000, half_randomized_labels, id="half randomized"),
    ],
)
def test_faults_of_the_map_and_of_the_label_are_caught_by_the_pair_that_shows_them(
    mechanism: str, of: str, trials: int, release: Any
) -> None:
    found = _audit(mechanism, trials=trials, release=release)
    caught = {finding.audited.split("uploads of ")[1] for finding in found if finding.violated}
    assert caught == {of}


@pytest.mark.parametrize("mechanism", _DELTA)
def test_neighbours_of_the_plane_are_a_diameter_apart_and_have_other_labels(mechanism: str) -> None:
    plan = plane_plan(line_plan(mechanism, 1.0, _DELTA[mechanism]))
    apart = torch.diff(plan.map(torch.tensor([[8.0, 8.0], [-8.0, -8.0]])), dim=0)
    distance = float(torch.linalg.vector_norm(apart, ord=1 if mechanism == "laplace" else 2))
    assert distance == pytest.approx(plan.map.sensitivity, rel=1e-5)
    assert plan.label_mechanism == RandomizedResponse(3, 1.0)
    assert plan.map.dimension == 2


@pytest.mark.medium
def test_an_epsilon_beyond_the_logarithm_of_the_trials_is_not_resolved() -> None:
    found = audit_uploads(
        line_plan("laplace", 35.0, 0.0), ReproducibleKey(0), trials=500, confidence=0.95
    )
    assert all(finding.unresolved and not finding.violated for finding in found)
    assert all(finding.bound == finding.resolution < 5 for finding in found)


def test_what_cannot_be_audited_is_refused() -> None:
    with pytest.raises(ConfigError, match="laplace or gaussian, received 'shuffle'"):
        line_plan("shuffle", 1.0, 0.0)
    with pytest.raises(ConfigError, match="at least 8 trials, received 5"):
        _audit("laplace", trials=5)
