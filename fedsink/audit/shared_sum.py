"""The server's view of clients that share one noise: the sum of their integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from fedsink.clients.shard import Shard
from fedsink.errors import ConfigError
from fedsink.privacy import Key, PrivacyPlan, Stream
from fedsink.privacy.integer_gaussian import IntegerGaussian
from fedsink.privacy.noise_share import NoiseShare
from fedsink.protocol.dp_sinkhorn import GradientRequest

Release = Callable[[GradientRequest, Shard, Callable[[str], Stream]], Tensor]
"""The client's mechanism, which an audit replaces to plant a fault."""

_BITS = 32  # of a sum of integers
_ROOM = 4.0  # the radius in reaches of a total, so that nothing but the clip limits a canary


@dataclass(frozen=True)
class SharedSum:
    """Clients that share one noise; the server sees the sum of their integers.

    The canary is at an honest client, all others hold nothing. Colluders tell the server what they
    sent, so that it takes their replies, with their shares of the noise, off the sum.

    Args:
        clients: m. 1: the server sees a reply by itself, of floats, with all of the noise.
        colluders: x < m.

    Raises:
        ConfigError: Everybody colludes.
    """

    clients: int = 1
    colluders: int = 0

    def __post_init__(self) -> None:
        if not self.colluders < self.clients:
            raise ConfigError(
                f"colluders={self.colluders} of clients={self.clients} leave nobody to attack: "
                f"take at most {self.clients - 1}."
            )

    @property
    def words(self) -> str:
        """Describes what the server sees of a use."""
        if self.clients == 1:
            return ""
        known = f", {self.colluders} collude" if self.colluders else ""
        return f"sum of {self.clients}{known}, "

    def left(self, plan: PrivacyPlan) -> PrivacyPlan:
        """The plan with the noise that no colluder knows."""
        return NoiseShare().left(plan, self.clients, self.colluders)

    def epsilon(self, request: GradientRequest) -> float:
        """The claim: ε of the sum over the whole plan, against the server and the colluders."""
        assert request.plan.protected
        shared = request.shared_noise(request.rows.numel())
        return self.left(request.plan).epsilon() + (shared.divergence if shared else 0.0)

    def asked(self, request: GradientRequest) -> GradientRequest:
        """The request for a share of the noise, of clients with a record for each dimension."""
        if self.clients == 1:
            return request
        plan = request.plan
        assert plan.protected
        shared = IntegerGaussian.finest(
            plan,
            [self.clients],
            size=request.rows.numel(),
            bits=_BITS,
            radius=_ROOM * plan.clip.reach(request.rows.shape[1]),
        )
        return replace(request, share=self.clients, fixed_point=shared.fixed_point)

    def seen(
        self,
        requests: list[GradientRequest],
        shard: Shard,
        release: Release,
        key: Key,
        number: int,
    ) -> list[Tensor]:
        """The sum of the honest replies, for each use of a whole run: all that the server learns.

        Args:
            requests: One for each use.
            shard: Of the client that may hold canaries.
            release: The clients' mechanism.
            key: Source of every random number.
            number: Of the run, from 0; clients number·m and the next m − 1 answer in it.
        """
        nothing = Shard(shard.images[:0], shard.labels[:0])
        first, honest = number * self.clients, self.clients - self.colluders
        runs = [
            replies(requests, nothing if k else shard, release, key, first + k)
            for k in range(honest)
        ]
        sums = [sum(answers[1:], answers[0]) for answers in zip(*runs, strict=True)]
        grid = requests[0].fixed_point
        return sums if grid is None else [grid.decoded(total) for total in sums]


ALONE = SharedSum()


def replies(
    requests: list[GradientRequest], shard: Shard, release: Release, key: Key, client: int
) -> list[Tensor]:
    """Replies of one client to a whole run."""

    def streams(round: int) -> Callable[[str], Stream]:
        return lambda purpose: key.stream(purpose, client=client, round=round)

    return [release(request, shard, streams(request.round)) for request in requests]
