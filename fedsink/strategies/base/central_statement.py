"""privacy.json of the central mode: the promise to each observer, in numbers and in words.

Where the noise of a cohort's sum is the plan's, it states the assumption and the ε without it:
these ε are by privacy loss distributions, whose bounds are tight also for little noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fedsink.configuration import noise_entries
from fedsink.privacy import ACCOUNTANTS, LOCAL_NOISE, NoiseShare, PrivacyPlan, UnprotectedPlan
from fedsink.privacy.accounting.composition import trade_off
from fedsink.privacy.integer_gaussian import IntegerGaussian
from fedsink.secagg.graph import most_colluders
from fedsink.values import names_of

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

_MASKED = {
    "aggregation": (
        "Replies are masked (fedsink.secagg): the server sees who answers and the sum of each "
        "cohort's survivors, and no reply. It holds while fewer than a third of a cohort's clients "
        "(a tenth above 64) collude with the server, and owners trust the right keys: "
        "docs/secure_aggregation.md. Against more, `colluders` counts a reply as seen alone."
    ),
    "dropout": (
        "A sum that more than tolerate_dropouts clients are missing from is not unmasked: the "
        "message is void, and participation counts it."
    ),
}
_ASSUMPTIONS = {
    "aggregation": (
        "Replies are seen by nobody; the server learns the sum of each cohort's replies and "
        "nothing else. A secure aggregation protocol would see to that; this run simulates one: "
        "its server adds replies up and looks at none."
    ),
    "collusion": (
        "Clients of a cohort do not tell the server what noise they drew; each knows its own, so "
        "that against a curious client one share is missing. colluders says what is left, where "
        "tolerate_dropouts others have dropped out as well."
    ),
    "dropout": (
        "No more than tolerate_dropouts clients of a cohort fail to answer; a share that does not "
        "arrive is missing like one that was told. In this run all clients answer, or it stops."
    ),
    "integers": (
        "Every client divides its total by the granularity, rounds to whole numbers, and adds a "
        "discrete Gaussian; sums are modulo 2^bits. epsilon accounts for the rounding and for the "
        "divergence from the plan's Gaussian (fedsink/privacy/integer_gaussian.py has the proof). "
        "A sum that does not fit into the bits costs utility and no privacy."
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

    learned: ClassVar[str] = "which records were sampled (a fixed capacity hides how many)"

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
        sentences = ""
        if plan.adjacency == "add-remove":
            sentences += " Replacing one record by another is another, larger guarantee."
        if plan.adjacency != "client":
            sentences += (
                " The subsampling needs batch and running time to stay secret: a simulation does "
                "not hide them from whoever runs it."
            )
        return sentences


def central_statement(
    plan: PrivacyPlan,
    clients: int,
    noise: str,
    sample: SampleOfRecords,
    accountant: str = "pld",
    share: NoiseShare = LOCAL_NOISE,
    integers: Sequence[IntegerGaussian] = (),
) -> dict[str, Any]:
    """Returns the content of privacy.json for the central mode.

    `noise` is the key's kind, or "node" where each node's owner decides; `sample` has the method's
    words. `integers` are the
    mechanisms of shared noise, one for each size of cohort; empty: nothing is shared.
    """
    shared = bool(integers)
    persons = _PERSONS if shared else "a person with records at several clients (their ε compose); "
    whole = "" if plan.adjacency == "client" else f"a client as a whole; {persons}"
    of_client = {
        "epsilon": max([plan.epsilon(accountant), *(one.epsilon(accountant) for one in integers)]),
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
        **({"clip_promised_by": _OF_A_CLIP.format(type(plan.clip))} if plan.clip.own else {}),
        "sensitivity": plan.sensitivity,
        "sigma": plan.noise_multiplier,
        "noise_std": plan.noise_std,
        "rate": plan.rate,
        "rounds": plan.rounds,
        "schedule": plan.schedule.name,
        "rounds_per_record": plan.uses,
        "accountant": accountant,
        "accountant_library": ACCOUNTANTS.find(accountant).library,
        **sample.entries(plan, accountant),
        **(_shared_noise(plan, clients, share, integers) if shared else {}),
        "trade_off": trade_off(
            [plan.spent()], 2 * max((i.divergence for i in integers), default=0)
        ),
        "clients": [{"client": name, **of_client} for name in names_of(range(clients))],
        **noise_entries(noise),
        "protected": (
            f"{_PROTECTED[plan.adjacency]}, against {_SEEN_BY if shared else _EVERYBODY}. "
            "The guarantee is the whole plan's, also for a run that stops early. Clients hold "
            "disjoint records, so the run's ε is the largest of theirs."
        ),
        "not_protected": (
            f"That a client takes part; {whole}the choice of hyper-parameters; the public numbers "
            f"in the configuration (label map, nominal sizes, rate).{sample.caveats(plan)}"
        ),
    }


def _shared_noise(
    plan: PrivacyPlan, clients: int, share: NoiseShare, integers: Sequence[IntegerGaussian]
) -> dict[str, Any]:
    """Returns the entries `epsilon_without_aggregator` and `noise_share` of privacy.json."""
    tolerated, sizes = share.tolerate_dropouts, share.cohorts(plan.schedule, clients)
    largest, grid = integers[-1], integers[-1].fixed_point
    most = largest.parts - 1  # all who must answer, except one
    colluders = sorted({min(x, most) for x in (1, -(-sizes[-1] // 10), -(-sizes[-1] // 3), most)})
    hidden = min(map(most_colluders, sizes)) if share.masked else most
    left = {x: share.left(plan, clients, x if x <= hidden else most) for x in colluders}
    beside = max(one.divergence for one in integers)
    epsilons = {x: of_rest.epsilon("pld") + beside for x, of_rest in left.items()}
    return {
        "epsilon_without_aggregator": epsilons[most],
        "noise_share": {
            "name": share.name,
            "tolerate_dropouts": tolerated,
            "masked": share.masked,
            "accountant": "pld",
            "bits": grid.bits,
            "granularity": grid.granularity,
            "radius": grid.radius,
            "values": largest.size,
            "sensitivity": grid.granularity * largest.sensitivity,
            "epsilon": max(one.epsilon("pld") for one in integers),
            "epsilon_divergence": beside,
            "wrap_probability": min(
                1.0,
                plan.rounds
                * max(o.wrap_probability(m) for o, m in zip(integers, sizes, strict=True))
                * min(clients, plan.schedule.cohorts),
            ),
            "cohorts": [
                {"clients": m, "sharers": one.parts, "noise_std": one.std}
                for m, one in zip(sizes, integers, strict=True)
            ],
            "colluders": [
                {"clients": x, "sigma": left[x].noise_multiplier, "epsilon": epsilons[x]}
                for x in colluders
            ],
            "assumptions": _ASSUMPTIONS | (_MASKED if share.masked else {}),
        },
    }


_OF_A_CLIP = (
    "{0.__module__}.{0.__qualname__}, on the word of who wrote it: that each gradient's result "
    "depends on that gradient alone. Its norm is clipped by fedsink."
)
_NULL_WITHOUT_PRIVACY = (
    "epsilon", "delta", "unit", "adjacency", "adjacency_name", "accountant", "accountant_library",
    "clip_bound", "sensitivity", "epsilon_unamplified", "trade_off",
)  # fmt: skip


def unprotected_statement(plan: UnprotectedPlan, clients: int) -> dict[str, Any]:
    """Returns the content of privacy.json for the central mode without clip and noise.

    It has the keys of `central_statement` without a capacity, and null for every number of a
    guarantee: JSON has no ∞, and a reader that looks for a number should find none.
    """
    of_client = {"epsilon": None, "rate": plan.rate, "sigma": 0.0, "uses_per_record": plan.uses}
    return {
        "model": "central",
        **dict.fromkeys(_NULL_WITHOUT_PRIVACY),
        "mechanism": "none: neither clip nor noise (ε = ∞)",
        "clip": "none",
        "sigma": 0.0,
        "noise_std": 0.0,
        "rate": plan.rate,
        "rounds": plan.rounds,
        "schedule": plan.schedule.name,
        "rounds_per_record": plan.uses,
        "capacity": plan.capacity,
        "clients": [{"client": name, **of_client} for name in names_of(range(clients))],
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
    privacy: Mapping[str, Any], share: NoiseShare, clients: int, sample: SampleOfRecords
) -> str | None:
    """Returns a line for the person who starts a run: ε, and the ε left without assumptions."""
    if privacy["epsilon"] is None:
        return None
    unamplified, bare = "", privacy.get("epsilon_unamplified")
    if bare is not None and bare > privacy["epsilon"]:
        unamplified = (
            f"; it counts on a secret, {sample.learned}: against whoever learns it ε = {bare:.4g}"
        )
    if "noise_share" in privacy:
        shared = privacy["noise_share"]
        sizes = " or ".join(str(cohort["clients"]) for cohort in shared["cohorts"])
        left = "".join(
            f"ε = {left['epsilon']:.3g} against the server and {left['clients']} of them; "
            for left in shared["colluders"][:-1]
        )
        return (
            f"noise.share={share.name}: ε = {privacy['epsilon']:.3g} holds for sums of {sizes} "
            f"replies ({shared['bits']} bits); {left}ε = "
            f"{privacy['epsilon_without_aggregator']:.3g} for a reply alone{unamplified}."
        )
    epsilon, delta, unit = (privacy[name] for name in ("epsilon", "delta", "unit"))
    line = f"ε = {epsilon:.4g}, δ = {delta:.3g} per {unit}{unamplified}."
    if share.name != "local":
        line += (
            f" noise.share={share.name} changes nothing here: with clients={clients} and "
            f"tolerate_dropouts={share.tolerate_dropouts} every client adds the whole noise."
        )
    return line
