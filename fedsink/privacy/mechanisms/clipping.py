"""Clips: they bound what one record can change, and they know their own sensitivity.

>>> BatchClip(bound=0.5).sensitivity
1.0
>>> RecordClip(bound=0.5).sensitivity
0.5
>>> CriticClip(bound=0.5, critics=40).sensitivity
1.0
>>> RowClip(bound=0.5, rows=25).sensitivity
5.0
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch

from fedsink.errors import PrivacyError
from fedsink.privacy import checks

# Relative room below the bound for the roundings of norms, products and the cast to float32.
_SLACK = 2.0**-20
# Below this bound that room would itself be lost in rounding.
_SMALLEST = 2.0**-1000
# With more critics the rounding of their sum could exceed the room below the bound.
MOST_CRITICS = 1 << 14
MOST_ROWS = 1 << 20


@dataclass(frozen=True)
class BatchClip:
    """Clip the whole gradient of a batch, an n×d matrix G, to L2 norm ≤ Δ: G·min(1, Δ/‖G‖).

    The two clipped gradients of any two shards lie in one ball of radius Δ, hence a sensitivity
    of 2Δ whatever the loss; the noise of DP-Sinkhorn's Algorithm 1 is 2Δσ for this reason
    (Cao et al. 2021; their Theorem 4.1 drops the factor 2).

    Guarantees:
        - The clipped gradient has norm at most Δ, in exact arithmetic, for any gradient and any
          Δ > 0 that a float can hold.
        - Any two clipped gradients differ by at most the sensitivity, 2Δ.
        - An all-zero gradient stays zero; a gradient with a non-finite entry becomes zero.
        - Which operations run does not depend on the gradient's values.

    Args:
        bound: Δ, in units of the gradient's L2 norm; finite and > 0.

    Raises:
        PrivacyError: If the bound is not a finite number > 0.
    """

    bound: float
    name: ClassVar[str] = "batch"
    replacement: ClassVar[str] = "without-replacement"
    """The dominating pair of another record in the same place; see `replacement_epsilon`."""
    sampled: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", checks.positive("bound", self.bound))

    @property
    def sensitivity(self) -> float:
        """2Δ: the diameter of the ball the gradient is clipped to."""
        return 2.0 * self.bound

    def apply(self, gradient: torch.Tensor) -> torch.Tensor:
        """The clipped gradient, same shape and dtype; computed in float64 and cast last.

        Raises:
            PrivacyError: If the gradient is neither float32 nor float64.
        """
        return self.apply_each(gradient.unsqueeze(0)).squeeze(0)

    def apply_each(self, gradients: torch.Tensor) -> torch.Tensor:
        """Each client's gradient clipped by itself, (K, ...); otherwise like `apply`."""
        _check_type(gradients)
        clipped = shrunk(gradients.flatten(1), self.bound, cast=gradients.dtype)
        return clipped.reshape(gradients.shape)


@dataclass(frozen=True)
class RecordClip:
    """Clip each record's contribution g_j to L2 norm ≤ Δ; the client releases Σ_j g_j + noise.

    Adding or removing one record changes the sum by its own clipped contribution, hence a
    sensitivity of Δ. This holds for contributions that depend on no other record. The sum is
    computed by `fedsink.transport.clipped_sums`, which has these guarantees and never stores
    contributions one by one.

    Args:
        bound: Δ, in units of a contribution's L2 norm; finite and > 0.

    Raises:
        PrivacyError: If the bound is not a finite number > 0.
    """

    bound: float
    name: ClassVar[str] = "record"
    replacement: ClassVar[str] = "opposite"
    """The dominating pair of another record in the same place; see `replacement_epsilon`."""
    sampled: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", checks.positive("bound", self.bound))

    @property
    def sensitivity(self) -> float:
        """Δ: what one record can add to the sum."""
        return self.bound


