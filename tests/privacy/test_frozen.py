"""ε, noise and refusals of several hundred plans, frozen at one commit.

`python tests/privacy/test_frozen.py` writes `frozen.json` anew. Run it only when a plan is meant to
cost something different, and let the commit say why.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fedsink.errors import PrivacyError
from fedsink.privacy import ADJACENCIES, PrivacyPlan

FROZEN = Path(__file__).with_name("frozen.json")
CLIPS: dict[str, dict[str, Any]] = {
    "batch": {"bound": 0.5},
    "record": {"bound": 8.0},
    "critic": {"bound": 1.0, "critics": 12},
    "row": {"bound": 1.0, "rows": 40},
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "joint": {},
    "class": {"classes": 10},
    "turn": {"turns": 4},
    "pick": {"clients": 6, "seed": 3},
}
STEPS = ((0.013, 1.1, 4000), (0.2, 2.7, 300), (1.0, 1.07, 50), (1.0, 30.0, 2000))


def settings() -> Iterator[dict[str, Any]]:
    """Plans as `PrivacyPlan.to_dict` writes them, those that are refused among them."""
    for clip, schedule, adjacency, (rate, sigma, rounds), capacity, share in product(
        CLIPS, SCHEDULES, ADJACENCIES, STEPS, (None, 64), (1.0, 0.1)
    ):
        if share != 1.0 and (capacity is not None or schedule != "joint"):
            continue  # the share of the noise acts the same for all of them
        yield {
            "rate": rate,
            "noise_multiplier": sigma * math.sqrt(share),
            "rounds": rounds,
            "clip": {"name": clip, **CLIPS[clip]},
            "schedule": {"name": schedule, "classes": 1, **SCHEDULES[schedule]},
            "delta": 1e-5,
            "adjacency": adjacency,
            "capacity": capacity,
            "nominal_records": None if capacity is None else 300,
        }


def cost_of(setting: dict[str, Any]) -> dict[str, Any]:
    """Uses of a record and of the unit, noise, overflow and ε; or that the plan is refused."""
    try:
        plan = PrivacyPlan.from_dict(setting)
        cost, uses = plan.cost, plan.cost.uses(plan.rounds)
        step = (plan.rate, plan.noise_multiplier, uses, plan.delta)
        return {
            "uses_of_record": plan.uses,
            "uses": uses,
            "std": plan.noise_std,
            "overflow": plan.overflow,
            "rdp": cost.quick_bound(*step),
            "pld": cost.epsilon(*step),
        }
    except PrivacyError:
        return {"refused": True}


@pytest.mark.medium
def test_no_plan_costs_something_else_than_before() -> None:
    frozen = json.loads(FROZEN.read_text())
    assert sum("pld" in cost for cost in frozen) > 250
    for setting, cost in zip(settings(), frozen, strict=True):
        assert cost_of(setting) == pytest.approx(cost, rel=1e-6), setting


if __name__ == "__main__":
    lines = [json.dumps(cost_of(setting)) for setting in settings()]
    FROZEN.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    sys.stdout.write(f"{len(lines)} plans\n")
