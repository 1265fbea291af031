from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from fedsink.data.spec import DataSpec
from fedsink.simulation.identity import become

SIZE = 4
CLASSES = 3
RECORDS = 61


def _tiny(spec: DataSpec, split: str) -> tuple[Tensor, Tensor]:
    """61 points of three classes, stored class by class."""
    random = torch.Generator().manual_seed(5)
    labels = (torch.arange(RECORDS) * CLASSES // RECORDS).to(torch.int64)
    return torch.randn(RECORDS, SIZE, generator=random) / 4 + labels.unsqueeze(1), labels


@pytest.fixture(autouse=True)
def _tiny_data(install_source: Callable[..., None]) -> None:
    install_source(_tiny)
    become(1, 1)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The owner's log has a line for each refusal."""
    log = logging.getLogger("fedsink.clients")
    log.disabled = True
    yield
    log.disabled = False
