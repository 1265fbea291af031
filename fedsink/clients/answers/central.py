"""Checks and charges of all answers of the central mode, which are answers to rounds of a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import Tensor

from fedsink.clients.answers.base import Answer, Task
from fedsink.clients.owner.ledger.charge import Charge
from fedsink.clients.owner.policy import Policy
from fedsink.clients.records.shard import Shard
from fedsink.data.spec import DataSpec
from fedsink.errors import ReleaseRefusedError
from fedsink.privacy import Clipped, PrivacyPlan
from fedsink.privacy.integer_gaussian import IntegerGaussian
from fedsink.protocol.aggregation import sum_name
from fedsink.protocol.requests import CentralRequest, pack_replies
from fedsink.secagg.parameters import Parameters
from fedsink.secagg.refusals import SumError

if TYPE_CHECKING:
    from flwr.app import RecordDict


class CentralAnswer(Answer):
    """An answer to rounds of one plan in one run: noised totals of a client's records.

    A method names its `Request`, and states `total`. Where a round needs other than a Poisson
    sample of all records, it overrides `compute`; where a message asks for several rounds, `read`.

    Guarantees:
        - Noise is shared with at most as many clients as the owner's settings put in one cohort.
        - A class or a round that the plan's schedule does not give the client is refused.
        - A capacity above the public number of records is refused, by every engine.
        - Shared noise that does not fit into its integers is refused before it is charged.
        - Where `compute` is this one, a reply depends on private data only through the clipped
          total that is noised as the plan says.

    Args:
        requests: those of the message, in increasing rounds.
    """

    Request: ClassVar[type[CentralRequest]]
    values: int  # in a reply; `size` of them for one round

    def __init__(self, requests: Sequence[Any]) -> None:
        if not requests:
            raise ValueError("A message must ask for at least one round.")
        self.requests, self.plan = requests, requests[0].plan
        self.size = math.prod(requests[0].reply_shape)
        self.values = sum(math.prod(request.reply_shape) for request in requests)
        self.run, self.noise_parts = requests[0].run, max(request.share for request in requests)
        self.rounds = [(request.round, request.label) for request in requests]
        self.parts = [str(request.round) for request in requests]
        self.most_records = self.plan.nominal_records
        self.of_users = self.plan.unit == "user"
        self.protected = self.plan.protected

    @classmethod
    def read(cls, record: RecordDict, policy: Policy | None) -> Self:
        """Returns the message's one round."""
        return cls([cls.Request.from_record(record)])

    def check_policy(self, policy: Policy) -> None:
        """Refuses other mechanisms, and plans that the owner does not allow."""
        for word in self.words():
            policy.check_mechanism(word)
        for request in self.requests:
            policy.check_request(request.plan, request.share, request.label)

    def check_turn(self, client: int, clients: int) -> None:
        """Refuses rounds in which the plan's schedule does not ask this client."""
        for request in self.requests:
            if not request.plan.schedule.answers(client, request.round):
                raise ReleaseRefusedError(
                    f"Round {request.round} is not a turn of client {client}."
                )
            scheduled = request.plan.schedule.label(client, request.round)
            if request.label != scheduled:
                raise ReleaseRefusedError(
                    f"Round {request.round} is for class {scheduled} at client {client}."
                )
            if request.share == 1:
                continue
            cohort = request.plan.schedule.cohort(client, clients)
            if request.share > cohort:
                raise ReleaseRefusedError(
                    f"The request spreads the noise over {request.share} clients, and those that "
                    f"are asked the same as client {client} are {cohort}."
                )

    def alike(self, client: int, clients: int) -> range:
        """Returns the client's cohort by the plan's schedule."""
        return self.plan.schedule.members(client, clients)

    def check_sum(self, parameters: Parameters, client: int, clients: int) -> None:
        """Refuses a sum that is not of this request's replies, or that may hold too little noise.

        The sum of fewer replies than share the noise would hold less than the plan's. A sum over a
        part of the cohort would let the server choose a part with many that collude with it.
        """
        first = self.requests[0]
        name = sum_name(f"train.{self.name}", first.round)
        if (parameters.run, parameters.message) != (self.run, name):
            raise SumError("The sum is named after another round.")
        if first.fixed_point is None:
            raise SumError("The request asks for no integers, and masks hide nothing else.")
        if (parameters.bits, parameters.length) != (first.fixed_point.bits, self.values):
            raise SumError("The sum has other numbers than the request's replies.")
        cohort = first.plan.schedule.members(client, clients)
        if parameters.clients != tuple(cohort):
            raise SumError(
                f"The sum is over {len(parameters.clients)} clients, and not over those "
                f"{len(cohort)} that the plan's schedule asks the same as client {client}."
            )
        if parameters.minimum < first.share:
            raise SumError(
                f"A sum of {parameters.minimum} replies would be unmasked, and {first.share} share "
                "the plan's noise."
            )

    def check_data(self, data: DataSpec) -> None:
        """Refuses rounds that do not belong together."""
        first = self.requests[0]
        common = (first.plan, first.run, first.share, first.fixed_point)
        if any(
            (request.plan, request.run, request.share, request.fixed_point) != common
            for request in self.requests
        ):
            raise ValueError(
                "The rounds of one message belong to one plan and one run, and divide the noise "
                "alike."
            )
        capacity, public = self.plan.capacity, data.nominal_records
        if capacity is not None and capacity > public:
            # It would hide nothing more, and cost memory and time in proportion.
            raise ValueError(f"The plan has a capacity of {capacity}, the data {public} records.")
        special = capacity is not None or any(
            request.label is not None for request in self.requests
        )
        if special and type(self).compute is CentralAnswer.compute:
            raise ValueError(f"train.{self.name} samples all records, and fixes no capacity.")
        if len(set(self.parts)) != len(self.parts):
            raise ValueError("No two requests of a message are for one round.")

    def charge(self, *, trusted: bool) -> Charge:
        """Returns the charge of all rounds of the plan; see `central_charge`."""
        return central_charge(self.plan, self.requests[0].shared_noise(self.size), trusted=trusted)

    def total(self, request: Any, sample: Shard) -> Clipped:
        """Returns the clipped total of a round over the sampled records, which may be none.

        No record may move another one's part of it.
        """
        raise NotImplementedError(f"train.{self.name} states no total.")

    def compute(self, task: Task) -> Sequence[Tensor]:
        """Returns the noised total of each round over its Poisson sample."""
        released = []
        for index, request in enumerate(self.requests):
            coins, noise = (task.stream(of, request.round, index) for of in ("sample", "noise"))
            sample = task.shard.part(request.plan.sampler.draw(len(task.shard), coins))
            released.append(request.release(self.total(request, sample), noise))
        return released

    def record(self, reply: Mapping[str, Tensor]) -> RecordDict:
        """Returns the released values, and nothing else."""
        return pack_replies([reply[name] for name in self.parts])


@lru_cache(maxsize=16)
def central_charge(
    plan: PrivacyPlan, shared: IntegerGaussian | None = None, *, trusted: bool = False
) -> Charge:
    """Returns the charge of T rounds, of which a labelled record takes part in `plan.uses`.

    `shared` is the mechanism of a reply with a part of the plan's noise, spread over t′ clients.
    By itself this client can prove only the ε of its own reply, with σ/√t′, and that ε is charged;
    the plan itself where the aggregation is `trusted`: the owner vouches that nobody sees less than
    a sum with all of the noise. ε holds the cost of integers beside their plan as well
    (`IntegerGaussian.divergence`).
    """
    parts, beside = (1, 0.0) if shared is None else (shared.parts, shared.divergence)
    charged = plan if trusted else plan.with_noise(1 / parts)
    spread = {} if shared is None else {**shared.entries(), "aggregation_trusted": trusted}
    return Charge(
        adjacency=plan.adjacency,
        plan={"mode": "central", **plan.to_dict(), **spread},
        event=charged.event,
        rounds=plan.rounds,
        uses=plan.uses,
        delta=plan.delta,
        epsilon=lambda: charged.epsilon() + beside,
        rough_epsilon=charged.rough_epsilon,
    )
