"""The fused step against the engine that asks client by client, which is the oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedsink.clients.shard import Shard
from fedsink.errors import ConfigError, DataError
from fedsink.privacy import PoissonSampler, ReproducibleKey
from fedsink.simulation.fused import FusedStep
from fedsink.strategies.self_term import SelfTermSettings

from ...support.models import weights
from .conftest import (
    CASES,
    RECORDS,
    SEED,
    SERVER_KEY,
    SHAPE,
    fused,
    generator,
    play,
    reference,
    settings,
    shards,
)


@pytest.mark.quick(
    "record, more*", "record, strays*", "*shared noise, c*", "batch as*", "batch, small*"
)
@pytest.mark.parametrize("case", CASES)
def test_every_round_equals_that_of_the_local_engine(case: str) -> None:
    of = settings(**CASES[case])
    strategy, metrics = reference(of)
    step = fused(of, ahead=7)
    for of_round in metrics:
        step.step()
        assert step.metrics() == pytest.approx(of_round, rel=1e-4, abs=1e-4)
    before = weights(generator(of.objective.classes))
    moved = float((weights(strategy.trainer.generator) - before).norm())
    assert moved > 0.1
    for ours, theirs in (
        (step.generator, strategy.trainer.generator),
        (step.trainer.averaged, strategy.generator),
    ):
        assert float((weights(ours) - weights(theirs)).norm()) < 1e-3 * moved


@pytest.mark.slow
@pytest.mark.parametrize("case", ["record, all classes at once", "batch as published"])
def test_compiled_it_is_the_same(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    of = settings(**CASES[case])
    eager = play(fused(of), 6)
    monkeypatch.setenv("FEDSINK_COMPILE", "1")
    compiled = play(fused(of), 6)
    assert compiled._answer._compiled is not None
    torch.testing.assert_close(
        weights(compiled.generator), weights(eager.generator), rtol=0, atol=1e-5
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("draws", ["keyed", "device"])
def test_recorded_it_is_the_same(case: str, draws: Any) -> None:
    of = settings(**CASES[case])
    eager = play(fused(of, "cuda", draws=draws, capture=False), 20)
    recorded = play(fused(of, "cuda", draws=draws), 20)
    assert recorded._once._graph is not None
    torch.testing.assert_close(
        weights(recorded.generator), weights(eager.generator), rtol=0, atol=1e-4
    )
    if draws == "keyed":
        on_cpu = play(fused(of), 20)
        torch.testing.assert_close(
            weights(recorded.generator), weights(on_cpu.generator), rtol=0, atol=1e-3
        )


@pytest.mark.parametrize("clip", ["record", "batch"])
def test_samples_larger_than_the_capacity_are_counted(clip: str) -> None:
    of = settings(clip=clip, capacity=4, rounds=12)
    step = play(fused(of), 12)
    key, expected = ReproducibleKey(SEED), 0
    for client, shard in enumerate(shards(of.clients)):
        for number in range(1, 13):
            candidates = shard.members(of.plan.schedule.label(client, number))
            stream = key.stream("sample", client=client, round=number)
            expected += len(PoissonSampler(of.plan.rate).draw(len(candidates), stream)) > 4
    assert expected > 3
    assert int(step.overflows) == expected


@pytest.mark.parametrize("draws", ["keyed", "device"])
@pytest.mark.parametrize("case", ["record, more clients than classes", "batch as published"])
def test_a_run_that_goes_on_equals_one_that_never_stopped(case: str, draws: Any) -> None:
    of = settings(**CASES[case])
    whole = play(fused(of, draws=draws, ahead=4), 14)
    stopped = play(fused(of, draws=draws, ahead=4), 8)
    tensors, values = stopped.state()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    resumed = fused(of, draws=draws, ahead=4)
    resumed.load_state(tensors, values, 8)
    play(resumed, 6)
    assert resumed.round == 14
    # The history's batches are in another order, and so are sums over them.
    torch.testing.assert_close(
        weights(resumed.trainer.averaged), weights(whole.trainer.averaged), rtol=0, atol=1e-5
    )


def test_it_goes_on_from_a_checkpoint_of_the_local_engine() -> None:
    of = settings()
    strategy, _ = reference(replace(of, plan=replace(of.plan, rounds=24)))
    tensors, values = strategy.state()
    step = fused(of)
    step.load_state(tensors, values, 24)
    ours, _ = step.state()
    assert sorted(ours) == sorted(tensors)
    for name, tensor in tensors.items():
        torch.testing.assert_close(ours[name], tensor)


def test_it_stops_at_the_plans_last_round() -> None:
    step = play(fused(settings(rounds=3)), 3)
    with pytest.raises(ConfigError, match="The plan has 3 rounds, and all of them are done"):
        step.step()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capacity": None}, "fixed number of places: set capacity=auto"),
        ({"uses_per_message": 2}, "uses_per_message is 1, not 2"),
        ({"clip": "batch", "self_term": SelfTermSettings("history", 2)}, "semi_debiased and"),
        ({"self_term": SelfTermSettings("semi_debiased")}, "clip=record with strategy.self_term"),
        ({"draws": "x"}, "engine.draws is keyed or device, not 'x'"),
        ({"ahead": 0}, "engine.ahead must be at least 1, not 0"),
    ],
)
def test_what_cannot_be_fused_is_refused(change: dict[str, Any], message: str) -> None:
    options = {key: change[key] for key in ("draws", "ahead") if key in change}
    others = {key: value for key, value in change.items() if key not in options}
    with pytest.raises(ConfigError, match=message):
        fused(settings(**others), **options)


def test_sums_that_rounding_could_carry_past_the_bound_are_refused() -> None:
    of = settings()
    of = replace(of, objective=replace(of.objective, lam=1e-9))
    with pytest.raises(ConfigError, match="use engine=local, which sums record by record"):
        fused(of)


def test_points_are_refused_for_the_batch_clip() -> None:
    of = settings(clip="batch", view="pixel")
    of = replace(of, view={"name": "pixel", "shape": [16]})
    with pytest.raises(ConfigError, match="needs images"):
        fused(of)


def test_shards_must_fit_the_settings() -> None:
    of, model = settings(), generator()
    empty = Shard(torch.zeros(0, *SHAPE), torch.zeros(0, dtype=torch.int64))
    options: dict[str, Any] = {"seed": SEED, "server_key": SERVER_KEY}
    with pytest.raises(DataError, match="4 shards with a record among them"):
        FusedStep(of, model, [empty] * 4, **options)
    with pytest.raises(DataError, match="4 shards"):
        FusedStep(of, model, shards(4)[:3], **options)
    many = Shard(torch.zeros(RECORDS + 1, *SHAPE), torch.zeros(RECORDS + 1, dtype=torch.int64))
    with pytest.raises(DataError, match="more records than the plan accounts for"):
        FusedStep(of, model, [many, empty, empty, empty], **options)
