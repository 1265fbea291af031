"""privacy.json of a run with eps=inf."""

from __future__ import annotations

from typing import Any

from fedsink.privacy import UnprotectedPlan

_NEVER = (
    "epsilon", "delta", "unit", "adjacency", "adjacency_name", "accountant", "accountant_library",
    "clip_bound", "sensitivity", "epsilon_unamplified",
)  # fmt: skip


def unprotected_statement(plan: UnprotectedPlan, clients: int) -> dict[str, Any]:
    """The content of privacy.json for the central mode without clip and noise.

    It has the keys of `central_statement`, and null for every number of a guarantee: JSON has no ∞,
    and a reader that looks for a number should find none.

    Args:
        plan: what every client runs.
        clients: K.
    """
    one = {"epsilon": None, "rate": plan.rate, "sigma": 0.0, "uses_per_record": plan.uses}
    return {
        "model": "central",
        **dict.fromkeys(_NEVER),
        "mechanism": "none: gradients of the generated images, neither clipped nor noised (ε = ∞)",
        "clip": "none",
        "sigma": 0.0,
        "noise_std": 0.0,
        "rate": plan.rate,
        "rounds": plan.rounds,
        "schedule": plan.schedule.name,
        "rounds_per_record": plan.uses,
        "capacity": plan.capacity,
        "clients": [{"client": k, **one} for k in range(clients)],
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
