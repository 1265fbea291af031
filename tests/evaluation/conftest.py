from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fedsink.evaluation.classifiers import network


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Networks this small only wait for each other on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def few_epochs() -> Iterator[None]:
    """What these pictures teach is learnt soon; early stopping has its own tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "MAX_EPOCHS", 40)
        yield
