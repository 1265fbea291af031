from __future__ import annotations

import math
import re

import pytest
import torch
from torch import nn
from torch.nn.utils import skip_init

from fedsink.evaluation.classifiers.network import PATIENCE, epoch_cap, fit, initialise


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
        generator=seeded(),
        split=seeded(split),
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
    ("images", "budget", "epochs"),
    [
        (20_000, 300_000, 15),
        (60_000, 300_000, 10),
        (1_400, 300_000, 200),
        (7, 20, 10),
        (60_000, None, 200),
    ],
)
def test_epoch_cap(images, budget, epochs):
    assert epoch_cap(images, budget) == epochs


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
