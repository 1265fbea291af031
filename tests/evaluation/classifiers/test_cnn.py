from __future__ import annotations

import pytest
import torch

from fedsink.errors import DataError
from fedsink.evaluation.classifiers.cnn import SeededDropout, train_cnn


def stripes(n: int, depth: int, height: int, width: int):
    """Vertical against horizontal stripes: equal pixel means, told apart by shape alone."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 2
    images = torch.rand(n, depth, height, width, generator=generator) * 0.3
    images[labels == 0, :, ::2] += 0.7
    images[labels == 1, :, :, ::2] += 0.7
    return images, labels


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
