"""Draws of the device follow the laws of the keyed ones, which every other engine uses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from fedsink.models import build
from fedsink.privacy import ClassSchedule
from fedsink.simulation.fused import FusedStep
from fedsink.simulation.fused.draws import Draw

from ...support.models import weights
from .conftest import CLASSES, SHAPE, fused, play, settings, shards

BOTH = pytest.mark.parametrize("draws", ["keyed", "device"])


def drawn(step: FusedStep, rounds: int) -> list[Draw]:
    """The draws of the first rounds, each for the class that its round asks about."""
    found = []
    for number in range(rounds):
        if number % step._ahead == 0:
            step._timetable.prepare(number + 1, step._ahead)
            step._draws.prepare(number + 1, step._ahead)
        at = torch.tensor([number % step._ahead])
        found.append(step._draws.draw(at))
    return found


def joint(rounds: int, **more: Any) -> Any:
    return settings(schedule="joint", clients=2, rounds=rounds, **more)


@BOTH
def test_every_record_is_sampled_with_the_rate(draws: Any) -> None:
    """3σ bands around q·T for each record would fail for 2q/3 and 3q/2."""
    rounds, rate = 1500, 0.1
    step = fused(joint(rounds, rate=rate, capacity=60), draws=draws)
    counts = torch.zeros(len(step._records))
    sizes = []
    for draw in drawn(step, rounds):
        for chosen, present in zip(draw.chosen, draw.present, strict=True):
            counts[chosen[present]] += 1
            assert len(chosen[present].unique()) == int(present.sum())
        sizes.append(draw.present.sum(-1))
    deviations = (counts - rounds * rate) / (rounds * rate * (1 - rate)) ** 0.5
    assert float(deviations.abs().amax()) < 4.0
    assert 0.7 < float(deviations.square().mean()) < 1.4
    # The sizes' variance is that of independent records, not of a fixed number of them.
    held = torch.tensor([len(shard) for shard in shards(2)], dtype=torch.float64)
    variances = torch.stack(sizes).to(torch.float64).var(0)
    assert bool(((variances / (held * rate * (1 - rate)) - 1).abs() < 0.2).all())


def test_neighbours_are_sampled_independently() -> None:
    rounds = 4000
    step = fused(joint(rounds, rate=0.3, capacity=90), draws="device")
    taken = torch.zeros(rounds, len(step._records))
    for row, draw in zip(taken, drawn(step, rounds), strict=True):
        row[draw.chosen[draw.present]] = 1.0
    correlations = torch.corrcoef(taken.T) - torch.eye(taken.shape[1])
    assert float(correlations.abs().amax()) < 5.0 / rounds**0.5


@BOTH
def test_a_sample_holds_the_clients_records_of_the_rounds_class(draws: Any) -> None:
    step = fused(settings(rate=1.0, capacity=90), draws=draws)
    held = shards(4)
    for number, draw in enumerate(drawn(step, 6), start=1):
        for client, (chosen, present) in enumerate(zip(draw.chosen, draw.present, strict=True)):
            label = ClassSchedule(CLASSES).label(client, number)
            expected = held[client].images[held[client].labels == label]
            found = step._records.coordinates[chosen[present]]
            assert len(found) == len(expected)
            assert bool((step._records.labels[chosen[present]] == label).all())
        assert int(draw.overflows) == 0


@BOTH
def test_whom_an_overflow_leaves_out_is_no_particular_record(draws: Any) -> None:
    rounds = 1500
    step = fused(joint(rounds, rate=0.5, capacity=3), draws=draws)
    counts = torch.zeros(len(step._records))
    for draw in drawn(step, rounds):
        assert int(draw.overflows) == 2
        assert bool(draw.present.all())
        counts[draw.chosen[draw.present]] += 1
    for of_client in counts.split([len(shard) for shard in shards(2)]):
        expected = rounds * 3 / len(of_client)
        assert float((of_client / expected - 1).abs().amax()) < 0.45


@BOTH
@pytest.mark.parametrize("clip", ["record", "batch"])
def test_releases_carry_the_plans_noise(draws: Any, clip: str) -> None:
    """Without a sample a reply is its self term plus noise; 2σ/3 and 3σ/2 are rejected."""
    of = settings(clip=clip, schedule="joint", rate=1e-12, rounds=60, view="pixel")
    step = fused(of, draws=draws)
    noises = []
    for draw in drawn(step, 60):
        noise = draw.noise.flatten()
        assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-6
        noises.append(noise)
    everything = torch.cat(noises)
    assert float(everything.std()) == pytest.approx(1.0, abs=0.02)
    for scale in (2 / 3, 3 / 2):
        assert stats.kstest((scale * everything).numpy(), "norm").pvalue < 1e-12

    first, second = (_released(step, at) for at in (0, 1))
    difference = (first - second) / 2**0.5
    expected = of.plan.noise_std
    assert float(difference.std()) == pytest.approx(expected, rel=0.12)


def _released(step: FusedStep, at: int) -> Tensor:
    row = torch.tensor([at])
    now = step._timetable.at(row)
    draw = step._draws.draw(row)
    points = torch.full((*now.row_labels.shape, step._view.dimension), 0.5)
    parts = step._self_term(points, now.kinds, now.row_labels)
    return step._release(points, parts, now, draw)


@pytest.mark.parametrize(
    ("law", "low", "mean", "spread"),
    [("unit", 0.0, 0.5, 12**-0.5), ("uniform", -1.0, 0.0, 3**-0.5), ("normal", -9.0, 0.0, 1.0)],
)
def test_latents_follow_the_generators_law(
    law: Any, low: float, mean: float, spread: float
) -> None:
    model = build("mlp", SHAPE, CLASSES, latent_dim=50, latent_law=law)
    for draws in ("keyed", "device"):
        options: Any = {"seed": 1, "server_key": b"k", "draws": draws}
        step = FusedStep(settings(), model, shards(4), **options)
        z = torch.cat([draw.latents for draw in drawn(step, 20)])
        assert z.dtype == torch.float32
        assert low <= float(z.amin())
        assert float(z.mean()) == pytest.approx(mean, abs=0.05)
        assert float(z.std()) == pytest.approx(spread, rel=0.05)


def test_draws_of_the_device_depend_on_the_seed_and_nothing_else() -> None:
    of = settings(rounds=6)
    first, again, other = (
        play(fused(of, draws="device", seed=seed), 6).generator for seed in (1, 1, 2)
    )
    before = torch.random.get_rng_state()
    assert bool((weights(first) == weights(again)).all())
    assert not bool((weights(first) == weights(other)).all())
    assert bool((torch.random.get_rng_state() == before).all())


@pytest.mark.slow
def test_draws_of_the_device_train_as_well_as_the_keyed_ones() -> None:
    of = settings(rounds=150)
    of = replace(of, plan=replace(of.plan, noise_multiplier=0.05))
    distances = []
    for draws in ("keyed", "device"):
        step = play(fused(of, draws=draws), 150)
        labels = torch.arange(CLASSES).repeat_interleave(20)
        z = torch.rand(60, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
        with torch.no_grad():
            made = step.trainer.averaged(z, labels).flatten(1)
        held = torch.cat([shard.images for shard in shards(4)]).flatten(1)
        owned = torch.cat([shard.labels for shard in shards(4)])
        means = torch.stack([held[owned == label].mean(0) for label in range(CLASSES)])
        distances.append(float((made - means[labels]).norm(dim=1).mean()))
    untrained = float((0.5 - means).norm(dim=1).mean())
    assert max(distances) < 0.8 * untrained
    assert distances[1] == pytest.approx(distances[0], rel=0.2)
