from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedsink.errors import ModelError
from fedsink.models import Generator, build, sample
from fedsink.models.generator_base import LatentLaw
from fedsink.models.layers import batch_norm_1d
from fedsink.privacy.randomness.noise import Stream


def stream() -> Stream:
    return Stream(b"test", "sample")


class Recorder(Generator):
    """Draws its label into one pixel and remembers labels and latents of every batch."""

    name = "recorder"

    def __init__(self, classes: int, batch_norm: bool, law: LatentLaw = "unit") -> None:
        super().__init__((1, 1, 1), classes, 2, law, {})
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.norm = batch_norm_1d(1) if batch_norm else None
        self.batches: list[Tensor] = []
        self.latents: list[Tensor] = []

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        self.batches.append(labels)
        self.latents.append(z)
        return (labels + z[:, 0] / 2).reshape(-1, 1, 1, 1)


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("n", [0, 1, 7, 40])
def test_rows_come_back_in_the_order_of_their_labels(batch_norm: bool, n: int) -> None:
    generator = Recorder(3, batch_norm)
    labels = torch.randint(3, (n,), generator=torch.Generator().manual_seed(0))
    images = sample(generator, n, labels, stream(), batch_size=8)
    assert images.shape == (n, 1, 1, 1)
    z = generator.latent(n, stream())
    torch.testing.assert_close(images.flatten(), labels + z[:, 0] / 2)


def test_labels_cycle_through_the_classes_by_default() -> None:
    images = sample(Recorder(3, False), 7, None, stream())
    assert images.flatten().floor().tolist() == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize(
    "labels", [torch.zeros(25, dtype=torch.int64), torch.arange(24) % 4, torch.tensor([3])]
)
def test_batch_norm_sees_full_balanced_batches_whatever_is_asked(labels: Tensor) -> None:
    generator = Recorder(4, True)
    sample(generator, len(labels), labels, stream(), batch_size=10)
    for batch in generator.batches:
        counts = torch.bincount(batch, minlength=4).tolist()
        assert sorted(counts) == [2, 2, 3, 3]


def test_batch_norm_sees_the_given_mix() -> None:
    generator = Recorder(3, True)
    mix = torch.tensor([0.5, 0.5, 0.0])
    sample(generator, 20, torch.arange(20) % 2, stream(), batch_size=10, mix=mix)
    assert [torch.bincount(b, minlength=3).tolist() for b in generator.batches] == [[5, 5, 0]] * 2


def test_a_class_outside_the_mix_is_still_drawn() -> None:
    generator = Recorder(3, True)
    mix = torch.tensor([0.5, 0.5, 0.0])
    labels = torch.full((3,), 2)
    images = sample(generator, 3, labels, stream(), batch_size=10, mix=mix)
    assert images.flatten().floor().tolist() == [2, 2, 2]


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("law", ["uniform", "unit", "normal"])
def test_a_latent_range_widens_every_latent_and_nothing_else(
    batch_norm: bool, law: LatentLaw
) -> None:
    generator = Recorder(3, batch_norm, law)
    labels = torch.arange(20) % 3
    usual = sample(generator, 20, labels, stream(), 8)
    trained, generator.latents = generator.latents, []
    assert torch.equal(usual, sample(generator, 20, labels, stream(), 8, latent_range=1.0))
    assert all(map(torch.equal, trained, generator.latents))
    generator.latents = []
    sample(generator, 20, labels, stream(), 8, latent_range=1.5)
    # With BatchNorm rows that are thrown away count as well.
    for z, wide in zip(trained, generator.latents, strict=True):
        torch.testing.assert_close(wide, 1.5 * z)


@pytest.mark.parametrize("name", ["dct_mlp", "mlp"])
def test_without_batch_norm_rows_depend_neither_on_n_nor_on_the_batch(name: str) -> None:
    options: dict[str, Any] = {"batch_norm": False} if name == "mlp" else {}
    generator = build(name, (1, 8, 8), 10, **options)
    whole = sample(generator, 60, None, stream(), batch_size=60)
    torch.testing.assert_close(sample(generator, 20, None, stream()), whole[:20])
    torch.testing.assert_close(sample(generator, 60, None, stream(), batch_size=7), whole)
    assert not whole.requires_grad


def test_a_single_class_of_a_batch_norm_generator_looks_as_in_training() -> None:
    """The statistics must be those of mixed batches: near them, and far from single-class ones."""
    generator = build("mlp", (1, 8, 8), 2, latent_dim=2)
    with torch.no_grad():
        generator.layers[0].weight[:, 2:] *= 5.0  # type: ignore[index, union-attr]
    n, zeros = 4000, torch.zeros(4000, dtype=torch.int64)
    drawn = sample(generator, n, zeros, stream(), batch_size=2000).mean(0)
    z = generator.latent(n, Stream(b"test", "reference"))
    with torch.no_grad():
        trained = generator(z, torch.arange(n) % 2)[::2].mean(0)
        wrong = generator(z, zeros).mean(0)
    assert float((drawn - trained).abs().max()) < 0.02
    assert float((drawn - wrong).abs().max()) > 0.05


@pytest.mark.parametrize(
    ("n", "labels", "options", "message"),
    [
        (-1, None, {}, "n=-1 and batch_size=500"),
        (3, None, {"batch_size": 1}, "batch_size ≥ 2, got n=3 and batch_size=1"),
        (3, torch.zeros(2, dtype=torch.int64), {}, r"needs 3 int64 labels, got .* \(2,\)"),
        (2, torch.zeros(2), {}, r"needs 2 int64 labels, got torch\.float32"),
        (2, torch.tensor([0, 4]), {}, "label 4 is outside the generator's classes 0 to 3"),
        (2, torch.tensor([-1, 0]), {}, "label -1 is outside"),
        (2, None, {"mix": torch.ones(3)}, "mix must hold 4 non-negative class proportions"),
        (2, None, {"mix": torch.tensor([1.0, -1.0, 1.0, 1.0])}, "mix must hold 4 non-negative"),
        (2, None, {"mix": torch.zeros(4)}, "mix must hold 4 non-negative"),
    ],
)
def test_messages(n: int, labels: Tensor | None, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        sample(Recorder(4, True), n, labels, stream(), **options)
