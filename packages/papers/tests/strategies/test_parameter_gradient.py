from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from fedsink_papers.parameter_gradient.answer import parameter_gradient
from fedsink_papers.parameter_gradient.request import ParameterReply, ParameterRequest
from fedsink_papers.parameter_gradient.strategy import ParameterGradient, ParameterGradientSettings
from flwr.app import Message

from fedsink.clients.records.shard import Shard
from fedsink.data.partition import partition
from fedsink.data.sources import load
from fedsink.data.spec import DataSpec
from fedsink.errors import ClientError, ConfigError
from fedsink.models import Generator, build
from fedsink.models.weights import flat_weights
from fedsink.privacy import ReproducibleKey, Stream
from fedsink.server import checkpoint
from fedsink.simulation.grid import client_of
from fedsink.strategies.dp_sinkhorn.self_term import SelfTermSettings
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhornStrategy
from tests.support.playing import play

Make = Callable[..., ParameterGradient]
Grids = Callable[..., Any]

VARIANTS = [
    {"clip": "record", "schedule": "class"},
    {"clip": "record", "schedule": "joint"},
    {"clip": "batch", "schedule": "class"},
    {"clip": "batch", "schedule": "joint", "self_term": "semi_debiased"},
    {"clip": "batch", "schedule": "class", "self_term": "semi_debiased"},
    {"clip": "record", "schedule": "joint", "classes": 1},
]


@pytest.fixture
def make(
    make_central: Callable[..., DPSinkhornStrategy], make_generator: Callable[..., Generator]
) -> Make:
    """The strategy of `make_central`, with its noise on the weights; `batch_norm` is the net's."""

    def strategy(*, batch_norm: bool = False, sigma: float = 1.0, **more: Any) -> ParameterGradient:
        given = make_central(**more).settings
        values = {field.name: getattr(given, field.name) for field in fields(given)}
        values["plan"] = replace(given.plan, noise_multiplier=sigma)
        generator = make_generator(given.objective.classes)
        if batch_norm:
            generator = build(
                "mlp", generator.shape, generator.classes,
                latent_dim=2, hidden=[8], output="linear",
            )  # fmt: skip
        return ParameterGradient(ParameterGradientSettings(**values), generator, b"server")

    return strategy


def asked_of(grid: Any) -> list[ParameterRequest]:
    found = [m for m in grid.asked if m.metadata.message_type == "train.parameter_gradient"]
    return [ParameterRequest.from_record(message.content) for message in found]


def weights(generator: Generator) -> torch.Tensor:
    return flat_weights(generator).detach().clone()


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("batch_norm", [False, True])
def test_without_noise_and_clip_it_takes_the_step_of_dp_sinkhorn(
    make: Make, make_central: Callable[..., DPSinkhornStrategy], make_grid: Grids,
    variant: dict[str, Any], batch_norm: bool,
) -> None:  # fmt: skip
    """JᵀG is linear: where nothing is clipped, both mechanisms see the same gradient."""
    gradients = []
    theirs = make_central(**variant)
    bound = replace(theirs.settings.plan.clip, bound=1e6)  # type: ignore[type-var]
    plan = replace(theirs.settings.plan, clip=bound, noise_multiplier=1e-12)
    ours = make(batch_norm=batch_norm, **variant)
    ours_settings = replace(ours.settings, plan=plan)
    for kind, settings in ((DPSinkhornStrategy, replace(theirs.settings, plan=plan)),
                           (ParameterGradient, ours_settings)):  # fmt: skip
        generator = make(batch_norm=batch_norm, **variant).trainer.generator
        strategy = kind(cast("Any", settings), generator, b"server")
        play(cast("ParameterGradient", strategy), make_grid(), 1)
        gradients.append(torch.cat([p.grad.flatten() for p in generator.parameters()]))  # type: ignore[union-attr]
    assert float(gradients[0].norm()) > 1e-2
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("clip", ["record", "batch"])
def test_without_an_absent_client_it_takes_the_step_of_dp_sinkhorn_without_it(
    make: Make, make_central: Callable[..., DPSinkhornStrategy], make_grid: Grids, clip: str
) -> None:
    """The step holds neither gradient nor self term of a class that no client answered about."""
    gradients = []
    for kind, made in ((DPSinkhornStrategy, make_central), (ParameterGradient, make)):
        settings = made(clip=clip, schedule="class").settings
        bound = replace(settings.plan.clip, bound=1e6)
        plan = replace(settings.plan, clip=bound, noise_multiplier=1e-12)
        generator = make(clip=clip).trainer.generator
        strategy = kind(replace(settings, plan=plan, quorum=2), generator, b"server")
        grid = make_grid()
        grid.change = lambda rs: [r for r in rs if client_of(r.metadata.src_node_id) != 1]
        play(cast("ParameterGradient", strategy), grid, 1)
        assert strategy.absent == [1]
        gradients.append(torch.cat([p.grad.flatten() for p in generator.parameters()]))  # type: ignore[union-attr]
    assert float(gradients[0].norm()) > 1e-2
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-4)


