"""privacy.json: what is promised to whom, in numbers and in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedsink.privacy import LIBRARIES, LOCAL_NOISE, NoiseShare, PrivacyPlan, across_clients
from fedsink.privacy.randomness.keys import EntropyKey, ReproducibleKey, SecretKey
from fedsink.reporting.noise_share import PERSONS, SEEN_BY, shared_noise

if TYPE_CHECKING:
    from fedsink.protocol import LocalPlan  # with Flower, which the central half does without

OF_IMAGES = "Poisson-subsampled Gaussian on clipped gradients of the generated images"

_NOISE = {
    ReproducibleKey.kind: (
        "reproducible",
        "Noise and batches are computed from the published seed, so that the run can be repeated. "
        "Whoever knows the seed can subtract the noise: the guarantee describes the mechanism, and "
        "this run demonstrates it on data that needs no protection.",
    ),
    SecretKey.kind: (
        "secret",
        "Noise and batches are drawn with a key from the operating system that lies outside the "
        "run folder, readable by its owner alone, and is bound to run, client and request.",
    ),
    EntropyKey.kind: (
        "secure",
        "Noise is drawn by OpenDP's float-safe samplers from the operating system's randomness; "
        "no key exists from which it could be computed again.",
    ),
    "node": (
        "node",
        "Each node's owner chooses how its noise is drawn, in a policy file that the server never "
        "sees.",
    ),
}

_EVERYBODY = (
    "everybody who sees the messages, the server included, and everybody who sees the generator"
)

_PROTECTED = {
    "add-remove": "One labelled record of one client",
    "replace-one": "The value and the label of one record of one client",
    "user": "All records of one user at one client",
    "client": "All records of one client together",
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
    guarantee = across_clients([plan] * clients, accountant)
    one = {
        "epsilon": plan.epsilon(accountant),
        "rate": plan.rate,
        "sigma": plan.noise_multiplier,
        "uses_per_record": plan.uses,
    }
    return {
        "model": "central",
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "unit": guarantee.unit,
        "adjacency": guarantee.adjacency_words,
        "adjacency_name": guarantee.adjacency,
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
        **_noise(noise),
        "protected": (
            f"{_PROTECTED[plan.adjacency]}, against {SEEN_BY if shared else _EVERYBODY}. "
            "The guarantee is the whole plan's, also for a run that stops early. Clients hold "
            "disjoint records, so the run's ε is the largest of theirs."
        ),
        "not_protected": _not_protected(plan, shared),
    }


def _sample(plan: PrivacyPlan, accountant: str) -> dict[str, Any]:
    """How the sample is kept secret, and what is left where it is not."""
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
    replacing = (
        " Replacing one record by another is another, larger guarantee."
        if plan.adjacency == "add-remove" and plan.clip.sampled
        else ""
    )
    amplified = (
        " The subsampling needs batch and running time to stay secret: a simulation does not "
        "hide them from whoever runs it."
        if plan.adjacency != "client" and plan.clip.sampled
        else ""
    )
    return (
        f"That a client takes part; {whole}the choice of hyper-parameters; the public numbers in "
        f"the configuration (label map, nominal sizes, rate).{replacing}{amplified}"
    )


def local_statement(
    plan: LocalPlan,
    clients: int,
    noise: str,
    training: dict[str, Any],
    shuffling: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of privacy.json for local mode.

    Args:
        plan: what each client did to each record.
        clients: K.
        noise: the key's kind, or "node" where each node's owner decides.
        training: the cost and λ the server trained with.
        shuffling: the entry of `fedsink.privacy.shuffling_statement`, printed beside the local ε
            and never instead of it; None where nobody shuffles.
    """
    image, label = plan.image_mechanism, plan.label_mechanism
    return {
        "model": "ldp",
        "epsilon": plan.total_epsilon,
        "delta": plan.delta,
        "unit": "record",
        "adjacency": "replace-one",
        "mechanism": plan.mechanism + (" + randomized response on the label" if label else ""),
        "accountant": "summation of image and label (basic composition)",
        "epsilon_image": image.epsilon,
        "epsilon_label": None if label is None else label.epsilon,
        "map": plan.map.to_dict(),
        "sensitivity": plan.map.sensitivity,
        "sensitivity_norm": plan.map.norm,
        "sigma": image.scale,
        "rounds": 1,
        "rounds_per_record": 1,
        "clients": clients,
        "training": training,
        **({} if shuffling is None else {"shuffling": shuffling}),
        **_noise(noise),
        "protected": (
            "Every single record, before it leaves its client, against everybody, the server "
            "included: whatever is computed from the uploads later, for however long, costs "
            "nothing more. The guarantee holds between any two values of the record."
        ),
        "not_protected": (
            "That a client takes part and how many records it holds; a person with several "
            "records (their ε add up); records that are strongly correlated with one another."
        ),
    }


def _noise(kind: str) -> dict[str, str]:
    name, meaning = _NOISE[kind]
    return {"noise": name, "noise_meaning": meaning}
