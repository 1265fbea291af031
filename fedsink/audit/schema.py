"""What a reply may say besides its noised gradient: nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from flwr.app import Array, RecordDict

from fedsink.audit.canary import Canary, Release, points, replies
from fedsink.audit.gs_wgan import CriticCanary, task
from fedsink.clients.dp_sinkhorn import client_gradient
from fedsink.clients.gs_wgan import GSWGANAnswer
from fedsink.clients.shard import Shard
from fedsink.privacy import Key, PrivacyPlan
from fedsink.protocol.dp_sinkhorn import GradientReply, GradientRequest
from fedsink.protocol.gs_wgan import CriticRequest

Reply = Callable[[GradientRequest, Shard, torch.Tensor], RecordDict]

_RECORDS = (0, 1, 40)


def check_reply_schema(
    request: GradientRequest | CriticRequest, reply: RecordDict
) -> tuple[str, ...]:
    """What a reply holds that the public request does not fix, a sentence each; empty if nothing.

    A reply may differ from the one that packs zeros of the request's shape in the bytes of its
    gradient alone: another part, field, array, shape or type may depend on the batch (its size,
    a loss, a norm).

    Guarantees:
        - A reply passes only if request and gradient values determine all of it.
    """
    expected = _outside(GradientReply(torch.zeros_like(request.rows)).to_record())
    outside = _outside(reply)
    names = dict.fromkeys([*expected, *outside])
    return tuple(
        f"The reply {verb} {name}."
        for name in names
        if (verb := _difference(expected.get(name), outside.get(name)))
    )


def pack_reply(request: GradientRequest, shard: Shard, gradient: torch.Tensor) -> RecordDict:
    """What a client sends: the gradient, packed."""
    return GradientReply(gradient).to_record()


def audit_schema(
    plan: PrivacyPlan, key: Key, *, release: Release = client_gradient, pack: Reply = pack_reply
) -> tuple[str, ...]:
    """What replies from clients with none, one and many records tell besides the gradient.

    Each is asked at the plan's rate and at rate 1, so empty, partial and full batches occur.
    """
    leaks: dict[str, None] = {}
    for rate in {plan.rate, 1.0}:
        requests = Canary(replace(plan, rate=rate)).requests()[:1]
        for client, size in enumerate(_RECORDS):
            shard = points(torch.zeros(size, 1))
            (gradient,) = replies(requests, shard, release, key, client)
            leaks |= dict.fromkeys(
                check_reply_schema(requests[0], pack(requests[0], shard, gradient))
            )
    return tuple(leaks)


def audit_critic_schema(
    plan: PrivacyPlan, key: Key, *, critics: int, answer: type[GSWGANAnswer] = GSWGANAnswer
) -> tuple[str, ...]:
    """What a run's replies of M critics tell besides the gradient, with none, one, many records.

    Each client answers every round, so that critics without a past and with one occur.
    """
    leaks: dict[str, None] = {}
    requests = CriticCanary(plan, critics).requests()
    for client, size in enumerate(_RECORDS):
        shard = Shard(torch.zeros(size, 1), torch.zeros(size).long(), torch.arange(size))
        asked = task(shard, key, client)
        for request in requests:
            answered = answer([request])
            [gradient] = answered.compute(asked)
            reply = answered.record({answered.parts[0]: gradient})
            leaks |= dict.fromkeys(check_reply_schema(request, reply))
    return tuple(leaks)


def _outside(record: RecordDict) -> dict[str, object]:
    """Everything of a record but the arrays' bytes, by the name of the part."""
    parts: dict[str, object] = {}
    for name, part in record.items():
        parts[f"the {type(part).__name__} {name!r}"] = True
        for key, value in part.items():
            if isinstance(value, Array):
                parts[f"{name}[{key!r}]"] = (
                    value.dtype, tuple(value.shape), value.stype, len(value.data)
                )  # fmt: skip
            else:
                parts[f"{name}[{key!r}]"] = value
    return parts


def _difference(expected: object, actual: object) -> str:
    if expected == actual:
        return ""
    if expected is None:
        return "holds besides its gradient"
    return (
        "lacks" if actual is None else "has another value, shape or type than the request fixes in"
    )
