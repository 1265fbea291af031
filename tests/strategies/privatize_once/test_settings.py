from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedsink.strategies.privatize_once.strategy import PrivatizeOnce


def test_shuffling_stands_beside_the_local_epsilon_and_never_instead(
    make_local: Callable[..., PrivatizeOnce],
) -> None:
    settings = make_local().settings
    plain = settings.statement("secret")
    assert "shuffling" not in plain
    entry = {"epsilon": 0.3, "reports": 400_000}
    shuffled = replace(settings, shuffling=entry).statement("secret")
    assert shuffled == {**plain, "shuffling": entry}
    assert shuffled["epsilon"] == settings.plan.total_epsilon == 44.0
