"""DPImageBench's networks and its choice of an epoch."""

from __future__ import annotations

import math

import pytest
import torch
from fedsink_papers.evaluation.dpimagebench import (
    NAMES,
    SelectedByNoisedCounts,
    dpimagebench_set,
    residual_network,
)

from fedsink.errors import ConfigError
from fedsink.results.evaluation.sets import TrainingSet


def images(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Two classes that differ by the half that is lit."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 2
    pictures = 0.2 * torch.rand(n, 1, 8, 8, generator=random)
    pictures[labels == 1, :, :4] += 0.6
    pictures[labels == 0, :, 4:] += 0.6
    return pictures, labels


@pytest.mark.parametrize(
    ("name", "millions", "first"), [("resnet", 1.73, 16), ("wrn", 8.95, 16), ("resnext", 34.4, 64)]
)
def test_networks_have_the_published_sizes(name: str, millions: float, first: int) -> None:
    # He et al. 2016, table 6: 1.7M; Zagoruyko and Komodakis 2016, table 4: 8.9M; Xie et al. 2017,
    # table 7, 8×64d: 34.4M.
    with torch.random.fork_rng():
        network = residual_network(name, (3, 32, 32), 10)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count / 1e6 == pytest.approx(millions, rel=0.02)
    assert network[0].weight.shape == (first, 3, 3, 3)  # type: ignore[index]
    spread = network[0].weight.std().item()  # type: ignore[index]
    assert spread == pytest.approx(math.sqrt(2 / (9 * first)), rel=0.15)


@pytest.mark.slow
def test_a_network_learns_and_repeats() -> None:
    before = torch.random.get_rng_state()
    train = SelectedByNoisedCounts("resnet", images(60, 1), math.inf, epochs=12)
    lines: list[str] = []
    classify = train(*images(600), classes=2, seed=0, report=lines.append)
    assert torch.equal(torch.random.get_rng_state(), before)
    heads = [line.rpartition(", about ")[0] for line in lines]
    assert heads == [f"resnet: epoch {epoch} of 12" for epoch in range(1, 13) for _ in range(3)]
    assert lines[-1].endswith(", about 0 s left")
    pictures, labels = images(100, 2)
    assert (classify(pictures) == labels).float().mean() > 0.95
    again = train(*images(600), classes=2, seed=0)
    assert torch.equal(classify(pictures), again(pictures))


@pytest.mark.parametrize(("epsilon", "right"), [(math.inf, True), (1000.0, True), (0.001, False)])
def test_the_noise_has_the_scale_of_one_over_epsilon(
    epsilon: float, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts 10, 50, 30 over three epochs: the second is chosen unless noise is far above them."""
    from fedsink_papers.evaluation import dpimagebench as module

    networks = [torch.nn.Flatten() for _ in range(3)]
    counts = dict(zip(map(id, networks), (10, 50, 30), strict=True))
    monkeypatch.setattr(module, "_epochs", lambda *_: enumerate(networks, 1))
    monkeypatch.setattr(module, "residual_network", lambda *_: torch.nn.Flatten())
    monkeypatch.setattr(module.copy, "deepcopy", lambda network: network)
    chosen = []
    monkeypatch.setattr(module, "logits", lambda network, _: chosen.append(network) or torch.eye(2))
    train = SelectedByNoisedCounts("resnet", images(4), epsilon)
    monkeypatch.setattr(train, "_correct", lambda network, _: counts[id(network)])
    picks = []
    for seed in range(60):
        train(*images(24), classes=2, seed=seed)(images(2)[0])
        picks.append(chosen[-1] is networks[1])
    assert all(picks) if right else 5 < sum(picks) < 40


@pytest.mark.medium
def test_the_noise_is_laplace_noise() -> None:
    train = SelectedByNoisedCounts("resnet", images(4), 0.5)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = torch.tensor([train._noise() for _ in range(4000)])
    # E|x| = 1/ε = 2, sd of the mean 2/√4000: five of them reject 2ε/3 and 3ε/2.
    assert drawn.abs().mean() == pytest.approx(2.0, abs=5 * 2 / math.sqrt(4000))


def test_validation_images_are_a_twelfth_and_are_not_trained_on() -> None:
    pictures, labels = images(120)
    real = TrainingSet.of((pictures, labels), classes=2, origin="real training")
    trainers, rest = dpimagebench_set(real, seed=0, epsilon=1.0)
    assert tuple(trainers) == NAMES
    assert len(rest) == 110
    held = {image.numpy().tobytes() for image in trainers["wrn"]._images}
    assert len(held) == 10
    assert not held & {image.numpy().tobytes() for image in rest.images}


def test_small_pictures_are_refused() -> None:
    real = TrainingSet.of((torch.rand(20, 1, 4, 4), torch.arange(20) % 2), classes=2,
                          origin="real training")  # fmt: skip
    with pytest.raises(ConfigError, match="needs pictures of at least 8×8 pixels"):
        dpimagebench_set(real, 0, 1.0)
