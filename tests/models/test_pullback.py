from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedsink.models import Generator, build
from fedsink.models.pullback import flat_weights, pullback
from fedsink.privacy import Stream

KINDS: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("mlp", (4,), {"hidden": [5], "output": "linear", "batch_norm": False}),
    ("mlp", (4,), {"hidden": [5], "output": "linear"}),
    ("dct_mlp", (1, 6, 6), {"hidden": [7], "per_class_first_layer": True}),
    ("dcgan", (1, 28, 28), {"width": 2}),
    ("biggan", (1, 6, 6), {"width": 4, "blocks": 1}),
    ("conv", (1, 6, 7), {"hidden": 5, "maps": [3, 2]}),
]


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0]}-{len(kind[2])}")
def generator(request: pytest.FixtureRequest) -> Generator:
    name, shape, options = request.param
    return build(name, shape, 3, generator=torch.Generator().manual_seed(2), **options)


def view(images: Tensor) -> Tensor:
    return 2.0 * images.flatten(1)


def test_it_is_what_autograd_gives_for_the_modules_own_weights(generator: Generator) -> None:
    """With BatchNorm as well: J holds how rows shape one another."""
    z, labels = generator.latent(6, Stream(b"z")), torch.arange(6) % 3
    pull = pullback(generator, flat_weights(generator), z, labels, view)
    random = torch.Generator().manual_seed(0)
    for _ in range(2):  # the graph serves more than once
        rows = view(generator(z, labels))
        v = torch.randn(rows.shape, generator=random)
        rows.backward(v)
        expected = torch.cat([p.grad.flatten() for p in generator.parameters()])  # type: ignore[union-attr]
        generator.zero_grad()
        torch.testing.assert_close(pull(v), expected)
        assert float(expected.norm()) > 0.1


def test_it_belongs_to_the_weights_that_are_given(generator: Generator) -> None:
    """The generator lends its architecture, and keeps its own weights."""
    z, labels = generator.latent(6, Stream(b"z")), torch.arange(6) % 3
    before = flat_weights(generator).detach().clone()
    other = before + 0.1 * torch.randn(len(before), generator=torch.Generator().manual_seed(1))
    v = torch.ones_like(view(generator(z, labels)))
    found = pullback(generator, other, z, labels, view)(v)
    assert torch.equal(flat_weights(generator), before)
    assert all(parameter.grad is None for parameter in generator.parameters())
    torch.nn.utils.vector_to_parameters(other, generator.parameters())
    torch.testing.assert_close(found, pullback(generator, other, z, labels, view)(v))
    assert not torch.allclose(found, pullback(generator, before, z, labels, view)(v))


def test_flat_weights_lead_a_gradient_to_every_parameter(generator: Generator) -> None:
    weights = flat_weights(generator)
    gradient = torch.arange(len(weights), dtype=torch.float32)
    weights.backward(gradient)
    found = torch.cat([p.grad.flatten() for p in generator.parameters()])  # type: ignore[union-attr]
    assert torch.equal(found, gradient)
