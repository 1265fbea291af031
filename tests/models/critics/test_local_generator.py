from __future__ import annotations

import torch
from torch.nn import functional

from fedsink.models.critics import LocalGenerator
from fedsink.privacy import Stream

D, CLASSES, NETWORKS, PAIRS = 5, 3, 4, 400
LOCAL = LocalGenerator(D, CLASSES, scale=7.0)


def problem() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    weights = torch.stack([LOCAL.initial(Stream(b"test", m)) for m in range(NETWORKS)])
    uniform = Stream(b"test", "latents").uniform(NETWORKS, PAIRS, LOCAL.latent)
    labels = torch.arange(NETWORKS * PAIRS).reshape(NETWORKS, PAIRS) % CLASSES
    return weights, uniform, labels


def test_points_are_those_of_torch_layers():
    weights, uniform, labels = problem()
    weights += 0.1  # biases that are not zero
    found = LOCAL.points(weights, uniform, labels)
    assert found.shape == (NETWORKS, PAIRS, D)
    for m in range(NETWORKS):
        own = {name: array[m] for name, array in LOCAL.arrays(weights).items()}
        hot = functional.one_hot(labels[m], CLASSES).float()
        x = torch.cat([2.0 * uniform[m].float() - 1.0, hot], -1)
        x = functional.leaky_relu(x @ own["first"], 0.2)
        x = functional.leaky_relu(x @ own["second"] + own["bias"], 0.2)
        x = (x @ own["last"] + own["last_bias"]) * 7.0 / D**0.5
        torch.testing.assert_close(found[m], x)


def test_points_are_about_as_long_as_records_from_the_start():
    lengths = LOCAL.points(*problem()).norm(dim=-1)
    assert 7.0 / 3.0 < float(lengths.mean()) < 7.0 * 3.0


def test_a_generators_points_are_its_own_weights_alone():
    weights, uniform, labels = problem()
    other = weights.clone()
    other[1] = torch.nan
    same = [0, 2, 3]
    found, moved = (LOCAL.points(w, uniform, labels) for w in (weights, other))
    assert torch.equal(found[same], moved[same])
    assert not moved[1].isfinite().any()
