from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fedsink.errors import ConfigError
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhorn
from fedsink.strategies.privatize_once import PrivatizeOnce
from fedsink.strategies.round_strategy import Quorum, check_quorum


def test_the_identity_is_all_that_changes_a_bit(
    make_central: Callable[..., DPSinkhorn], make_local: Callable[..., PrivatizeOnce]
) -> None:
    central, local = make_central().settings, make_local().settings
    assert replace(central, rows=6).identity() != central.identity()
    assert central.identity()["plan"] == central.plan.to_dict()
    assert replace(local, batch=17).identity() != local.identity()
    assert replace(local, shuffling={"epsilon": 1.0, "reports": 5}).identity() == local.identity()


def test_what_a_client_may_hold_follows_from_the_capacity(
    make_central: Callable[..., DPSinkhorn], make_local: Callable[..., PrivatizeOnce]
) -> None:
    settings = make_central().settings
    settings.check_sizes([10_000])
    make_local().settings.check_sizes([10_000])
    fixed = replace(settings, plan=replace(settings.plan, capacity=5, nominal_records=20))
    fixed.check_sizes([20, 3])
    with pytest.raises(ConfigError, match=r"at most 20 records at a client .* deals 21 to one"):
        fixed.check_sizes([3, 21])


@pytest.mark.parametrize("value", [0, -1, 0.0, 1.5, -0.5, True, "all", float("nan")])
def test_what_is_no_quorum_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"strategy\.quorum is null \(all\), a whole number"):
        Quorum(value)


def test_a_quorum_of_more_clients_than_there_are_is_refused() -> None:
    check_quorum(3, 3)
    with pytest.raises(ConfigError, match=r"strategy\.quorum=4 is more than clients=3"):
        check_quorum(4, 3)