@dataclass(frozen=True)
class CriticClip:
    """Clip each critic's gradient g_m, an n×D matrix, to norm ≤ C; a client releases Σ_m g_m.

    The client deals its records to M critics by public slot numbers. A critic is any function of
    its own part of the records, of the transcript and of the client's coins, and so is g_m. A
    change of one part moves one summand within the ball of radius C: hence a sensitivity of 2C,
    whether a record is added, removed, replaced or relabelled, or the whole part changes. A change
    of all parts moves the sum by 2CM.

    A critic remembers in which rounds it was trained, so that a secret sample of the rounds or of
    the records amplifies nothing here: the rate of a plan with this clip is 1.

    Guarantees:
        - Each critic's clipped gradient has norm at most C, in exact arithmetic, for any gradient.
        - Two totals that differ in one critic's gradient are at most the sensitivity apart.
        - A critic whose gradient has a non-finite entry contributes zero.
        - Which operations run does not depend on the gradients' values.

    Args:
        bound: C, in units of a gradient's L2 norm; finite and > 0.
        critics: M from 1 to 2¹⁴, public: no client adds up more critics.

    Raises:
        PrivacyError: If the bound is not a finite number > 0, or M is not a whole number in range.
    """

    bound: float
    critics: int = MOST_CRITICS
    name: ClassVar[str] = "critic"
    sampled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", checks.positive("bound", self.bound))
        object.__setattr__(self, "critics", checks.count("critics", self.critics))
        if self.critics > MOST_CRITICS:
            raise PrivacyError(
                f"critics must be at most {MOST_CRITICS}, received {self.critics}: the rounding "
                "of a larger sum could exceed its sensitivity."
            )

    @property
    def sensitivity(self) -> float:
        """2C: what one critic's part of the records can change."""
        return 2.0 * self.bound

    def check_size(self, critics: int, rows: int) -> None:
        """Refuse gradients of more critics at a client; raises PrivacyError."""
        if critics > self.critics:
            raise PrivacyError(
                f"the clip accounts for {self.critics} critics at a client, not for {critics}."
            )

    def total(self, gradients: torch.Tensor) -> torch.Tensor:
        """Σ_m clip(g_m, C) for each of K clients.

        Args:
            gradients: (K, M, n, D), float32 or float64, with M at most `critics`.

        Returns:
            (K, n, D) float64.

        Raises:
            PrivacyError: If the gradients are of another type, or of too many critics.
        """
        clients, critics, *shape = gradients.shape
        self.check_size(critics, shape[0])
        _check_type(gradients)
        # Rounding moves either of two sums by less than 2⁻⁵²·M²·C ≤ 2⁻²⁴·C; shrunk leaves 2⁻²⁰·C.
        clipped = shrunk(gradients.flatten(0, 1).flatten(1), self.bound)
        return clipped.reshape(clients, critics, *shape).sum(1)


