"""An owner's policy file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .tiny import NOMINAL, SIZE

Table = Mapping[str, Any]

CENTRAL = ("clipped-gaussian",)
MECHANISMS = (*CENTRAL, "laplace", "randomized-response")
DIGITS = {
    "lineage": "digits",
    "name": "digits",
    "shape": [1, 8, 8],
    "classes": [str(digit) for digit in range(10)],
    "nominal_records": 1437,
}


def policy(
    *,
    backend: str = "fast",  # of the noise
    budget: Mapping[str, Table],  # by adjacency
    mechanisms: Sequence[str] = MECHANISMS,
    data: Table | None = None,  # replaces keys of the table
    allow: Table | None = None,  # the same
    operators: Table | None = None,  # public keys by name; None: every server is answered
    aggregation: Table | None = None,
) -> str:
    """The text of a policy for a node that holds all of the tiny data."""
    tables: dict[str, Table] = {
        "data": {
            "lineage": "ward",
            "name": "tiny",
            "shape": [SIZE],
            "classes": ["a", "b", "c"],
            "nominal_records": NOMINAL,
            **(data or {}),
        },
        "state": {"folder": "state"},
        "noise": {"backend": backend},
        **({} if operators is None else {"operators.keys": operators}),
        **({} if aggregation is None else {"aggregation": aggregation}),
        **{f"budget.{adjacency}": table for adjacency, table in budget.items()},
        "allow": {
            "mechanisms": list(mechanisms),
            "minimum_noise_multiplier": 0.5,
            "maximum_clip_bound": 0.5,
            "maximum_images": 12,
            **(allow or {}),
        },
    }
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        for name, table in tables.items()
    )


def limits(epsilon: float, delta: float = 1e-4, **more: Any) -> Table:
    """A table of the budget."""
    return {"epsilon": epsilon, "delta": delta, **more}