def test_one_round_equals_a_computation_by_hand(make: Make, make_grid: Grids) -> None:
    """Batch clip, class schedule: three clients, a class each, and one Adam step."""
    grid, strategy = make_grid(), make(clip="batch", self_term="semi_debiased", schedule="class")
    model = make(clip="batch").trainer.generator
    play(strategy, grid, 1)
    data = load(DataSpec("tiny", (4,), tuple("abc"), 61), "train")
    deal, key = partition(data.labels, 3, {"name": "iid"}, 0), ReproducibleKey(7)
    total = torch.zeros_like(weights(model), dtype=torch.float64)
    for client, request in enumerate(asked_of(grid)):
        assert request.gradient.label == (client + 1) % 3
        assert torch.equal(request.weights, weights(model))
        assert request.latents.shape == (5 + 2, 2)  # n′ = ⌊5/2⌋
        assert float(request.extra_gradient.norm()) > 0
        total += parameter_gradient(
            request,
            Shard(*data.take(deal[client])),
            lambda purpose, k=client: key.stream(purpose, client=k, round=1),
        )
    adam = torch.optim.Adam(model.parameters(), lr=0.05 * 0.5, betas=(0.9, 0.99))
    flat_weights(model).backward(total.float())
    adam.step()
    torch.testing.assert_close(weights(strategy.trainer.generator), weights(model))


@pytest.mark.quick("2-*")
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("clients", [1, 2, 7])
def test_any_number_of_clients_trains_the_generator(
    make: Make, make_grid: Grids, variant: dict[str, Any], clients: int
) -> None:
    strategy = make(clients=clients, rounds=3, **variant)
    before = weights(strategy.trainer.generator)
    metrics = play(strategy, make_grid(clients))
    assert strategy.round == 3
    assert all(
        record["loss"] > 0 and math.isfinite(record["signal_to_noise"]) for record in metrics
    )
    assert float((weights(strategy.trainer.generator) - before).abs().max()) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("clip", ["record", pytest.param("batch", marks=pytest.mark.slow)])
def test_training_moves_the_generator_to_the_data(make: Make, make_grid: Grids, clip: str) -> None:
    """With hardly any noise the class means come out: 0, 1 and 2 in every coordinate."""
    strategy = make(rounds=250, rate=0.3, lr=0.03, sigma=1e-3, clip=clip)
    before = means(strategy)
    metrics = play(strategy, make_grid())
    assert before.tolist() != pytest.approx([0.0, 1.0, 2.0], abs=0.5)
    assert means(strategy).tolist() == pytest.approx([0.0, 1.0, 2.0], abs=0.25)
    if clip == "record":  # a clipped batch is as long at the end as at the beginning
        losses = [record["loss"] for record in metrics]
        assert sum(losses[-20:]) < 0.5 * sum(losses[:20])


def means(strategy: ParameterGradient) -> torch.Tensor:
    z, labels = strategy.generator.latent(300, Stream(b"k")), torch.arange(3).repeat_interleave(100)
    with torch.no_grad():
        return cast("torch.Tensor", strategy.generator(z, labels)).reshape(3, 400).mean(1)


def test_with_batch_norm_a_client_gets_the_whole_batch(make: Make, make_grid: Grids) -> None:
    """J of a class's rows holds the rows of the others; without BatchNorm they stay away."""
    for batch_norm, rows in ((True, 15), (False, 5)):
        grid = make_grid()
        play(make(batch_norm=batch_norm), grid, 1)
        for request in asked_of(grid):
            assert (len(request.gradient.rows), len(request.latents)) == (5, rows)
            labels = torch.cat([request.gradient.row_labels, request.extra_labels])
            assert labels.bincount().tolist()[: int(labels.max()) + 1].count(5) == rows // 5


@pytest.mark.medium
def test_a_run_goes_on_from_its_checkpoint_bit_by_bit(
    make: Make, make_grid: Grids, tmp_path: Path
) -> None:
    through, until, resumed = (make() for _ in range(3))
    play(through, make_grid())
    play(until, make_grid(), 3)
    checkpoint.save(tmp_path, *until.state())
    resumed.load_state(*checkpoint.load(tmp_path))
    resumed.round = until.round
    play(resumed, make_grid())
    assert torch.equal(weights(resumed.generator), weights(through.generator))


@pytest.mark.parametrize("value", [torch.zeros(3), torch.full((84,), torch.nan)])
def test_answers_that_are_no_finite_gradient_of_the_weights_are_refused(
    make: Make, make_grid: Grids, value: torch.Tensor
) -> None:
    grid, strategy = make_grid(), make()

    def change(replies: list[Message]) -> list[Message]:
        replies[1].content = ParameterReply(value).to_record()
        return replies

    grid.change = change
    size = len(weights(strategy.trainer.generator))
    message = rf"client 1 answered with .* expected finite values of shape \(1, {size}\)"
    with pytest.raises(ClientError, match=message):
        play(strategy, grid, 1)


def test_one_message_holds_one_use(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"strategy\.uses_per_message is 1, not 2"):
        make(uses_per_message=2)


def test_no_row_is_drawn_back(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"Set strategy\.tether=null, not 2\."):
        replace(make().settings, self_term=SelfTermSettings("history", tether=2.0))
