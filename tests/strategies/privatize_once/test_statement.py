from __future__ import annotations

from typing import Any

from fedsink.data.maps import map_from_dict
from fedsink.protocol.privatize_once import LocalPlan
from fedsink.strategies.privatize_once.statement import local_statement


def _local(**options: Any) -> dict[str, Any]:
    plan = LocalPlan(
        mechanism="laplace",
        map=map_from_dict({"name": "pixel_range", "shape": [1, 8, 8]}),
        epsilon=30.0,
        delta=0.0,
        label_epsilon=5.0,
        classes=10,
    )
    return local_statement(plan, 2, "secret", {"cost": "l1"}, **options)


def test_shuffling_stands_beside_the_local_epsilon_and_never_instead() -> None:
    plain = _local()
    assert "shuffling" not in plain
    entry = {"epsilon": 0.3, "reports": 400_000}
    shuffled = _local(shuffling=entry)
    assert shuffled == {**plain, "shuffling": entry}
    assert shuffled["epsilon"] == 35.0
