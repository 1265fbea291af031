from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fedsink.errors import ConfigError
from fedsink.strategies.privatize_once import PrivatizeOnce


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


def test_epsilon_behind_a_shuffler_is_for_no_more_reports_than_there_are(
    make_local: Callable[..., PrivatizeOnce],
) -> None:
    entry = {"epsilon": 0.3, "reports": 61}
    settings = replace(make_local().settings, shuffling=entry)
    settings.check_sizes([20, 20, 21])
    with pytest.raises(ConfigError, match=r"61 shuffled reports.* there are 60: set data\.nominal"):
        settings.check_sizes([20, 20, 20])
    with pytest.raises(ConfigError, match=r"all clients, and strategy\.quorum=0\.5 lets some"):
        replace(settings, quorum=0.5)
    # Where no ε is stated, nothing can be overstated.
    replace(settings, shuffling={**entry, "epsilon": None}, quorum=0.5).check_sizes([1, 1, 1])
