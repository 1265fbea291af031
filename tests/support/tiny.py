"""The tiny data set: points of three classes, its description, its clients and its shards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.records.shard import Shard
from fedsink.data.partition import Iid
from fedsink.data.spec import DataSpec
from fedsink.privacy import SecretKey

SIZE, CLASSES, RECORDS = 4, 3, 61
NOMINAL = 64
"""The public number of records that no node exceeds."""

SPEC = DataSpec("tiny", (SIZE,), tuple("abc"), RECORDS)


def points_of(records: int) -> tuple[Tensor, Tensor]:
    """Points of three classes, stored class by class."""
    random = torch.Generator().manual_seed(5)
    labels = torch.arange(records) * CLASSES // records
    return torch.randn(records, SIZE, generator=random) / 4 + labels.unsqueeze(1), labels


def points(spec: DataSpec, split: str) -> tuple[Tensor, Tensor]:
    """The tiny data as a source reads them."""
    return points_of(RECORDS)


def tiny_clients(clients: int = 3) -> NodeSettings:
    """Clients with reproducible noise."""
    return NodeSettings(SPEC, Iid(), clients, seed=7)


def with_secret_key(settings: NodeSettings, folder: Path) -> NodeSettings:
    """Returns these clients with a secret key and a ledger, which the folder may hold already."""
    key_file = folder / "run.key"
    if not key_file.exists():
        SecretKey.create(key_file, "tiny/1")
    return replace(settings, seed=None, key_file=key_file, ledger=folder / "run.sqlite")


def shard_of(
    n: int = 40, *, seed: int = 0, size: int = SIZE, classes: int = CLASSES, scale: float = 1.0
) -> Shard:
    """Returns a shard of normal points; their classes take turns."""
    random = torch.Generator().manual_seed(seed)
    return Shard(scale * torch.randn(n, size, generator=random), torch.arange(n) % classes)
