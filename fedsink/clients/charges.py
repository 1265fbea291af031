"""What the plan of a message asks of the node's budget."""

from __future__ import annotations

from functools import lru_cache

from fedsink.privacy import PrivacyPlan
from fedsink.privacy.adjacency import REPLACE_ONE
from fedsink.privacy.ledger import Charge
from fedsink.protocol import LocalPlan


@lru_cache(maxsize=16)
def central_charge(plan: PrivacyPlan, share: int = 1, *, trusted: bool = False) -> Charge:
    """A central run: T rounds, of which a labelled record takes part in at most `plan.uses`.

    Args:
        plan: what is asked for.
        share: n, over how many clients the plan's noise is spread. What this client can prove
            by itself is the ε of its own reply, with σ/√n, and that is charged.
        trusted: the owner vouches that nobody sees less than a sum with all of the plan's noise:
            the plan itself is charged.
    """
    charged = plan if trusted else plan.with_noise(1 / share)
    summable = plan.overflow == 0  # else a full batch is paid for in δ, once for the whole plan
    spread = {} if share == 1 else {"share": share, "aggregation_trusted": trusted}
    return Charge(
        adjacency=plan.adjacency,
        plan={"mode": "central", **plan.to_dict(), **spread},
        event=charged.event,
        use=charged.event.event if summable else None,
        rounds=plan.rounds,
        uses=plan.uses,
        delta=plan.delta,
        epsilon=charged.epsilon,
        rough_epsilon=charged.rough_epsilon,
    )


def local_charge(plan: LocalPlan) -> Charge:
    """Local mode: every record is released once, and its ε is the sum of both mechanisms'."""
    mechanism = plan.image_mechanism if plan.label_mechanism is None else plan.product
    return Charge(
        adjacency=REPLACE_ONE,
        plan={"mode": "ldp", **plan.to_dict()},
        event=mechanism.event,
        use=None,
        rounds=1,
        uses=1,
        delta=plan.delta,
        epsilon=lambda: plan.total_epsilon,
    )
