"""Replies hold their gradient and nothing else; each way to leak more is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from flwr.app import ConfigRecord, MetricRecord, RecordDict

from fedsink.audit.dp_sinkhorn import audit_schema
from fedsink.audit.gs_wgan import audit_critic_schema
from fedsink.audit.method import check_reply_schema
from fedsink.clients.answer import Task
from fedsink.clients.gs_wgan import GSWGANAnswer
from fedsink.clients.shard import Shard
from fedsink.privacy import CriticClip, JointSchedule, PrivacyPlan, ReproducibleKey
from fedsink.protocol.dp_sinkhorn import GradientReply, GradientRequest
from fedsink.protocol.packing import pack

Plans = Callable[..., PrivacyPlan]


@pytest.mark.parametrize("clip", ["record", "batch"])
@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_replies_hold_nothing_but_their_gradient(plan: Plans, clip: str, rate: float) -> None:
    assert audit_schema(plan(clip, rate=rate), ReproducibleKey(0)) == ()


def _field(gradient: torch.Tensor, batch: int) -> RecordDict:
    return pack({"batch": batch}, {"gradient": gradient})


def _array(gradient: torch.Tensor, batch: int) -> RecordDict:
    return pack({}, {"gradient": gradient, "batch": torch.tensor([batch])})


def _shape(gradient: torch.Tensor, batch: int) -> RecordDict:
    return GradientReply(torch.zeros(batch, gradient.shape[1])).to_record()


def _type(gradient: torch.Tensor, batch: int) -> RecordDict:
    return GradientReply(gradient.to(torch.float64)).to_record()


def _metrics(gradient: torch.Tensor, batch: int) -> RecordDict:
    record = GradientReply(gradient).to_record()
    record["metrics"] = MetricRecord({"num-examples": batch})
    return record


def _config(gradient: torch.Tensor, batch: int) -> RecordDict:
    record = GradientReply(gradient).to_record()
    record.config_records["fields"]["batch"] = batch
    return record


def _empty(gradient: torch.Tensor, batch: int) -> RecordDict:
    return RecordDict({"fields": ConfigRecord({"json": "{}"})})


@pytest.mark.parametrize(
    ("leaky", "sentence"),
    [
        (_field, "has another value, shape or type than the request fixes in fields['json']"),
        (_array, "holds besides its gradient arrays['batch']"),
        (_shape, "has another value, shape or type than the request fixes in arrays['gradient']"),
        (_type, "has another value, shape or type than the request fixes in arrays['gradient']"),
        (_metrics, "holds besides its gradient metrics['num-examples']"),
        (_config, "holds besides its gradient fields['batch']"),
        (_empty, "lacks arrays['gradient']"),
    ],
)
def test_a_reply_that_leaks_the_batch_size_is_caught(
    plan: Plans, leaky: Callable[[torch.Tensor, int], RecordDict], sentence: str
) -> None:
    def pack_reply(request: GradientRequest, shard: Shard, gradient: torch.Tensor) -> RecordDict:
        return leaky(gradient, len(shard))

    leaks = audit_schema(plan(), ReproducibleKey(0), pack=pack_reply)
    assert any(sentence in leak for leak in leaks)


@pytest.mark.parametrize("adjacency", ["add-remove", "user"])
@pytest.mark.parametrize("critics", [1, 3])
def test_replies_of_critics_hold_nothing_but_their_gradient(critics: int, adjacency: str) -> None:
    plan = _critic_plan(critics, adjacency)
    assert audit_critic_schema(plan, ReproducibleKey(0), critics=critics) == ()


@pytest.mark.parametrize(
    ("leaky", "sentence"),
    [
        (_field, "has another value, shape or type than the request fixes in fields['json']"),
        (_array, "holds besides its gradient arrays['batch']"),
        (_shape, "has another value, shape or type than the request fixes in arrays['gradient']"),
        (_metrics, "holds besides its gradient metrics['num-examples']"),
    ],
)
def test_a_reply_of_critics_that_leaks_how_many_records_there_are_is_caught(
    leaky: Callable[[torch.Tensor, int], RecordDict], sentence: str
) -> None:
    class Leaky(GSWGANAnswer):
        records = 0

        def compute(self, task: Task) -> list[torch.Tensor]:
            self.records = len(task.shard)
            return super().compute(task)

        def record(self, reply: Mapping[str, torch.Tensor]) -> RecordDict:
            return leaky(reply[self.parts[0]], self.records)

    plan = _critic_plan(2, "add-remove")
    leaks = audit_critic_schema(plan, ReproducibleKey(0), critics=2, answer=Leaky)
    assert any(sentence in leak for leak in leaks)


def _critic_plan(critics: int, adjacency: str) -> PrivacyPlan:
    clip = CriticClip(0.1, critics)
    return PrivacyPlan(1.0, 5.0, 2, clip, JointSchedule(), 1e-5, adjacency)


def test_a_reply_passes_whatever_its_gradient_is() -> None:
    expected = GradientReply(torch.zeros(2, 1)).to_record()
    for value in (0.0, 1e30, float("nan")):
        reply = GradientReply(torch.full((2, 1), value)).to_record()
        assert check_reply_schema(expected, reply) == ()
