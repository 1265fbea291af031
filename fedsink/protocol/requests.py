"""Common parts of all messages: the run's name, a round of a plan and its reply, and their codec.

`Packable` is the codec of all requests and replies. A dataclass that inherits it travels as a
message, and is read again with the checks that its annotations name.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Question(Packable):
...     kind = "question"
...     run: Annotated[str, run_name]
...     rows: Tensor
>>> message = Question("ward 7", torch.zeros(2, 3)).packed()
>>> message.fields, message.arrays["rows"].shape
('{"protocol": 5, "run": "ward 7"}', (2, 3))
"""

from __future__ import annotations

import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, cast, get_origin, get_type_hints

import torch
from torch import Tensor

from fedsink.privacy import domain
from fedsink.privacy.clips import Clipped, clipped_by
from fedsink.privacy.integer_gaussian import FixedPoint, IntegerGaussian
from fedsink.privacy.plan import CentralPlan, plan_from_dict
from fedsink.privacy.randomness.noise import Several, Stream
from fedsink.protocol.packing import Packed, pack, packed, unpack
from fedsink.values import privacy_checks as checks

if TYPE_CHECKING:
    from flwr.app import RecordDict

UNNAMED = "unnamed"
_RELEASED = "gradient"  # the array's name, from when gradients were all that was released


def run_name(value: object) -> str:
    """Returns the value if it can name a run: a node writes the name into its ledger and its log.

    Raises:
        ValueError: it is not a string of 1 to 200 printable characters.
    """
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
        raise ValueError(
            f"A run's name must be 1 to 200 printable characters, not {str(value)[:40]!r}."
        )
    return value


def given_name(text: str) -> str:
    """Returns the value if fedsink gives such names to runs; raises ValueError for any other."""
    if re.fullmatch(r"[\w-]{1,64}", text) is None:
        raise ValueError("fedsink gives no run such a name; the run's privacy.json has it (run)")
    return text


def new_run_name() -> str:
    """Returns a name that no run had before: the time and 32 random bits."""
    return time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(4)


def table(value: object) -> dict[str, Any]:
    """Returns a JSON object; raises TypeError for anything else."""
    if not isinstance(value, dict):
        raise TypeError(f"a {type(value).__name__} is not an object")
    return value


def json_fields(instance: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass that are no tensors, as JSON-able values by name."""
    values = {part.name: getattr(instance, part.name) for part in fields(instance)}
    return {
        name: value.to_dict() if hasattr(value, "to_dict") else value
        for name, value in values.items()
        if not isinstance(value, Tensor | Packable)
    }


class Packable:
    """Codec of a dataclass: a tensor is an array of the field's name, other fields are JSON.

    An object with `to_dict` is stated as the result of `to_dict`. The annotation
    ``Annotated[type, read]`` names the function that checks and reads a stated value; without it
    the value is taken as it is stated. A field that is itself `Packable` shares the message: its
    fields and arrays lie beside the others.

    Attributes:
        kind: name of the message in errors.
    """

    kind: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def parts(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Returns the message's fields and its arrays."""
        values: dict[str, Any] = {}
        arrays: dict[str, Tensor] = {}
        for part in fields(self):
            value = getattr(self, part.name)
            if isinstance(value, Packable):
                inner, inner_arrays = value.parts()
                values |= inner
                arrays |= inner_arrays
            elif isinstance(value, Tensor):
                arrays[part.name] = value
        return values | json_fields(self), arrays

    def packed(self) -> Packed:
        """Returns the message's content without Flower's objects."""
        return packed(*self.parts())

    def to_record(self) -> RecordDict:
        """Returns the message's content as Flower sends it."""
        return self.packed().record()

    @classmethod
    def from_record(cls, record: RecordDict) -> Self:
        """Reads the content of a message.

        Raises:
            ProtocolVersionError: it was written under another version of the protocol.
            ValueError: it is malformed, or a reader refuses its field.
        """
        values, arrays = unpack(record)

        def value_of(name: str, hint: Any) -> Any:
            if hint is Tensor:
                return arrays[name]
            if isinstance(hint, type) and issubclass(hint, Packable):
                return hint.from_record(record)
            if get_origin(hint) is Annotated:
                [read] = hint.__metadata__
                return read(values[name])
            return values[name]

        try:
            return cls(
                **{name: value_of(name, hint) for name, hint in _hints(cast(Any, cls)).items()}
            )
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"Malformed {cls.kind}: {error}.") from error


@lru_cache
def _hints(kind: Any) -> dict[str, Any]:
    """Returns the types of a dataclass's fields, with the readers that annotate them."""
    hints = get_type_hints(kind, include_extras=True)
    return {part.name: hints[part.name] for part in fields(kind)}


