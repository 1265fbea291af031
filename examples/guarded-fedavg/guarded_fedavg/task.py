"""Flower's quickstart CNN, its training and its test, on MNIST."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset
from torchvision.datasets import MNIST


class Net(nn.Module):
    """The CNN of Flower's quickstart for PyTorch, for one channel: 44,426 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(256, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the scores of ten digits, of pictures (N, 1, 28, 28)."""
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


@lru_cache
def load(folder: str, train: bool) -> TensorDataset:
    """Returns MNIST's pictures, scaled to [-1, 1], and labels."""
    found = MNIST(str(Path(folder).expanduser()), train=train, download=True)
    return TensorDataset(found.data[:, None] / 127.5 - 1, found.targets)


def loader_of(client: int, clients: int, config: Mapping[str, Any]) -> DataLoader:
    """Returns the loader of a client, who holds every K-th picture."""
    everything = load(str(config["data"]), True)
    mine = Subset(everything, range(client, len(everything), clients))
    return DataLoader(mine, batch_size=min(int(config["batch-size"]), len(mine)), shuffle=True)


def train(net: Net, loader: DataLoader, config: Mapping[str, Any]) -> float:
    """Trains for the round's steps, by Opacus where there is noise; returns the last loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=float(config["learning-rate"]))
    model: nn.Module = net.train()
    if noise := float(config["noise-multiplier"]):
        model, optimizer, loader = PrivacyEngine().make_private(
            module=net, optimizer=optimizer, data_loader=loader,
            noise_multiplier=noise, max_grad_norm=1.0,
        )  # fmt: skip
    steps, loss = int(config["local-steps"]), torch.tensor(0.0)
    while steps:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels, reduction="mean")
            loss.backward()
            optimizer.step()
            steps -= 1
            if not steps:
                break
    return loss.item()


@torch.no_grad()
def test(net: Net, folder: str) -> float:
    """Returns the accuracy on MNIST's public test pictures."""
    images, labels = load(folder, False).tensors
    return float((net.eval()(images).argmax(1) == labels).float().mean())
