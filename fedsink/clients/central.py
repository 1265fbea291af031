"""Checks and charges of all answers of the central mode, which are answers to a plan's uses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from fedsink.clients.answer import Answer
from fedsink.clients.ledger.charge import Charge
from fedsink.clients.policy import Policy
from fedsink.data.spec import DataSpec
from fedsink.data.views import view_from_dict
from fedsink.errors import ReleaseRefusedError
from fedsink.privacy.integer_gaussian import IntegerGaussian
from fedsink.privacy.plan import PrivacyPlan
from fedsink.protocol.aggregation import sum_name
from fedsink.secagg.parameters import Parameters
from fedsink.secagg.refusals import SumError
from fedsink.values import read_json


class CentralAnswer(Answer):
    """An answer to uses of one plan in one run.

    Guarantees:
        - Noise is shared with at most as many clients as the owner's settings put in one cohort.
        - A class or a round that the plan's schedule does not give the client is refused.
        - A view that is not of the node's data is refused before it is built, and so is a capacity
          above the public number of records, by every engine.
        - Shared noise that does not fit into its integers is refused before it is charged.

    Args:
        uses: each has the run, round, label, plan, share, fixed point, view and rows of a
            `GradientRequest`.
        images: generated images in the message.
        size: number of values that are released for one use.
    """

    limits: ClassVar[Mapping[str, int | None]] = {"maximum_images": None}
    values: int

    def __init__(self, uses: Sequence[Any], images: int, size: int) -> None:
        if not uses:
            raise ValueError("A message must ask for at least one use.")
        self.uses, self.images, self.plan, self.size = uses, images, uses[0].plan, size
        self.run, self.share = uses[0].run, max(use.share for use in uses)
        self.places = [(use.round, use.label) for use in uses]
        self.parts = [str(use.round) for use in uses]
        self.most_records = self.plan.nominal_records
        self.of_users = self.plan.unit == "user"
        self.protected = self.plan.protected

    def check_policy(self, policy: Policy) -> None:
        """Refuses other mechanisms, too many images, and plans that the owner does not allow."""
        for word in self.words():
            policy.check_mechanism(word)
        policy.check_limit("maximum_images", self.images, "images")
        for use in self.uses:
            policy.check_use(use.plan, use.share, use.label)

    def check_turn(self, client: int, clients: int) -> None:
        """Refuses uses for which the plan's schedule does not ask this client."""
        for use in self.uses:
            if not use.plan.schedule.answers(client, use.round):
                raise ReleaseRefusedError(f"Round {use.round} is not a turn of client {client}.")
            scheduled = use.plan.schedule.label(client, use.round)
            if use.label != scheduled:
                raise ReleaseRefusedError(
                    f"Round {use.round} is for class {scheduled} at client {client}."
                )
            if use.share == 1:
                continue
            cohort = use.plan.schedule.cohort(client, clients)
            if use.share > cohort:
                raise ReleaseRefusedError(
                    f"The request spreads the noise over {use.share} clients, and those that are "
                    f"asked the same as client {client} are {cohort}."
                )

    def check_sum(self, parameters: Parameters, client: int, clients: int) -> None:
        """Refuses a sum that is not of this request's replies, or that may hold too little noise.

        The sum of fewer replies than share the noise would hold less than the plan's. A sum over a
        part of the cohort would let the server choose a part with many that collude with it.
        """
        first = self.uses[0]
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
        """Refuses uses that do not belong together, or views of other records than the data's."""
        first = self.uses[0]
        common = (first.plan, first.run, first.share, first.fixed_point, first.view)
        if any(
            (use.plan, use.run, use.share, use.fixed_point, use.view) != common for use in self.uses
        ):
            raise ValueError(
                "The uses of one message belong to one plan and one run, with one share of noise "
                "and one view."
            )
        # Before the view is built, which takes time and memory in proportion to its shape.
        if first.view.get("shape") not in (data.shape, list(data.shape)):
            raise ValueError("The request's view is for records of another shape than the data's.")
        capacity, public = self.plan.capacity, data.nominal_records
        if capacity is not None and capacity > public:
            # It would hide nothing more, and cost memory and time in proportion.
            raise ValueError(f"The plan has a capacity of {capacity}, the data {public} records.")
        if len(set(self.parts)) != len(self.parts):
            raise ValueError("The uses of one message are in different rounds.")
        dimension = _dimension(json.dumps(first.view, sort_keys=True))
        for use in self.uses:
            if use.rows.shape[1] != dimension:
                raise ValueError(
                    f"The rows have {use.rows.shape[1]} coordinates, the records in the "
                    f"request's view {dimension}."
                )

    def charge(self, *, trusted: bool) -> Charge:
        """All rounds of the plan; see `central_charge`."""
        return central_charge(self.plan, self.uses[0].shared_noise(self.size), trusted=trusted)


@lru_cache(maxsize=16)
def central_charge(
    plan: PrivacyPlan, shared: IntegerGaussian | None = None, *, trusted: bool = False
) -> Charge:
    """A central run: T rounds, of which a labelled record takes part in at most `plan.uses`.

    `shared` is the mechanism of a reply with a share of the plan's noise, spread over t′ clients.
    By itself this client can prove only the ε of its own reply, with σ/√t′, and that ε is charged;
    the plan itself where the aggregation is `trusted`: the owner vouches that nobody sees less than
    a sum with all of the noise. ε holds the cost of integers beside their plan as well
    (`IntegerGaussian.divergence`).
    """
    share, beside = (1, 0.0) if shared is None else (shared.sharers, shared.divergence)
    charged = plan if trusted else plan.with_noise(1 / share)
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


@lru_cache(maxsize=8)
def _dimension(view: str) -> int:
    return view_from_dict(read_json(view)).dimension
