"""The worst records and the worst requests of central mode, in a space of few dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsink.clients.shard import Shard
from fedsink.errors import ConfigError
from fedsink.privacy import Key, PrivacyPlan, Stream
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.objective import Objective

Release = Callable[[GradientRequest, Shard, Callable[[str], Stream]], Tensor]

_FAR = 4.0  # canaries lie this many clip bounds from the rows, so that every clip binds


@dataclass(frozen=True)
class Canary:
    """One record whose presence moves every round's release by exactly the sensitivity.

    Two rows in one dimension make the release a point of the plane. In round t the request
    steers the canary's contribution to the direction v_t = (cos θ_t, sin θ_t), another one in each
    round, so that noise used in two rounds cancels in their difference and the canary does not.

    - `clip=record`: the potentials choose the softmax weights of the two rows, so the canary's
      contribution is a multiple of v_t beyond the bound. Absent 0, present Δv_t.
    - `clip=batch`: the self gradient is −2Δv_t and the rows pull by more in the direction +v_t.
      Absent −Δv_t, present +Δv_t, the two ends of the ball: 2Δ apart.

    Args:
        plan: What is audited.
    """

    plan: PrivacyPlan

    @property
    def absent(self) -> Shard:
        """A client without any record: the neighbour of `present`."""
        return points(torch.zeros(0, 1))

    @property
    def present(self) -> Shard:
        """The client with the canary alone."""
        return points(torch.zeros(1, 1))

    def requests(self) -> list[GradientRequest]:
        """One request per round, as it arrives at the client: through the wire's own checks."""
        return [self._request(number, v) for number, v in enumerate(self.directions(), start=1)]

    def directions(self) -> Iterator[Tensor]:
        """v_t for every round, θ_t inside the first quadrant."""
        for number in range(self.plan.rounds):
            angle = (number + 0.5) / self.plan.rounds * math.pi / 2.0
            yield torch.tensor([math.cos(angle), math.sin(angle)])

    def _request(self, number: int, v: Tensor) -> GradientRequest:
        far = _FAR * self.plan.clip.bound
        if self.plan.clip.per_record:
            return request(
                self.plan,
                number,
                torch.full((2, 1), far),
                steering_potentials(v),
                torch.zeros(2, 1),
            )
        toward = v.unsqueeze(1)
        return request(
            self.plan, number, far * toward, torch.zeros(2), -2.0 * self.plan.clip.bound * toward
        )


def steering_potentials(v: Tensor) -> Tensor:
    """The f with softmax(f) ∝ v > 0, for rows equally far from every record, at λ = 1."""
    return v.log()


def request(
    plan: PrivacyPlan, number: int, rows: Tensor, potentials: Tensor, self_gradient: Tensor
) -> GradientRequest:
    """An unconditional request with λ = 1, packed and read again."""
    request = GradientRequest(
        round=number,
        label=None,
        plan=plan,
        objective=Objective(lam=1.0, classes=1, label_weight=0.0),
        view={"name": "pixel", "shape": [rows.shape[1]]},
        rows=rows,
        row_labels=torch.zeros(len(rows), dtype=torch.int64),
        potentials=potentials,
        self_gradient=self_gradient,
    )
    return GradientRequest.from_record(request.to_record())


def check_trials(trials: int) -> None:
    """Refuse too few trials to fit a distinguisher and to count; raises ConfigError."""
    if trials < 8:
        raise ConfigError(f"An audit needs at least 8 trials, received {trials}.")


def check_transcripts(plan: PrivacyPlan, trials: int) -> None:
    """Refuse a plan that does not use a canary in every round, or too few trials.

    Raises:
        ConfigError: If the plan has another schedule or there are fewer than eight trials.
    """
    if plan.schedule.name != "joint":
        raise ConfigError("An audit runs the joint schedule: its canary is used in every round.")
    check_trials(trials)


def points(values: Tensor) -> Shard:
    """A shard of unlabelled points (N, D)."""
    return Shard(values, torch.zeros(len(values), dtype=torch.int64))


def replies(
    requests: list[GradientRequest], shard: Shard, release: Release, key: Key, client: int
) -> list[Tensor]:
    """One client's replies to a whole run."""
    return [
        release(asked, shard, _streams(key, client=client, round=asked.round)) for asked in requests
    ]


def _streams(key: Key, *, client: int, round: int) -> Callable[[str], Stream]:
    return lambda purpose: key.stream(purpose, client=client, round=round)
