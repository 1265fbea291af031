"""privacy.json of the central mode: what is promised to whom, in numbers and in words.

Where the noise of a cohort's sum is the plan's, it says what is assumed and what is left without:
those ε are by privacy loss distributions, whose bounds are tight also for little noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsink.configuration import noise_entries
from fedsink.privacy import LIBRARIES, LOCAL_NOISE, CriticClip, NoiseShare, PrivacyPlan

OF_IMAGES = "Poisson-subsampled Gaussian on clipped gradients of the generated images"

_EVERYBODY = (
    "everybody who sees the messages, the server included, and everybody who sees the generator"
)

_PROTECTED = {
    "add-remove": "One labelled record of one client",
    "replace-one": "The value and the label of one record of one client",
    "user": "All records of one user at one client",
    "client": "All records of one client together",
}
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


def central_statement(
    plan: PrivacyPlan,
    clients: int,
    noise: str,
    accountant: str = "pld",
    share: NoiseShare = LOCAL_NOISE,
    *,
    mechanism: str = OF_IMAGES,
) -> dict[str, Any]:
    """The content of privacy.json for central mode.

    Args:
        plan: the plan every client runs.
        clients: K.
        noise: the key's kind, or "node" where each node's owner decides.
        accountant: which accountant's ε is the headline.
        share: who adds how much of the noise.
        mechanism: what is clipped and noised, in words.
    """
    shared = share.gains(plan.schedule, clients)
    one = {
        "epsilon": plan.epsilon(accountant),
        "rate": plan.rate,
        "sigma": plan.noise_multiplier,
        "uses_per_record": plan.uses,
    }
    return {
        "model": "central",
        "epsilon": one["epsilon"],  # the largest of the clients', whose records are disjoint
        "delta": plan.delta,
        "unit": plan.unit,
        "adjacency": plan.adjacency_words,
        "adjacency_name": plan.adjacency,
        "mechanism": mechanism,
        "clip": plan.clip.name,
        "clip_bound": plan.clip.bound,
        "sensitivity": plan.sensitivity,
        "sigma": plan.noise_multiplier,
        "noise_std": plan.noise_std,
        "rate": plan.rate,
        "rounds": plan.rounds,
        "schedule": plan.schedule.name,
        "rounds_per_record": plan.uses,
        "accountant": accountant,
        "accountant_library": LIBRARIES[accountant],
        **_sample(plan, accountant),
        **(shared_noise(plan, clients, share) if shared else {}),
        "clients": [{"client": k, **one} for k in range(clients)],
        **noise_entries(noise),
        "protected": (
            f"{_PROTECTED[plan.adjacency]}, against {SEEN_BY if shared else _EVERYBODY}. "
            "The guarantee is the whole plan's, also for a run that stops early. Clients hold "
            "disjoint records, so the run's ε is the largest of theirs."
        ),
        "not_protected": _not_protected(plan, shared),
    }


def _sample(plan: PrivacyPlan, accountant: str) -> dict[str, Any]:
    """How the sample is kept secret, and what is left where it is not."""
    if not plan.clip.sampled and plan.rate < 1.0:
        return {
            "capacity": None,
            "epsilon_unamplified": plan.epsilon_unamplified(accountant),
            "sample_secrecy": (
                "In every round each critic is asked with the probability `rate`, by coins of its "
                "client. All are trained, asked or not, so that no critic remembers who was asked, "
                "and neither running time nor memory tells. Against somebody who learns the coins, "
                "epsilon_unamplified is what is left."
            ),
        }
    if not plan.clip.sampled:
        return {
            "capacity": None,
            "epsilon_unamplified": plan.epsilon(accountant),
            "sample_secrecy": (
                "No sampling is assumed: everybody may know who answers in which round, on which "
                "records, and for how long."
            ),
        }
    if plan.capacity is None:
        return {
            "capacity": None,
            "epsilon_unamplified": plan.epsilon_unamplified(accountant),
            "sample_secrecy": (
                "Not enforced: without a fixed batch capacity, running time and memory depend on "
                "the sample's size. Against somebody who learns who was sampled, "
                "epsilon_unamplified is what is left."
            ),
        }
    return {
        "capacity": plan.capacity,
        "nominal_records": plan.nominal_records,
        "delta_overflow": plan.overflow,
        "sample_secrecy": (
            f"Every batch is computed at a fixed capacity of {plan.capacity} records, whatever "
            "was sampled. The part of δ that a fuller sample costs is delta_overflow."
        ),
    }


def _not_protected(plan: PrivacyPlan, shared: bool) -> str:
    """What the guarantee does not cover."""
    persons = PERSONS if shared else "a person with records at several clients (their ε compose); "
    whole = "" if plan.adjacency == "client" else f"a client as a whole; {persons}"
    sampled = plan.clip.sampled
    replacing = (
        " Replacing one record by another is another, larger guarantee."
        if sampled and plan.adjacency == "add-remove"
        else ""
    )
    amplified = (
        " The subsampling needs batch and running time to stay secret: a simulation does not "
        "hide them from whoever runs it."
        if sampled and plan.adjacency != "client"
        else " Which critics are asked has to stay secret: a simulation does not hide it from "
        "whoever runs it."
        if plan.rate < 1.0 and plan.adjacency != "client"
        else ""
    )
    return (
        f"That a client takes part; {whole}the choice of hyper-parameters; the public numbers in "
        f"the configuration (label map, nominal sizes, rate).{replacing}{amplified}"
    )


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
    """One line for whoever starts a run: its ε, and what is left without what it assumes.

    Args:
        stated: the content of privacy.json.
        share: who adds how much.
        clients: K.
    """
    if "noise_share" in stated:
        what = stated["noise_share"]
        sizes = " or ".join(str(cohort["clients"]) for cohort in what["cohorts"])
        left = "".join(
            f"ε = {missing['epsilon']:.3g} with {missing['missing']} missing; "
            for missing in what["missing_shares"][:-1]
        )
        return (
            f"noise.share={share.name}: ε = {stated['epsilon']:.3g} holds for sums of {sizes} "
            f"replies; {left}ε = {stated['epsilon_without_aggregator']:.3g} for a reply alone"
            f"{_unamplified(stated)}."
        )
    if stated["epsilon"] is None:
        return None
    line = (
        f"ε = {stated['epsilon']:.4g}, δ = {stated['delta']:.3g} per {stated['unit']}"
        f"{_unamplified(stated)}."
    )
    if share.name != "local":
        line += (
            f" noise.share={share.name} changes nothing here: with clients={clients} and "
            f"tolerate_dropouts={share.tolerate_dropouts} every client adds the whole noise."
        )
    return line


def _unamplified(stated: Mapping[str, Any]) -> str:
    """What is left of ε where the sample is not secret; "" where that makes no difference."""
    bare = stated.get("epsilon_unamplified")
    if bare is None or bare <= stated["epsilon"]:
        return ""
    learns = (
        "which critics were asked"
        if stated["clip"] == CriticClip.name
        else "which records were sampled (capacity=auto hides how many)"
    )
    return f"; ε = {bare:.4g} without amplification by sampling, against whoever learns {learns}"
