from __future__ import annotations

import torch

from fedsink.evaluation.classifiers.mlp import train_mlp


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