@dataclass(frozen=True)
class RowClip:
    """Clip each row of a critic's gradient, an n×D matrix, to norm ≤ C; M = 1 critic a client.

    This is the published clip (Chen, Orekondy, Fritz 2020), there to compare with. A row longer
    than C is scaled to C, any other is left as it is. All rows ask the same critic: a change of its
    part of the records moves each of them within a ball of radius C, and so the matrix by up to
    2C√n. The published noise of std 2Cσ' is therefore one of multiplier σ'/√n. `CriticClip` with
    the same noise moves by 2C.

    Guarantees:
        - Each row of the clipped gradient has norm at most C, in exact arithmetic.
        - Any two clipped gradients are at most the sensitivity apart.
        - A row with a non-finite entry becomes zero.
        - Which operations run does not depend on the gradient's values.

    Args:
        bound: C, in units of a row's L2 norm; finite and > 0.
        rows: n from 1 to 2²⁰, public: no gradient has more rows.

    Raises:
        PrivacyError: If the bound is not a finite number > 0, or n is not a whole number in range.
    """

    bound: float
    rows: int = MOST_ROWS
    name: ClassVar[str] = "row"
    sampled: ClassVar[bool] = False
    critics: ClassVar[int] = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", checks.positive("bound", self.bound))
        object.__setattr__(self, "rows", checks.count("rows", self.rows))
        if self.rows > MOST_ROWS:
            raise PrivacyError(f"rows must be at most {MOST_ROWS}, received {self.rows}.")

    @property
    def sensitivity(self) -> float:
        """2C√n: what a critic's part of the records can change at all n rows together."""
        return 2.0 * self.bound * math.sqrt(self.rows)

    def check_size(self, critics: int, rows: int) -> None:
        """Refuse gradients of several critics at a client or of more rows; raises PrivacyError."""
        if critics > self.critics:
            raise PrivacyError(f"clip={self.name} accounts for one critic, not for {critics}.")
        if rows > self.rows:
            raise PrivacyError(f"the clip accounts for {self.rows} rows, not for {rows}.")

    def total(self, gradients: torch.Tensor) -> torch.Tensor:
        """The clipped gradient of the one critic of each of K clients.

        Args:
            gradients: (K, 1, n, D), float32 or float64, with n at most `rows`.

        Returns:
            (K, n, D) float64.

        Raises:
            PrivacyError: If the gradients are of another type, or of too many critics or rows.
        """
        _, critics, rows, _ = gradients.shape
        self.check_size(critics, rows)
        _check_type(gradients)
        return shrunk(gradients.flatten(0, -2), self.bound).reshape(gradients.shape).sum(1)


SampledClip = BatchClip | RecordClip
ClipOfCritics = CriticClip | RowClip
Clip = SampledClip | ClipOfCritics
CLIPS: dict[str, type[BatchClip] | type[RecordClip] | type[CriticClip] | type[RowClip]] = {
    clip.name: clip for clip in (BatchClip, RecordClip, CriticClip, RowClip)
}


def clip_to_dict(clip: Clip) -> dict[str, Any]:
    """The clip as JSON-able values; `clip_from_dict` gives the same clip back."""
    return {"name": clip.name, **asdict(clip)}


def clip_from_dict(values: Mapping[str, Any]) -> Clip:
    """The clip written by `clip_to_dict`.

    Raises:
        PrivacyError: If a value is out of range.
        KeyError, TypeError: If an entry is missing or unknown.
    """
    options = {**values}
    return CLIPS[options.pop("name")](**options)


def check_clip(clip: object) -> None:
    """Raise PrivacyError for anything but a clip."""
    if not isinstance(clip, Clip):
        names = ", ".join(kind.__name__ for kind in CLIPS.values())
        raise PrivacyError(f"clip must be one of {names}, received {clip!r}.")


def sampled_clip(clip: Clip) -> SampledClip:
    """The clip of a gradient of sampled records; raises PrivacyError for a clip of critics."""
    if isinstance(clip, ClipOfCritics):
        raise PrivacyError(
            f"clip={clip.name} is for gradients of critics: choose clip=record or clip=batch."
        )
    return clip


def clip_of_critics(clip: Clip) -> ClipOfCritics:
    """The clip of gradients of critics; raises PrivacyError for one of sampled records."""
    if not isinstance(clip, ClipOfCritics):
        raise PrivacyError(f"A sum over critics needs clip={CriticClip.name}, not {clip.name}.")
    return clip


def check_rate(clip: Clip, rate: float) -> float:
    """The rate as a float in (0, 1]; raises PrivacyError where the clip allows 1 alone."""
    rate = checks.probability("rate", rate)
    if rate < 1.0 and not clip.sampled:
        raise PrivacyError(
            f"clip={clip.name} has rate=1 alone, received rate={rate:g}: a critic remembers when "
            "it was trained, so a secret sample would not amplify."
        )
    return rate


def _check_type(gradients: torch.Tensor) -> None:
    if gradients.dtype not in (torch.float32, torch.float64):
        raise PrivacyError(
            f"a gradient to clip must be float32 or float64, received {gradients.dtype}: "
            "narrower types round past the bound."
        )


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
        (K, N). A vector within the bound is unchanged, one with a non-finite entry becomes zero.

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
