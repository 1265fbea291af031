from __future__ import annotations

import pytest
import torch

from fedsink.errors import DataError
from fedsink.evaluation.classifiers import lenet
from fedsink.evaluation.classifiers.lenet import train_lenet

from ...support.clouds import blobs


@pytest.mark.parametrize("shape", [(1, 12, 12), (3, 13, 16), (1, 28, 28)])
def test_learns_at_every_size_and_depth(shape, monkeypatch):
    monkeypatch.setattr(lenet, "EPOCHS", 20)
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 2
    images = 0.3 * torch.rand(300, *shape, generator=generator)
    images[labels == 0, :, ::2] += 0.7
    images[labels == 1, :, :, ::2] += 0.7
    classify = train_lenet(images, labels, classes=2, seed=0)
    assert float((classify(images) == labels).double().mean()) > 0.95


def test_trains_fifty_epochs_on_all_images_with_one_step_down(monkeypatch):
    lines: list[str] = []
    orders, rates = [], []
    true_epoch = lenet.train_epoch

    def spied(network, optimiser, images, labels, order):
        orders.append(order)
        rates.append(optimiser.param_groups[0]["lr"])
        group = optimiser.param_groups[0]
        assert (group["momentum"], group["weight_decay"]) == (0.9, 1e-4)
        true_epoch(network, optimiser, images, labels, order)

    monkeypatch.setattr(lenet, "train_epoch", spied)
    train_lenet(*blobs(20, 0, side=12), classes=3, seed=0, report=lines.append)
    assert all(sorted(order.tolist()) == list(range(20)) for order in orders)
    assert rates == pytest.approx([0.02] * 40 + [0.002] * 10)
    assert lines[-1] == "lenet: epoch 50 of 50"
    assert len(lines) == 50


def test_pixels_are_shifted_for_training_and_for_judging(monkeypatch):
    monkeypatch.setattr(lenet, "EPOCHS", 1)
    shown = []
    true_epoch, true_logits = lenet.train_epoch, lenet.logits
    monkeypatch.setattr(
        lenet, "train_epoch", lambda *args: shown.append(args[2]) or true_epoch(*args)
    )
    monkeypatch.setattr(
        lenet, "logits", lambda network, x: shown.append(x) or true_logits(network, x)
    )
    images = torch.full((10, 1, 12, 12), 0.1307)
    classify = train_lenet(images, torch.arange(10) % 2, classes=2, seed=0)
    classify(images + 0.3081)
    assert float(shown[0].abs().max()) < 1e-6
    assert torch.allclose(shown[1], torch.ones_like(images), atol=1e-5)


def test_the_seed_decides_it_and_no_global_generator_moves(monkeypatch):
    monkeypatch.setattr(lenet, "EPOCHS", 2)
    logits = []
    true_logits = lenet.logits
    monkeypatch.setattr(
        lenet, "logits", lambda *args: logits.append(true_logits(*args)) or logits[-1]
    )
    before = torch.get_rng_state()
    images, labels = blobs(40, 0, side=12)
    for seed in (0, 0, 1):
        train_lenet(images, labels, classes=3, seed=seed)(images)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


def test_refuses_images_too_small_for_two_convolutions():
    with pytest.raises(DataError, match="at least 12×12 pixels; received 11×16"):
        train_lenet(torch.rand(20, 1, 11, 16), torch.arange(20) % 2, classes=2, seed=0)
