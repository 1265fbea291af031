"""privacy.json of the central mode: the promise to each observer, in numbers and in words.

Where the noise of a cohort's sum is the plan's, it states the assumption and the ε without it:
these ε are by privacy loss distributions, whose bounds are tight also for little noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fedsink.configuration import noise_entries
from fedsink.privacy import LIBRARIES, LOCAL_NOISE, NoiseShare, PrivacyPlan, UnprotectedPlan

_EVERYBODY = (
    "everybody who sees the messages, the server included, and everybody who sees the generator"
)

_PROTECTED = {
    "add-remove": "One labelled record of one client",
    "replace-one": "The value and the label of one record of one client",
    "user": "All records of one user at one client",
    "client": "All records of one client together",
}
_SEEN_BY = (
    "everybody who sees no more of a round than the sum of a cohort's replies (noise_share says "
    "who makes sure of that), and everybody who sees the generator"
)
_PERSONS = (
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


class SampleOfRecords:
    """Words for a mechanism that draws a batch of records in every round.

    A method whose clients draw something else derives its words from these.

    Args:
        mechanism: the clipped and noised quantity, in words.

    Attributes:
        learned: the secret that amplification by sampling assumes.
    """

    learned: ClassVar[str] = "which records were sampled (capacity=auto hides how many)"

    def __init__(self, mechanism: str) -> None:
        self.mechanism = mechanism

    def entries(self, plan: PrivacyPlan, accountant: str) -> dict[str, Any]:
        """Returns how the sample is kept secret, and the ε that is left where it is not."""
        if plan.capacity is None:
            return {
                "capacity": None,
                "epsilon_unamplified": plan.epsilon_unamplified(accountant),
                "sample_secrecy": (
                    "Not enforced: without a fixed batch capacity, running time and memory depend "
                    "on the sample's size. Against somebody who learns who was sampled, "
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

    def caveats(self, plan: PrivacyPlan) -> str:
        """Returns the sentences of `not_protected` that follow from the sample."""
        said = ""
        if plan.adjacency == "add-remove":
            said += " Replacing one record by another is another, larger guarantee."
        if plan.adjacency != "client":
            said += (
                " The subsampling needs batch and running time to stay secret: a simulation does "
                "not hide them from whoever runs it."
            )
        return said


OF_IMAGES = SampleOfRecords(
    "Poisson-subsampled Gaussian on clipped gradients of the generated images"
)


def central_statement(
    plan: PrivacyPlan,
    clients: int,
    noise: str,
    accountant: str = "pld",
    share: NoiseShare = LOCAL_NOISE,
    sample: SampleOfRecords = OF_IMAGES,
) -> dict[str, Any]:
    """Returns the content of privacy.json for the central mode.

    Args:
        plan: the plan that every client runs.
        clients: K.
        noise: the key's kind, or "node" where each node's owner decides.
        accountant: of the reported ε.
        share: division of the noise among clients.
        sample: the method's words for its mechanism and sample.
    """
    shared = share.gains(plan.schedule, clients)
    of_client = {
        "epsilon": plan.epsilon(accountant),
        "rate": plan.rate,
        "sigma": plan.noise_multiplier,
        "uses_per_record": plan.uses,
    }
    return {
        "model": "central",
        "epsilon": of_client["epsilon"],  # the largest of the clients', whose records are disjoint
        "delta": plan.delta,
        "unit": plan.unit,
        "adjacency": plan.adjacency_words,
        "adjacency_name": plan.adjacency,
        "mechanism": sample.mechanism,
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
        **sample.entries(plan, accountant),
        **(_shared_noise(plan, clients, share) if shared else {}),
        "clients": [{"client": k, **of_client} for k in range(clients)],
        **noise_entries(noise),
        "protected": (
            f"{_PROTECTED[plan.adjacency]}, against {_SEEN_BY if shared else _EVERYBODY}. "
            "The guarantee is the whole plan's, also for a run that stops early. Clients hold "
            "disjoint records, so the run's ε is the largest of theirs."
        ),
        "not_protected": _not_protected(plan, shared, sample),
    }


def _not_protected(plan: PrivacyPlan, shared: bool, sample: SampleOfRecords) -> str:
    persons = _PERSONS if shared else "a person with records at several clients (their ε compose); "
    whole = "" if plan.adjacency == "client" else f"a client as a whole; {persons}"
    return (
        f"That a client takes part; {whole}the choice of hyper-parameters; the public numbers in "
        f"the configuration (label map, nominal sizes, rate).{sample.caveats(plan)}"
    )


def _shared_noise(plan: PrivacyPlan, clients: int, share: NoiseShare) -> dict[str, Any]:
    """Returns the entries `epsilon_without_aggregator` and `noise_share` of privacy.json."""
    tolerated, sizes = share.tolerate_dropouts, share.cohorts(plan.schedule, clients)
    most = sizes[-1] - 1  # of the largest cohort all except one
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


_NULL_WITHOUT_PRIVACY = (
    "epsilon", "delta", "unit", "adjacency", "adjacency_name", "accountant", "accountant_library",
    "clip_bound", "sensitivity", "epsilon_unamplified",
)  # fmt: skip


def unprotected_statement(plan: UnprotectedPlan, clients: int) -> dict[str, Any]:
    """Returns the content of privacy.json for the central mode without clip and noise.

    It has the keys of `central_statement`, and null for every number of a guarantee: JSON has no ∞,
    and a reader that looks for a number should find none.

    Args:
        plan: the plan that every client runs.
        clients: K.
    """
    of_client = {"epsilon": None, "rate": plan.rate, "sigma": 0.0, "uses_per_record": plan.uses}
    return {
        "model": "central",
        **dict.fromkeys(_NULL_WITHOUT_PRIVACY),
        "mechanism": "none: gradients of the generated images, neither clipped nor noised (ε = ∞)",
        "clip": "none",
        "sigma": 0.0,
        "noise_std": 0.0,
        "rate": plan.rate,
        "rounds": plan.rounds,
        "schedule": plan.schedule.name,
        "rounds_per_record": plan.uses,
        "capacity": plan.capacity,
        "clients": [{"client": k, **of_client} for k in range(clients)],
        "sample_secrecy": "Of no use where nothing is noised.",
        "noise": "none",
        "noise_meaning": "Nothing is noised.",
        "protected": "Nothing.",
        "not_protected": (
            "Every record: gradients left the clients as they were, so that the server, everybody "
            "who sees the messages and everybody who sees the generator may learn records from "
            "them. The run is a ceiling for public data."
        ),
    }


def notice(
    stated: Mapping[str, Any], share: NoiseShare, clients: int, sample: SampleOfRecords = OF_IMAGES
) -> str | None:
    """Returns a line for the person who starts a run: ε, and the ε left without assumptions.

    Args:
        stated: the content of privacy.json.
        share: division of the noise among clients.
        clients: K.
        sample: the method's words for its mechanism and sample.
    """
    if stated["epsilon"] is None:
        return None
    unamplified, bare = "", stated.get("epsilon_unamplified")
    if bare is not None and bare > stated["epsilon"]:
        unamplified = (
            f"; it counts on a secret, {sample.learned}: against whoever learns it ε = {bare:.4g}"
        )
    if "noise_share" in stated:
        shared = stated["noise_share"]
        sizes = " or ".join(str(cohort["clients"]) for cohort in shared["cohorts"])
        left = "".join(
            f"ε = {missing['epsilon']:.3g} with {missing['missing']} missing; "
            for missing in shared["missing_shares"][:-1]
        )
        return (
            f"noise.share={share.name}: ε = {stated['epsilon']:.3g} holds for sums of {sizes} "
            f"replies; {left}ε = {stated['epsilon_without_aggregator']:.3g} for a reply alone"
            f"{unamplified}."
        )
    line = (
        f"ε = {stated['epsilon']:.4g}, δ = {stated['delta']:.3g} per {stated['unit']}{unamplified}."
    )
    if share.name != "local":
        line += (
            f" noise.share={share.name} changes nothing here: with clients={clients} and "
            f"tolerate_dropouts={share.tolerate_dropouts} every client adds the whole noise."
        )
    return line
