from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from fedsink.errors import ConfigError
from fedsink.strategies import (
    DPSinkhorn,
    DPSinkhornSettings,
    PrivatizeOnce,
)


@dataclass(frozen=True)
class OtherSettings(DPSinkhornSettings):
    name: ClassVar[str] = "other"


def test_the_identity_is_all_that_changes_a_bit(
    make_central: Callable[..., DPSinkhorn], make_local: Callable[..., PrivatizeOnce]
) -> None:
    central, local = make_central().settings, make_local().settings
    assert replace(central, rows=6).identity() != central.identity()
    assert central.identity()["plan"] == central.plan.to_dict()
    assert replace(local, batch=17).identity() != local.identity()
    assert replace(local, shuffling={"epsilon": 1.0}).identity() == local.identity()


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
