from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fedsink.results.evaluation import networks


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Runs one thread: several would only wait for each other in networks this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def few_epochs() -> Iterator[None]:
    """Trains for at most 40 epochs, which is enough for these pictures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "MAX_EPOCHS", 40)
        yield
