from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedsink.errors import ModelError
from fedsink.models import Ema, Generator, build
from fedsink.models.weights import flat_weights, pullback
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
    """With BatchNorm too: J includes the effect of rows on each other."""
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
    """The generator gives only its architecture; its weights do not change."""
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


# The moving average


def make(classes: int = 2) -> Generator:
    return build("mlp", (2,), classes, hidden=[3], output="linear")


def fill(generator: Generator, value: float) -> None:
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.fill_(value)


def averages(ema: Ema) -> list[float]:
    values = torch.cat([p.flatten() for p in ema.model.parameters()])
    return sorted(set(values.tolist()))


def test_the_warm_up_and_the_limit_of_the_decay() -> None:
    generator = make()
    fill(generator, 0.0)
    ema = Ema(generator, 0.5)
    expected = 0.0
    for t in range(30):
        fill(generator, float(t + 1))
        ema.update(generator)
        decay = min(0.5, (1 + t) / (10 + t))
        expected = decay * expected + (1 - decay) * (t + 1)
        assert averages(ema) == pytest.approx([expected], rel=1e-5)
    assert ema.updates == 30


def test_the_average_is_a_copy_that_neither_trains_nor_disturbs() -> None:
    generator = make()
    ema = Ema(generator, 0.9)
    before = [p.detach().clone() for p in ema.model.parameters()]
    fill(generator, 7.0)
    assert all(torch.equal(a, b) for a, b in zip(before, ema.model.parameters(), strict=True))
    ema.update(generator)
    assert all(bool((p == 7.0).all()) for p in generator.parameters())
    assert all(p.requires_grad for p in generator.parameters())
    assert not any(p.requires_grad for p in ema.model.parameters())


def test_buffers_follow_too() -> None:
    generator = make()
    generator.register_buffer("scale", torch.tensor(1.0))
    generator.register_buffer("count", torch.tensor(1))
    ema = Ema(generator, 0.0)
    generator.scale.fill_(5.0)  # type: ignore[operator]
    generator.count.fill_(5)  # type: ignore[operator]
    ema.update(generator)
    assert float(ema.model.scale) == 5.0  # type: ignore[arg-type]
    assert int(ema.model.count) == 5  # type: ignore[arg-type]


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_bad_decay_is_refused(decay: float) -> None:
    with pytest.raises(ModelError, match=rf"must lie in \[0, 1\), got {decay}"):
        Ema(make(), decay)
