from __future__ import annotations

import math

import pytest
import torch

from fedsink.errors import ConfigError, ModelError
from fedsink.privacy import Stream
from fedsink.server import checkpoint
from fedsink.strategies.base.trainer import OptimizerSettings, Trainer

from ...support.models import weights

LABELS = torch.arange(6) % 3


def step(trainer: Trainer, round: int) -> None:
    z = trainer.generator.latent(6, Stream(b"k", round))
    output = trainer.generator(z, LABELS)
    trainer.step(output, torch.tanh(output.detach()).double() - 0.3, round)


@pytest.mark.parametrize("name", ["adam", "sgd", "rmsprop"])
@pytest.mark.parametrize(("ema", "weight_decay"), [(0.0, 0.0), (0.9, 0.1)])
def test_a_run_goes_on_bit_identically_from_its_state(
    make_generator, tmp_path, name, ema, weight_decay
):
    settings = OptimizerSettings(0.01, warmup=3, ema=ema, weight_decay=weight_decay, name=name)
    through, until = (Trainer(make_generator(), settings, 10) for _ in range(2))
    for round in range(1, 11):
        step(through, round)
    for round in range(1, 5):
        step(until, round)
    checkpoint.save(tmp_path, *until.state())
    resumed = Trainer(make_generator(), settings, 10)
    resumed.load_state(*checkpoint.load(tmp_path))
    for round in range(5, 11):
        step(resumed, round)
    assert torch.equal(weights(resumed.generator), weights(through.generator))
    assert torch.equal(weights(resumed.averaged), weights(through.averaged))
    forgetful = Trainer(make_generator(), settings, 10)
    tensors, values = checkpoint.load(tmp_path)
    forgetful.load_state({k: v for k, v in tensors.items() if not k.startswith(name)}, values)
    for round in range(5, 11):
        step(forgetful, round)
    assert not torch.equal(weights(forgetful.generator), weights(through.generator))


def test_a_state_may_be_loaded_before_the_first_step(make_generator):
    settings = OptimizerSettings(0.01)
    fresh, other = (Trainer(make_generator(), settings, 10) for _ in range(2))
    other.load_state(*fresh.state())
    for trainer in (fresh, other):
        step(trainer, 1)
    assert torch.equal(weights(fresh.generator), weights(other.generator))


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("adam", torch.optim.Adam, {"betas": (0.9, 0.99)}),
        ("sgd", torch.optim.SGD, {"momentum": 0.9}),
        ("rmsprop", torch.optim.RMSprop, {"alpha": 0.99}),
    ],
)
def test_steps_are_the_optimisers_on_the_backpropagated_gradient(
    make_generator, name, kind, options
):
    settings = OptimizerSettings(
        0.01, weight_decay=0.5, warmup=0, ema=0.0, schedule="constant", name=name
    )
    trainer = Trainer(make_generator(), settings, 10)
    model = make_generator()
    optimizer = kind(model.parameters(), lr=0.01, weight_decay=0.5, **options)
    for round in (1, 2):  # the second step tells momentum and decay
        optimizer.zero_grad()
        output = model(model.latent(6, Stream(b"k", round)), LABELS)
        (output * (torch.tanh(output.detach()) - 0.3)).sum().backward()
        optimizer.step()
        step(trainer, round)
    assert torch.allclose(weights(trainer.generator), weights(model), rtol=1e-6, atol=1e-8)


def test_gradients_of_a_former_step_are_forgotten(make_generator):
    settings = OptimizerSettings(1e-3, warmup=0, ema=0.0, schedule="constant")
    trainer = Trainer(make_generator(), settings, 10)
    step(trainer, 1)
    gradient = [p.grad.clone() for p in trainer.generator.parameters() if p.grad is not None]
    output = trainer.generator(trainer.generator.latent(6, Stream(b"k", 1)), LABELS)
    trainer.step(output, torch.zeros(6, 4), 2)
    assert all(float(p.grad.abs().max()) == 0.0 for p in trainer.generator.parameters())  # type: ignore[union-attr]
    assert any(float(g.abs().max()) > 0.0 for g in gradient)


@pytest.mark.parametrize(
    ("schedule", "round", "factor"),
    [
        ("cosine", 1, 0.25),
        ("cosine", 2, 0.5 * 0.5 * (1 + math.cos(math.pi / 8))),
        ("cosine", 4, 0.5 * (1 + math.cos(math.pi * 3 / 8))),
        ("cosine", 5, 0.5),
        ("cosine", 8, 0.5 * (1 + math.cos(math.pi * 7 / 8))),
        ("constant", 1, 0.25),
        ("constant", 4, 1.0),
        ("constant", 8, 1.0),
    ],
)
def test_the_learning_rate_warms_up_linearly_and_decays_as_a_cosine(
    make_generator, schedule, round, factor
):
    settings = OptimizerSettings(0.5, warmup=4, schedule=schedule)
    trainer = Trainer(make_generator(), settings, 8)
    step(trainer, round)
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * factor)


def test_without_an_average_the_generator_itself_is_sampled(make_generator):
    trainer = Trainer(make_generator(), OptimizerSettings(0.01, ema=0.0), 10)
    assert trainer.averaged is trainer.generator
    averaging = Trainer(make_generator(), OptimizerSettings(0.01, ema=0.9), 10)
    step(averaging, 1)
    assert not torch.equal(weights(averaging.averaged), weights(averaging.generator))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0.0}, "optimizer.lr must be a positive number, not 0.0"),
        ({"lr": math.nan}, "optimizer.lr must be a positive number"),
        ({"schedule": "linear"}, "optimizer.schedule is cosine or constant, not 'linear'"),
        ({"name": "lion"}, "optimizer.name is adam, sgd or rmsprop, not 'lion'"),
        ({"warmup": -1}, "optimizer.warmup must be a whole number of at least 0, not -1"),
        ({"ema": 1.0}, r"optimizer.ema must be in \[0, 1\), not 1.0"),
        ({"ema": -0.1}, r"optimizer.ema must be in \[0, 1\)"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        OptimizerSettings(**{"lr": 0.1, **changes})


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_a_training_that_diverges_says_so(make_generator, ema):
    trainer = Trainer(make_generator(), OptimizerSettings(1e38, warmup=0, ema=ema), 10)
    step(trainer, 1)
    with pytest.raises(ModelError, match=r"diverged: .* a lower strategy\.optimizer\.lr"):
        step(trainer, 2)
