"""The stand-in for a GPU computes like the CPU, and refuses the calls that a GPU refuses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor

from .stand_in import OnGpu, StandIn

Gpu = Callable[[], AbstractContextManager[StandIn]]


def test_it_computes_like_the_cpu(gpu: Gpu) -> None:
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    expected = (x[x.sum(1) > 0].exp() @ x.T).cumsum(0)
    with gpu() as mode:
        y = x.to("cuda")
        result = (y[y.sum(1) > 0].exp() @ y.T).cumsum(0)
        assert isinstance(result, OnGpu)
        assert result.device.type == "cuda"
        total = torch.zeros(5, 3, device=y.device)
        total += y
        total[torch.tensor([1])] = 0.0  # indices may be on the CPU, there as well
        assert total.cpu()[:2].tolist() == [x[0].tolist(), [0.0] * 3]
        assert torch.equal(result.cpu(), expected)
    assert mode.operations > 10


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x: x + torch.ones(3),
        lambda x: x @ torch.ones(3, 2),
        lambda x: torch.cat([x, torch.ones(1, 3)]),
        lambda x: torch.where(torch.ones(3, dtype=torch.bool), x, 0.0),
        lambda x: torch.zeros(5, 3).add_(x),
        lambda x: torch.stack([x, torch.ones(5, 3)]),
    ],
)
def test_operands_on_two_devices_are_refused(gpu: Gpu, mixed: Callable[[Tensor], Tensor]) -> None:
    with gpu():
        x = torch.ones(5, 3).to("cuda")
        with pytest.raises(RuntimeError, match="device"):
            mixed(x)


def test_nothing_on_the_gpu_is_read_as_if_it_were_on_the_cpu(gpu: Gpu) -> None:
    with gpu():
        x = torch.ones(5, 3).to("cuda")
        with pytest.raises(Exception, match=r"numpy|convert"):
            x.numpy()
