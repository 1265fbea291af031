"""What a recording needs, as far as a machine without a GPU can tell."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fedsink.data.views import _weighted_basis
from fedsink.simulation.fused import FusedStep
from fedsink.simulation.fused.capture import Captured

from .conftest import CASES, fused, settings


class Graph:
    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1


def test_no_call_is_lost_by_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three calls on a stream aside, one recording that computes nothing, then replays alone."""
    calls: list[str] = []
    graphs: list[Graph] = []

    def record(self: Captured) -> Any:
        calls.append("recorded")
        graphs.append(Graph())
        return graphs[-1]

    monkeypatch.setattr(Captured, "_call_aside", lambda self: self._function())
    monkeypatch.setattr(Captured, "_record", record)
    captured = Captured(lambda: calls.append("called"), enabled=True)
    for _ in range(8):
        captured()
    assert calls == ["called"] * 3 + ["recorded"]
    assert graphs[0].replays == 5

    captured.forget()
    for _ in range(5):
        captured()
    assert calls[4:] == ["called"] * 3 + ["recorded"]
    assert [graph.replays for graph in graphs] == [5, 2]


def test_switched_off_it_calls() -> None:
    calls: list[int] = []
    captured = Captured(lambda: calls.append(1), enabled=False)
    for _ in range(6):
        captured()
    assert len(calls) == 6


@pytest.fixture
def mode(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTensorMode]:
    """Tensors without values, which may claim to be on a GPU: a look at a value is an error."""
    _weighted_basis.cache_clear()
    yield FakeTensorMode()
    _weighted_basis.cache_clear()


def on_gpu(step: FusedStep, mode: FakeTensorMode, monkeypatch: pytest.MonkeyPatch) -> FusedStep:
    """A copy whose tensors are on a GPU that is not there."""

    def moved(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
        with mode:
            made = torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
            if isinstance(tensor, torch.nn.Parameter):
                made = torch.nn.Parameter(made, tensor.requires_grad)
        memo[id(tensor)] = made
        return made

    with monkeypatch.context() as patched:
        for kind in (Tensor, torch.nn.Parameter):
            patched.setattr(kind, "__deepcopy__", moved)
        found = copy.deepcopy(step)
    for group in found.trainer.optimizer.param_groups:
        group["capturable"] = True
    return found


@pytest.mark.quick("record, more*", "batch as*", "*shared noise")
@pytest.mark.parametrize("case", CASES)
def test_the_host_looks_at_no_value_of_a_round(
    case: str, mode: FakeTensorMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it send one: both would break a recording."""
    step = fused(settings(**CASES[case]))
    step._prepare()
    step = on_gpu(step, mode, monkeypatch)

    def backward(points: Tensor, gradient: Tensor) -> None:  # which needs a real device
        if gradient.shape != points.shape:
            raise ValueError(f"{gradient.shape} is not {points.shape}")
        for parameter in step.generator.parameters():
            parameter.grad = torch.zeros_like(parameter)

    monkeypatch.setattr(Tensor, "backward", backward)
    with mode:
        monkeypatch.setattr(mode, "allow_non_fake_inputs", True)
        step._compute()  # makes what later rounds find: the view's basis, Adam's moments
        monkeypatch.setattr(mode, "allow_non_fake_inputs", False)
        step._compute()


def test_a_look_at_a_value_would_be_seen(
    mode: FakeTensorMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = on_gpu(fused(settings()), mode, monkeypatch)
    with mode, pytest.raises(Exception, match="_local_scalar_dense"):
        bool(step._energy.sum() > 0)
    sent = torch.ones(2, dtype=torch.float64)
    with mode, pytest.raises(AssertionError, match="convert all Tensors to FakeTensors"):
        step._energy.add_(sent)
