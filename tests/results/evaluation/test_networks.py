from __future__ import annotations

import math
import re

import pytest
import torch
from torch import nn
from torch.nn.utils import skip_init

from fedsink.errors import DataError
from fedsink.results.evaluation.networks import (
    PATIENCE,
    SeededDropout,
    epoch_cap,
    fit,
    initialise,
    limit_threads,
    train_cnn,
    train_mlp,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Spy(nn.Module):
    """A linear classifier that remembers which images were shown in each mode."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 2)
        self.scale = scale
        self.trained: list[float] = []
        self.judged: list[float] = []
        with torch.no_grad():
            self.linear.weight.zero_()
            self.linear.bias.zero_()

    def forward(self, x):
        (self.trained if self.training else self.judged).extend(x.flatten().tolist())
        return self.linear(x.flatten(1)) * self.scale


def problem(n: int = 100):
    images = torch.arange(n, dtype=torch.float32).reshape(n, 1, 1, 1)
    return images, torch.randint(0, 2, (n,), generator=seeded(3))


def run(network, images, labels, epochs=30, report=None, split=0):
    return fit(
        network,
        images,
        labels,
        seeded(),
        split,
        epochs=epochs,
        name="spy",
        report=report,
    )


def test_a_tenth_is_held_out_and_never_trained_on():
    network = Spy()
    images, labels = problem()
    run(network, images, labels, epochs=3)
    trained, judged = set(network.trained), set(network.judged)
    assert len(judged) == 10
    assert not trained & judged
    assert trained | judged == set(range(100))
    assert len(network.trained) == 3 * 90


def test_the_split_seed_chooses_the_hold_out():
    images, labels = problem()
    held = []
    for split in (0, 0, 1):
        network = Spy()
        run(network, images, labels, epochs=1, split=split)
        held.append(sorted(network.judged))
    assert held[0] == held[1] != held[2]


def test_stops_ten_epochs_after_the_last_improvement():
    lines: list[str] = []
    images, labels = problem()
    run(Spy(scale=0.0), images, labels, epochs=50, report=lines.append)
    assert len(lines) == 1 + PATIENCE


def test_keeps_the_weights_of_the_best_epoch():
    images, labels = problem()
    network = Spy()
    states, losses = [], []

    def remember(line: str) -> None:
        states.append({k: v.clone() for k, v in network.state_dict().items()})
        losses.append(float(re.search(r"hold-out loss ([\d.]+)", line)[1]))

    run(network, images, labels, epochs=30, report=remember)
    best = losses.index(min(losses))
    assert best < len(losses) - 1, "the test needs a run whose last epoch is not its best"
    assert torch.equal(network.linear.weight, states[best]["linear.weight"])
    assert not torch.equal(network.linear.weight, states[-1]["linear.weight"])


def test_the_classifier_returns_the_largest_logit():
    network = Spy()
    images, labels = problem()
    classify = run(network, images, labels, epochs=2)
    with torch.no_grad():
        network.linear.weight.copy_(torch.tensor([[0.0], [1.0]]))
        network.linear.bias.copy_(torch.tensor([0.0, -50.5]))
    assert torch.equal(classify(images), (images.flatten() > 50).long())


@pytest.mark.parametrize(
    ("images", "shape", "budget", "epochs"),
    [
        (20_000, (1, 28, 28), 300_000, 15),
        (20_000, (1, 8, 8), 300_000, 15),
        (60_000, (1, 28, 28), 300_000, 10),
        (1_400, (1, 28, 28), 300_000, 200),
        (2_000, (3, 32, 32), 300_000, 39),  # 150 · 784 / 3072, rounded up
        (7, (1, 2, 2), 20, 10),
        (60_000, (3, 32, 32), None, 200),
    ],
)
def test_epoch_cap(images, shape, budget, epochs):
    assert epoch_cap(torch.empty(1).expand(images, *shape), budget) == epochs


def test_initialise_is_the_uniform_default_from_the_given_generator():
    before = torch.get_rng_state()
    network = nn.Sequential(
        skip_init(nn.Conv2d, 8, 64, 3), nn.Flatten(), skip_init(nn.Linear, 400, 100)
    )
    initialise(network, seeded(7))
    assert torch.equal(torch.get_rng_state(), before)
    for layer, fan_in in ((network[0], 72), (network[2], 400)):
        bound = 1 / math.sqrt(fan_in)
        assert 0.98 * bound < float(layer.weight.detach().abs().max()) <= bound
        assert float(layer.weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.03)
        assert float(layer.bias.detach().abs().max()) <= bound
    again = nn.Sequential(
        skip_init(nn.Conv2d, 8, 64, 3), nn.Flatten(), skip_init(nn.Linear, 400, 100)
    )
    initialise(again, seeded(7))
    assert torch.equal(network[2].weight, again[2].weight)
    initialise(again, seeded(8))
    assert not torch.equal(network[2].weight, again[2].weight)


@pytest.mark.medium
def test_learns_what_no_linear_map_can():
    """Exclusive or of two pixels: a linear classifier stays at one half."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(0, 2, (800, 1, 1, 2), generator=generator)
    labels = bits.sum(dim=(1, 2, 3)) % 2
    images = bits.float() + 0.1 * torch.randn(bits.shape, generator=generator)
    classify = train_mlp(images, labels, classes=2, seed=0)
    assert float((classify(images) == labels).double().mean()) > 0.98


def test_the_seed_decides_the_network():
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(40, 1, 4, 4, generator=generator)
    labels = torch.randint(0, 10, (40,), generator=generator)
    probe = torch.rand(500, 1, 4, 4, generator=generator)
    first, again, other = (
        train_mlp(images, labels, classes=10, seed=seed)(probe) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def stripes(n: int, depth: int, height: int, width: int):
    """Vertical against horizontal stripes: equal pixel means, told apart only by shape."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 2
    images = torch.rand(n, depth, height, width, generator=generator) * 0.3
    images[labels == 0, :, ::2] += 0.7
    images[labels == 1, :, :, ::2] += 0.7
    return images, labels


@pytest.mark.medium
@pytest.mark.quick("1-28-28")
@pytest.mark.parametrize(
    ("depth", "height", "width"),
    [(1, 4, 4), (1, 8, 8), (3, 15, 16), (1, 28, 28), (3, 32, 32), (2, 33, 17)],
)
def test_learns_shapes_at_every_size_and_depth(depth, height, width):
    images, labels = stripes(40, depth, height, width)
    classify = train_cnn(images, labels, classes=2, seed=0)
    assert float((classify(images) == labels).double().mean()) > 0.95


def test_refuses_images_too_small_to_pool_twice():
    with pytest.raises(DataError, match="at least 4×4 pixels; received 3×8"):
        train_cnn(torch.rand(20, 1, 3, 8), torch.arange(20) % 2, classes=2, seed=0)


def test_dropout_drops_half_rescales_and_rests_in_evaluation():
    dropout = SeededDropout(0.5, torch.Generator().manual_seed(0))
    x = torch.ones(400, 100)
    out = dropout(x)
    assert set(out.unique().tolist()) == {0.0, 2.0}
    # 40,000 fair coins: one standard deviation of the share is 0.0025.
    assert abs(float((out == 0).double().mean()) - 0.5) < 0.0125
    assert dropout.eval()(x) is x


def test_dropout_draws_from_its_own_generator():
    x = torch.ones(50, 50)
    before = torch.get_rng_state()
    first = SeededDropout(0.5, torch.Generator().manual_seed(1))(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, SeededDropout(0.5, torch.Generator().manual_seed(1))(x))
    assert not torch.equal(first, SeededDropout(0.5, torch.Generator().manual_seed(2))(x))


def test_limits_and_restores():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with limit_threads(1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with pytest.raises(RuntimeError, match="inside"), limit_threads(1):
            raise RuntimeError("inside")
        assert torch.get_num_threads() == 2
        with limit_threads(None):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_refuses_no_threads():
    with (
        pytest.raises(ValueError, match="threads must be at least 1 or None; received 0"),
        limit_threads(0),
    ):
        pass