@dataclass(frozen=True, kw_only=True)
class CentralRequest(Packable, ABC):
    """A request of the central mode: one round of a plan. A method adds what it asks for.

    Attributes:
        name: the name of the method and of its answer: the message is ``train.NAME``.
        label: the class whose records take part; None: records of every class.
        round: its number in the plan, from 1.
        plan: sampler, clip, noise and their accounting; or that there are neither clip nor noise.
        run: public name of the run that asks.
        share: t′ ≥ 1, number of clients that one noise of the plan is spread over. 1: the reply
            holds all of the noise, and needs no other reply.
        fixed_point: the grid of the integers that are added up; None: the noise is not shared.
    """

    name: ClassVar[str]
    label: ClassVar[int | None] = None

    round: Annotated[int, partial(checks.count, "round")]
    plan: Annotated[CentralPlan, plan_from_dict]
    run: Annotated[str, run_name] = UNNAMED
    share: int = 1
    fixed_point: Annotated[FixedPoint | None, FixedPoint.from_dict] = None

    @property
    @abstractmethod
    def reply_shape(self) -> tuple[int, ...]:
        """Shape of the values that the reply holds."""

    @classmethod
    def from_record(cls, record: RecordDict) -> Self:
        """Reads and checks a message: a ValueError says what does not fit."""
        request = super().from_record(record)
        request.check()
        return request

    @property
    def own_plan(self) -> CentralPlan:
        """The plan with only the noise of this reply: the guarantee without all other replies."""
        return self.plan.with_noise(1 / self.share)

    def check(self) -> None:
        """Refuses a round that is not the plan's, or noise that float32 cannot hold.

        A method refuses as well what it asks for and cannot mean; all before any record is read.
        """
        if self.round < 1 or self.round > self.plan.rounds:
            raise ValueError(f"Round {self.round} is not in the plan's 1..{self.plan.rounds}.")
        domain.ROUNDS.check_count(self.plan.rounds)
        shared = checks.count("share", self.share) > 1
        if shared != (self.fixed_point is not None) or (shared and not self.plan.protected):
            raise ValueError(
                "Noise that several clients share is noise of integers: a share above 1 goes with "
                "a plan that protects and a fixed point, and no other does."
            )
        if self.plan.protected:
            domain.noise_scale(self.own_plan.noise_std)

    def shared_noise(self, size: int) -> IntegerGaussian | None:
        """Returns the mechanism of a reply with `size` values a round; None: no noise is shared.

        Noise that does not fit into the integers is a PrivacyError.
        """
        if self.fixed_point is None or not self.plan.protected:
            return None
        return IntegerGaussian(self.plan, self.share, self.fixed_point, size)

    def release(self, total: Clipped, stream: Stream) -> Tensor:
        """Returns a client's total with its noise: float32, or int64 where the noise is shared."""
        shared = self.shared_noise(clipped_by(self.plan.clip, total).numel())
        return (self.plan if shared is None else shared).release(total, stream)

    def release_each(self, totals: Clipped, streams: Several) -> Tensor:
        """Returns the totals of several clients, (k, ...), each as by `release`."""
        shared = self.shared_noise(clipped_by(self.plan.clip, totals)[0].numel())
        return (self.plan if shared is None else shared).release_each(totals, streams)

    def release_sum(self, total: Clipped, noise: Stream | None, clients: int) -> Tensor:
        """Returns a part of a cohort's sum, see `PrivacyPlan.release_sum`."""
        shared = self.shared_noise(clipped_by(self.plan.clip, total).numel())
        return (self.plan if shared is None else shared).release_sum(total, noise, clients)


def pack_replies(released: Sequence[Tensor]) -> RecordDict:
    """Returns the reply of the central mode: what each round releases, and no more."""
    return pack({}, {_RELEASED: torch.stack([*released])})


def unpack_replies(record: RecordDict) -> Tensor:
    """Returns what `pack_replies` was given, (rounds, ...); a ValueError for any other message."""
    released = unpack(record)[1].get(_RELEASED, torch.zeros(()))
    if released.ndim < 1:
        raise ValueError("Malformed reply: it holds no values of each round.")
    return released


def check_matrix(rows: Tensor) -> None:
    """Refuses public rows that are no finite matrix: a ValueError."""
    if rows.ndim != 2 or not rows.numel() or not is_float32(rows, domain.ROWS):
        raise ValueError(
            f"Rows must be a finite n×D float32 matrix within ±{domain.ROWS.high:.4g}, not "
            f"{tuple(rows.shape)} of {rows.dtype}."
        )


def check_rows(rows: Tensor, labels: Tensor, classes: int) -> None:
    """Refuses public rows that are no finite matrix, or labels that are none of the classes."""
    check_matrix(rows)
    n = len(rows)
    if labels.shape != (n,) or labels.dtype != torch.int64:
        raise ValueError(f"Row labels must be {n} integers.")
    low, high = torch.aminmax(labels)
    # As Python's integers: the classes may be any number.
    if int(low) < 0 or int(high) >= classes:
        raise ValueError(f"Row labels must be below the {classes} classes.")


def is_float32(values: Tensor, within: domain.Interval) -> bool:
    """Tells whether the values are float32 numbers inside a public interval."""
    return values.dtype == torch.float32 and within.holds(values)
