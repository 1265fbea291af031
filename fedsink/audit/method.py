"""A method's part of `fedsink audit` and `fedsink account`, and checks that audits share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from flwr.app import Array, RecordDict
from torch import Tensor

from fedsink.audit.finding import Finding
from fedsink.clients.shard import Shard
from fedsink.errors import ConfigError
from fedsink.privacy import JointSchedule, Key, PrivacyPlan

SHARD_SIZES = (0, 1, 40)
"""Numbers of records of the clients whose replies are searched for more than their gradient."""

FEWEST_TRIALS = 8  # half of them fit the distinguisher


def at_least(minimum: int, default: int | None) -> Any:
    """A field of a `MethodAudit` or of an account that takes whole numbers from a minimum on."""
    return field(default=default, metadata={"minimum": minimum})


@dataclass(frozen=True)
class AuditResult:
    """Findings of the audit of one plan.

    Attributes:
        plan: The audited plan, as stored.
        findings: Each claim beside what was proved about it.
        leaks: A sentence on each thing that replies hold besides their noised gradient; None
            where replies were not searched for it.
    """

    plan: Mapping[str, Any]
    findings: list[Finding]
    leaks: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class MethodAudit(ABC):
    """The audit of one method.

    A subclass is a frozen dataclass, and an entry in `METHODS` of `commands/audit.py`. Its fields,
    with their defaults, are its keys of `fedsink audit`; its texts are its parts of the help.

    Attributes:
        name: Of the method's folder in `strategies/`.
        mode: Its privacy model, "central" or "ldp".
        clips: The values of `clip=` that choose it within its mode; empty where it is the only one.
        usage: Its keys with their defaults, as typed behind "fedsink audit".
        explanation: The paragraph of the help that is about it.
        examples: Arguments of commands that audit it.
        confidence: Of each bound, in (0, 1).
    """

    name: ClassVar[str]
    mode: ClassVar[str]
    clips: ClassVar[tuple[str, ...]] = ()
    usage: ClassVar[str]
    explanation: ClassVar[str]
    examples: ClassVar[tuple[str, ...]] = ()

    confidence: float = 0.95

    @abstractmethod
    def run(self, key: Key) -> AuditResult:
        """Runs the clients' mechanism on canaries.

        Args:
            key: Source of every random number.

        Raises:
            ConfigError: If a key's value is unknown or has no meaning beside another one.
            PrivacyError: If a number is out of range.
        """


@dataclass(frozen=True)
class CentralAccount:
    """A method's part of the central account of `fedsink account`, where it has a special clip.

    An entry in `METHODS` of `commands/account.py`.

    Attributes:
        clip: The value of `clip=` that chooses it.
        counts: Its further keys, each a whole number from 1 on: arguments of `solve_account`.
        adjacencies: Those that only it has.
        given: Keys that have a value where they are left out, and so are not solved for.
        usage: Its keys, as typed behind "fedsink account".
        explanation: The paragraph of the help that is about it.
        examples: Lines of the help.
    """

    clip: str
    counts: tuple[str, ...]
    adjacencies: tuple[str, ...]
    given: tuple[str, ...]
    usage: str
    explanation: str
    examples: str


def check_trials(trials: int) -> None:
    """Refuses too few trials to fit a distinguisher and to count; raises ConfigError."""
    if trials < FEWEST_TRIALS:
        raise ConfigError(f"An audit needs at least {FEWEST_TRIALS} trials, received {trials}.")


def check_joint(plan: PrivacyPlan) -> None:
    """Refuses a plan that does not use a canary in every round; raises ConfigError."""
    if plan.schedule.name != JointSchedule.name:
        raise ConfigError("An audit runs the joint schedule: its canaries are used in every round.")


def points(values: Tensor) -> Shard:
    """A shard of unlabelled points (N, D)."""
    return Shard(values, torch.zeros(len(values), dtype=torch.int64))


def check_reply_schema(expected: RecordDict, reply: RecordDict) -> tuple[str, ...]:
    """Sentences on what a reply holds that its public request does not fix; empty if nothing.

    A reply may differ from the expected one only in the bytes of its arrays. Another part, field,
    array, shape or type may depend on the batch: on its size, a loss, a norm.

    Guarantees:
        - A reply passes only if request and gradient values determine all of it.

    Args:
        expected: A reply that holds zeros in the shape that the request states.
        reply: A client's reply.
    """
    fixed, found = _all_but_bytes(expected), _all_but_bytes(reply)
    return tuple(
        f"The reply {verb} {name}."
        for name in dict.fromkeys([*fixed, *found])
        if (verb := _difference(fixed.get(name), found.get(name)))
    )


def _all_but_bytes(content: RecordDict) -> dict[str, object]:
    """Everything of a message's content except the arrays' bytes, by the name of the part."""
    parts: dict[str, object] = {}
    for name, part in content.items():
        parts[f"the {type(part).__name__} {name!r}"] = True
        for key, value in part.items():
            if isinstance(value, Array):
                parts[f"{name}[{key!r}]"] = (
                    value.dtype, tuple(value.shape), value.stype, len(value.data)
                )  # fmt: skip
            else:
                parts[f"{name}[{key!r}]"] = value
    return parts


def _difference(expected: object, found: object) -> str:
    if expected == found:
        return ""
    if expected is None:
        return "holds besides its gradient"
    if found is None:
        return "lacks"
    return "has another value, shape or type than the request fixes in"
