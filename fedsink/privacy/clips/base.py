"""The clip of a plan bounds the change of a release by one unit, and states that bound.

Samplers, accountants and audits ask the clip and never which clip it is. A new one is a subclass of
`Clip`, in the table of `fedsink.privacy.clips`. No entry point adds clips: a stranger's clip could
state a sensitivity that it does not keep.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from fedsink.errors import PrivacyError
from fedsink.privacy.adjacency import CLIENT
from fedsink.values import privacy_checks as checks

if TYPE_CHECKING:
    from fedsink.privacy.sampling import Schedule

# Relative room below the bound for the roundings of norms, products and the cast to float32.
_SLACK = 2.0**-20
# Below this bound that room would itself be lost in rounding.
_SMALLEST = 2.0**-1000


@dataclass(frozen=True)
class Clip(ABC):
    """Bounds the change of a release by one protected unit.

    Args:
        bound: of an L2 norm; finite and > 0.

    Attributes:
        name: as in a configuration and in a message.
        needed: sentence of `expect` for a clip of another family, with a place for its name.
        sampled: a batch of records is drawn; else every record takes part in every use.
        per_record: each record's contribution is clipped by itself, and their sum is released.
        published: only for comparison with published work, in simulations.
        replacement: name of the dominating pair where one record or one answer replaces another;
            see `fedsink.privacy.accounting.replacement`.
        account_options: names of an account's options beside rate, noise and rounds; "turns"
            is about the schedule, the others are read by `for_account`.

    Raises:
        PrivacyError: the bound is not a finite number > 0.
    """

    bound: float
    name: ClassVar[str]
    needed: ClassVar[str]
    sampled: ClassVar[bool]
    per_record: ClassVar[bool] = False
    published: ClassVar[bool] = False
    replacement: ClassVar[str]
    account_options: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", checks.positive("bound", self.bound))

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """S in L2: how far one unit moves a release; for a client as the unit see `of_client`."""

    @property
    def claimed_sensitivity(self) -> float:
        """The distance in L2 by which published work divides the noise: S, or less than it."""
        return self.sensitivity

    @abstractmethod
    def of_client(self, capacity: int | None) -> int:
        """Factor f: all records of a client together move a release by at most f sensitivities.

        Args:
            capacity: B, most sampled records that take part; None: all of them.
        """

    @abstractmethod
    def reach(self, records: int) -> float:
        """Bound on the L2 norm of one client's total, of which at most `records` are part."""

    @abstractmethod
    def check_plan(self, schedule: Schedule, adjacency: str, capacity: int | None) -> None:
        """Refuses a plan that has no guarantee with this clip; raises PrivacyError."""

    @abstractmethod
    def check_rate(self, rate: float) -> float:
        """The rate as a float in (0, 1]; raises PrivacyError for one that the clip does not fit."""

    @classmethod
    def expect(cls, clip: Clip) -> Self:
        """`clip`, which belongs to this family of clips; raises PrivacyError for any other."""
        if not isinstance(clip, cls):
            raise PrivacyError(cls.needed.format(clip.name))
        return clip

    @classmethod
    def for_account(cls, options: Mapping[str, int]) -> Clip:
        """The clip with a bound of 1, for no ε depends on the bound, and with `account_options`."""
        return cls(1.0)

    def asked_in_secret(self, rate: float) -> bool:
        """Tells whether a rate says in which rounds a part of the records is asked."""
        return False

    def overflows(self, adjacency: str, capacity: int | None) -> bool:
        """Tells whether a full batch changes a record's effect; δ then includes its probability."""
        return self.per_record and capacity is not None and adjacency != CLIENT

    def to_dict(self) -> dict[str, Any]:
        """The clip as JSON-able values; `clip_from_dict` gives the same clip back."""
        return {"name": self.name, **asdict(self)}


def check_type(gradients: torch.Tensor) -> None:
    """Refuses a gradient of another type than float32 and float64; raises PrivacyError."""
    if gradients.dtype not in (torch.float32, torch.float64):
        raise PrivacyError(
            f"a gradient to clip must be float32 or float64, received {gradients.dtype}: "
            "narrower types round past the bound."
        )


def refuse_infinite(total: torch.Tensor) -> None:
    """Refuses to release a total that no clip has made finite; raises PrivacyError."""
    if not bool(torch.isfinite(total).all()):
        raise PrivacyError("the total to release is not finite: clip it before releasing.")


def shrunk(
    vectors: torch.Tensor,
    bound: float,
    *,
    slack: float = _SLACK,
    cast: torch.dtype = torch.float64,
) -> torch.Tensor:
    """Each vector v scaled to norm ≤ Δ: v·min(1, Δ/‖v‖), exact over the whole range of floats.

    The largest entry is divided out first, so that no square overflows or vanishes. A result too
    small for a normal number of the type becomes zero: such numbers round by up to half of
    themselves, and a factor that did so would scale past the bound.

    Args:
        vectors: (K, N), float32 or float64.
        bound: Δ > 0; below 2⁻¹⁰⁰⁰ every result is zero.
        slack: the room left below Δ by vectors that are scaled, relative; a caller that adds
            results up needs more of it.
        cast: the type of the result, float32 (only for float32 vectors) or float64.

    Returns:
        (K, N). A vector within Δ·(1 − slack) is unchanged, one with a non-finite entry becomes
        zero.

    Guarantees:
        - Every result has norm at most Δ, in exact arithmetic.
        - Which operations run does not depend on the vectors' values.
    """
    if vectors.numel() == 0 or bound < _SMALLEST:
        return torch.zeros_like(vectors, dtype=cast)
    values = vectors.to(torch.float64)
    largest = values.abs().amax(1, keepdim=True)  # NaN where an entry is NaN
    direction = values / largest
    length = torch.linalg.vector_norm(direction, dim=1, keepdim=True)  # 1 to √N
    clip = bound * (1.0 - slack)
    scaled = direction * (clip / length)
    scaled = torch.where(scaled.abs() >= torch.finfo(cast).tiny, scaled, 0.0)
    # Selects, not branches: control flow must not depend on private values.
    shorter = torch.where(length <= clip / largest, values, scaled)
    return torch.where(largest.isfinite() & (largest > 0.0), shorter, 0.0).to(cast)
