"""privacy.json of the local mode: what is promised to whom, in numbers and in words."""

from __future__ import annotations

from typing import Any

from fedsink.configuration import noise_entries
from fedsink.protocol.privatize_once import LocalPlan


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
        **noise_entries(noise),
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
