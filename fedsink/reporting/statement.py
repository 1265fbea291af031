"""privacy.json: what is promised to whom, in numbers and in words."""

from __future__ import annotations

from typing import Any

from fedsink.privacy import ReproducibleKey, SecretKey
from fedsink.privacy.plan import PrivacyPlan
from fedsink.protocol import LocalPlan

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
}


def central_statement(
    plan: PrivacyPlan, clients: int, noise: str, accountant: str = "pld"
) -> dict[str, Any]:
    """The content of privacy.json for central mode.

    Args:
        plan: the plan every client runs.
        clients: K.
        noise: the key's kind.
        accountant: which accountant's ε is the headline.
    """
    epsilon = plan.epsilon(accountant)
    one = {
        "epsilon": epsilon,
        "rate": plan.rate,
        "sigma": plan.noise_multiplier,
        "uses_per_record": plan.uses,
    }
    return {
        "model": "central",
        "epsilon": epsilon,
        "delta": plan.delta,
        "unit": plan.unit,
        "adjacency": plan.adjacency,
        "mechanism": "Poisson-subsampled Gaussian on clipped gradients of the generated images",
        "clip": plan.clip.name,
        "clip_bound": plan.clip.bound,
        "sensitivity": plan.clip.sensitivity,
        "sigma": plan.noise_multiplier,
        "noise_std": plan.noise_std,
        "rate": plan.rate,
        "rounds": plan.rounds,
        "schedule": plan.schedule.name,
        "rounds_per_record": plan.uses,
        "accountant": accountant,
        "clients": [{"client": k, **one} for k in range(clients)],
        **_noise(noise),
        "protected": (
            "One labelled record of one client, against everybody who sees the messages, the "
            "server included, and everybody who sees the generator. The guarantee is the whole "
            "plan's, also for a run that stops early. Clients hold disjoint records, so the run's "
            "ε is the largest of theirs."
        ),
        "not_protected": (
            "That a client takes part; a client as a whole; a person with records at several "
            "clients (their ε compose); the choice of hyper-parameters; the public numbers in the "
            "configuration (label map, nominal sizes, rate). Replacing one record by another is "
            "another, larger guarantee. The subsampling needs batch and running time to stay "
            "secret: a simulation does not hide them from whoever runs it."
        ),
    }


def local_statement(
    plan: LocalPlan, clients: int, noise: str, training: dict[str, Any]
) -> dict[str, Any]:
    """The content of privacy.json for local mode.

    Args:
        plan: what each client did to each record.
        clients: K.
        noise: the key's kind.
        training: the cost and λ the server trained with.
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
