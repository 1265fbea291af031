"""Sums of a process of virtual clients, and its refusals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from flwr.app import RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from fedsink.protocol.exchange import Answers, Content
from fedsink.protocol.failure_codes import FAILED, UNUSABLE
from fedsink.protocol.tree_sum import BLOCK
from fedsink.simulation.grid import PartialSum, Portion
from fedsink.simulation.virtual_clients import Cohort, Hosted


class _Answering:
    """Answers with its values, a block of clients at a time."""

    def __init__(self, values: Tensor, failures: dict[int, int] | None = None) -> None:
        self.values = values
        self.failures = failures or {}
        self.block = BLOCK

    def handles(self, message_type: str) -> bool:
        return message_type == "train.dp_sinkhorn"

    def answers(
        self, message_type: str, contents: Sequence[Content], clients: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, Answers]]:
        for number, whose in enumerate(clients):
            for start in range(0, len(whose), BLOCK):
                block = whose[start : start + BLOCK]
                yield number, Answers(block, self.values[list(block)], self.failures)


def _add_up(batched: _Answering, clients: int = 5, shape: tuple[int, ...] = (3,)) -> PartialSum:
    cohort = Cohort(Hosted(ClientApp(), batched), clients, 1)
    content = Content(list, RecordDict)
    (partial,) = cohort.add_up("train.dp_sinkhorn", [content], [Portion(0, range(clients), shape)])
    return partial


def test_replies_are_added_up() -> None:
    values = torch.arange(15.0).reshape(5, 3)
    partial = _add_up(_Answering(values))
    assert partial.clients == 5
    assert partial.failures == {}
    ((first, total),) = partial.sums
    assert first == 0
    assert torch.equal(total, values.double().sum(0))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_reply_that_is_not_finite_is_its_clients_failure(bad: float) -> None:
    values = torch.zeros(5, 3)
    values[3, 1] = bad
    partial = _add_up(_Answering(values))
    assert partial.failures == {3: UNUSABLE}
    assert partial.sums == []


def test_finite_replies_whose_sum_overflows_are_none() -> None:
    largest = torch.full((5, 3), torch.finfo(torch.float32).max)
    partial = _add_up(_Answering(largest))
    assert partial.failures == {}
    ((_, total),) = partial.sums
    assert torch.equal(total, 5 * largest[0].double())


def test_replies_of_another_shape_are_failures_and_failures_are_passed_on() -> None:
    partial = _add_up(_Answering(torch.zeros(5, 4)))
    assert partial.failures == dict.fromkeys(range(5), UNUSABLE)
    partial = _add_up(_Answering(torch.zeros(5, 3), {7: FAILED}))
    assert partial.failures == {7: FAILED}


def test_a_cohort_without_a_batched_app_adds_nothing_up() -> None:
    cohort = Cohort(Hosted(ClientApp()), 5, 1)
    with pytest.raises(ValueError, match="answers client by client"):
        cohort.add_up("train.dp_sinkhorn", [RecordDict()], [Portion(0, range(5), (3,))])


def test_clients_that_all_failed_are_its_failures() -> None:
    answering = _Answering(torch.zeros(0), dict.fromkeys(range(5), FAILED))
    answering.answers = lambda kind, contents, clients: iter(  # type: ignore[method-assign]
        [(0, Answers((), torch.zeros(0), answering.failures))]
    )
    partial = _add_up(answering)
    assert partial.failures == dict.fromkeys(range(5), FAILED)
    assert partial.sums == []
