from __future__ import annotations

from typing import Any

import pytest
import torch

from fedsink.errors import ModelError
from fedsink.models import BigGan, build, parameter_count
from fedsink.models.layers import SpectralConvolution
from fedsink.privacy import Stream

SMALL: dict[str, Any] = {"width": 4, "blocks": 2, "latent_dim": 3, "label_embedding": 2}


def test_the_published_sizes() -> None:
    generator = BigGan((3, 32, 32), 2)
    assert (generator.latent_dim, len(generator.blocks)) == (32, 4)
    inner = [tuple(m.weight.shape) for m in generator.modules() if type(m) is SpectralConvolution]
    assert inner == 4 * 3 * [(256, 256, 3, 3)]
    assert generator.first.weight.shape == (256 * 4 * 4, 32 + 32)
    assert parameter_count("biggan", (3, 32, 32), 2) == sum(
        parameter.numel() for parameter in generator.parameters()
    )


@pytest.mark.parametrize(
    ("shape", "blocks", "start"),
    [
        ((3, 32, 32), 4, (4, 4)),
        ((1, 28, 28), 4, (4, 4)),
        ((1, 8, 8), 4, (1, 1)),
        ((1, 8, 8), 1, (4, 4)),
        ((2, 9, 5), 2, (3, 2)),
    ],
)
def test_every_size_is_drawn(shape: tuple[int, ...], blocks: int, start: tuple[int, int]) -> None:
    generator = build("biggan", shape, 3, **SMALL | {"blocks": blocks})
    assert generator.first.out_features == 4 * start[0] * start[1]  # type: ignore[union-attr]
    z, labels = generator.latent(5, Stream(b"z")), torch.arange(5) % 3
    images = generator(z, labels)
    assert images.shape == (5, *shape)
    assert bool(((images > 0.0) & (images < 1.0)).all())
    assert float(images.detach().std(0).mean()) > 1e-3


def test_other_sizes_are_the_middle_of_a_larger_picture() -> None:
    small, large = (build("biggan", (1, side, side), 3, **SMALL) for side in (6, 8))
    large.load_state_dict(small.state_dict())
    z, labels = small.latent(4, Stream(b"z")), torch.arange(4) % 3
    torch.testing.assert_close(small(z, labels), large(z, labels)[:, :, 1:7, 1:7])


def test_the_scale_of_the_blocks_kernels_does_not_matter() -> None:
    """Kernels of blocks are normalised; the layers around them are not."""
    generator = build("biggan", (1, 8, 8), 3, **SMALL)
    z, labels = generator.latent(4, Stream(b"z")), torch.arange(4) % 3
    before = generator(z, labels)
    with torch.no_grad():
        for layer in generator.modules():
            if isinstance(layer, SpectralConvolution):
                layer.weight *= 5.0
    torch.testing.assert_close(generator(z, labels), before)
    with torch.no_grad():
        generator.first.weight *= 5.0  # type: ignore[operator, union-attr]
    assert not torch.allclose(generator(z, labels), before, atol=1e-2)


def test_it_has_no_state_but_its_weights() -> None:
    generator = build("biggan", (1, 8, 8), 3, **SMALL)
    assert set(generator.state_dict()) == {name for name, _ in generator.named_parameters()}


def test_a_described_generator_is_refused_unbuilt() -> None:
    with pytest.raises(ModelError, match="at most 16 blocks, got 1000000"):
        parameter_count("biggan", (1, 8, 8), 3, blocks=1_000_000)
