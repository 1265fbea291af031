"""privacy.json where the noise of a cohort's sum is the plan's: what is assumed, and what is left.

All ε here are by privacy loss distributions, whose bounds are tight also for little noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsink.privacy import NoiseShare, PrivacyPlan

SEEN_BY = (
    "everybody who sees no more of a round than the sum of a cohort's replies (noise_share says "
    "who makes sure of that), and everybody who sees the generator"
)
PERSONS = (
    "a person with records at several clients (those of one cohort change one sum, under one "
    "noise: their ε do not compose but grow as a group's); "
)

_ASSUMPTIONS = {
    "aggregation": (
        "Replies are seen by nobody; the server learns the sum of each cohort's replies and "
        "nothing else. A secure aggregation protocol would see to that; this run simulates one: "
        "its server adds replies up and looks at none."
    ),
    "collusion": (
        "No more than tolerate_dropouts clients of a cohort tell anybody what noise they drew, or "
        "leave it out; each client knows its own, so that against a curious client one share is "
        "missing. missing_shares says what is left."
    ),
    "dropout": (
        "No more than tolerate_dropouts clients of a cohort fail to answer; a share that does not "
        "arrive is missing like one that was told. In this run all clients answer, or it stops."
    ),
    "quantisation": (
        "Sums are of real numbers, in double precision. A real protocol adds integers modulo 2^b: "
        "replies must be rounded and clipped to its range and noised with integers, which "
        "costs some ε of its own (Kairouz, Liu, Steinke 2021). Float-safety is claimed for no sum."
    ),
}


def shared_noise(plan: PrivacyPlan, clients: int, share: NoiseShare) -> dict[str, Any]:
    """The entries `epsilon_without_aggregator` and `noise_share` of privacy.json.

    Args:
        plan: whose noise the sums have.
        clients: K.
        share: secure aggregation.
    """
    tolerated, sizes = share.tolerate_dropouts, share.cohorts(plan.schedule, clients)
    most = sizes[-1] - 1  # of the largest cohort all but one
    missing = sorted({x for x in (tolerated + 1, most // 2, most) if tolerated < x <= most})
    left = {x: share.left(plan, clients, x) for x in (*missing, most)}
    epsilons = {x: of_rest.epsilon("pld") for x, of_rest in left.items()}
    return {
        "epsilon_without_aggregator": epsilons[most],
        "noise_share": {
            "name": share.name,
            "tolerate_dropouts": tolerated,
            "accountant": "pld",
            "cohorts": [
                {
                    "clients": m,
                    "sharers": m - tolerated,
                    "noise_std": plan.with_noise(1 / (m - tolerated)).noise_std,
                }
                for m in sizes
            ],
            "missing_shares": [
                {"missing": x, "sigma": left[x].noise_multiplier, "epsilon": epsilons[x]}
                for x in missing
            ],
            "assumptions": _ASSUMPTIONS,
        },
    }


def notice(stated: Mapping[str, Any], share: NoiseShare, clients: int) -> str | None:
    """One line for whoever starts a run whose clients share noise; None where they do not.

    Args:
        stated: the content of privacy.json.
        share: who adds how much.
        clients: K.
    """
    if "noise_share" in stated:
        what = stated["noise_share"]
        sizes = " or ".join(str(cohort["clients"]) for cohort in what["cohorts"])
        left = "".join(
            f"ε = {one['epsilon']:.3g} with {one['missing']} missing; "
            for one in what["missing_shares"][:-1]
        )
        return (
            f"noise.share={share.name}: ε = {stated['epsilon']:.3g} holds for sums of {sizes} "
            f"replies; {left}ε = {stated['epsilon_without_aggregator']:.3g} for a reply alone."
        )
    if share.name != "local":
        return (
            f"noise.share={share.name} changes nothing here: with clients={clients} and "
            f"tolerate_dropouts={share.tolerate_dropouts} every client adds the whole noise."
        )
    return None
