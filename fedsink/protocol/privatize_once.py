"""Local mode: a client privatizes its records once and uploads them in chunks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from torch import Tensor

from fedsink.data.maps import Map, map_from_dict
from fedsink.errors import PrivacyError
from fedsink.privacy import (
    LocalMechanism,
    MatchedCost,
    ProductMechanism,
    RandomizedResponse,
    local_mechanism,
)
from fedsink.privacy.domain import NOISE_MULTIPLIER, noise_scale
from fedsink.protocol.packing import unpack
from fedsink.protocol.requests import UNNAMED, Packable, json_fields, run_name
from fedsink.values import is_number

if TYPE_CHECKING:
    from flwr.app import RecordDict


@dataclass(frozen=True)
class LocalPlan:
    """Plan of the local mode, for each record once: Y = f(x) + noise, ỹ = RR(label).

    The guarantee is ε_x + ε_l local differential privacy (replace-one, per record) by
    summation, with the image mechanism's δ.
    """

    mechanism: str  # name of a local mechanism (`fedsink.privacy.LOCAL_MECHANISMS`)
    map: Map  # f, the data-independent map whose image has a public diameter
    epsilon: float  # ε_x, the image's part of ε
    delta: float = 0.0  # δ of a mechanism that needs one, else 0
    label_epsilon: float | None = (
        None  # ε_l, randomized response on the label; None: no label leaves
    )
    classes: int = 1  # number of public classes

    def __post_init__(self) -> None:
        mechanism = local_mechanism(self.mechanism)
        norm = mechanism.norm
        if self.map.norm != norm:
            raise PrivacyError(
                f"The {self.mechanism} mechanism needs a map with an {norm.upper()} sensitivity, "
                f"and {type(self.map).__name__} bounds the {self.map.norm.upper()} norm: "
                f"choose another map or another mechanism."
            )
        if not mechanism.needs_delta and not (is_number(self.delta) and self.delta == 0):
            # It is charged: a negative one would pay for others.
            raise PrivacyError(
                f"The {self.mechanism} mechanism has δ = 0, received {self.delta!r}."
            )
        # Every plan that exists must be executable: clients claim its place before they execute it.
        noise_scale(self.image_mechanism.scale)
        NOISE_MULTIPLIER.check(self.image_mechanism.scale / self.image_mechanism.diameter)
        _ = self.label_mechanism

    @cached_property
    def image_mechanism(self) -> LocalMechanism:
        """The additive noise on f(x)."""
        mechanism = local_mechanism(self.mechanism)
        return mechanism.from_epsilon(self.map.sensitivity, self.epsilon, self.delta)

    @cached_property
    def label_mechanism(self) -> RandomizedResponse | None:
        """k-ary randomized response on the label, or None where no label leaves."""
        if self.label_epsilon is None:
            return None
        return RandomizedResponse(self.classes, self.label_epsilon)

    @property
    def total_epsilon(self) -> float:
        """ε = ε_x + ε_l, by summation."""
        return self.product.epsilon if self.label_mechanism else self.image_mechanism.epsilon

    @property
    def product(self) -> ProductMechanism:
        """Image and label together (only where a label leaves)."""
        if self.label_mechanism is None:
            raise PrivacyError("This plan releases no label: it has no product mechanism.")
        return ProductMechanism(self.image_mechanism, self.label_mechanism)

    @property
    def matched_cost(self) -> MatchedCost:
        """Cost and λ with which entropic transport inverts the image noise (Theorem 1)."""
        return self.image_mechanism.matched_cost

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as JSON-able values; `from_dict` inverts it."""
        return json_fields(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> LocalPlan:
        """Reads what `to_dict` wrote."""
        return cls(**{**fields, "map": map_from_dict(fields["map"])})


@dataclass(frozen=True)
class PrivatizeRequest(Packable):
    """Asks for one chunk of a client's privatized records."""

    name: ClassVar[str] = "privatize_once"  # of the method, the answer and the message's type
    kind = "privatize request"

    plan: Annotated[LocalPlan, LocalPlan.from_dict]  # releases each record of the client once
    chunk: Annotated[int, int]  # from 0
    chunk_size: Annotated[int, int]  # records per chunk
    run: Annotated[str, run_name] = UNNAMED  # public; a node's ledger keeps runs apart by it

    @classmethod
    def from_record(cls, record: RecordDict) -> PrivatizeRequest:
        """Reads and checks a request; a missing field, or one out of range, is a ValueError."""
        request = super().from_record(record)
        if request.chunk < 0 or request.chunk_size < 1:
            raise ValueError(f"No chunk {request.chunk} of size {request.chunk_size}.")
        return request


def asked_mechanism(record: RecordDict) -> str:
    """Returns the name of the requested image mechanism, without looking it up."""
    fields, _ = unpack(record)
    try:
        name = fields["plan"]["mechanism"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"Malformed privatize request: {error}.") from error
    if not isinstance(name, str):
        raise ValueError(f"A mechanism is named by a text, not by {type(name).__name__}.")
    return name


@dataclass(frozen=True)
class PrivatizeReply(Packable):
    """One chunk: privatized values (b, D), labels (b,), and the number of chunks.

    The number of a client's records is public in local mode: replace-one adjacency fixes it.
    """

    kind = "privatize reply"

    values: Tensor
    labels: Tensor
    chunks: Annotated[int, int]
