from __future__ import annotations

from typing import Any

import pytest

from fedsink.pages.differences import differing, settings
from fedsink.server.compose import compose_config


def of(*overrides: str) -> dict[str, Any]:
    return settings(compose_config(list(overrides)))


@pytest.mark.quick("*seed*")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((), ("seed=3",)),
        ((), ("eps=10",)),  # as the recipe has it
        ((), ("rounds=3000",)),
        (("sigma=2",), ("sigma=2", "rounds=3000")),
        (("mode=ldp",), ("mode=ldp", "eps=35", "rounds=800")),
        (("mode=ldp", "sigma=2"), ("mode=ldp", "sigma=2", "rounds=800")),
        (("data=mnist", "data.root=/a"), ("data=mnist", "data.root=/b")),
        (("policy=/a/policy.toml",), ()),
    ],
    ids=str,
)
def test_what_makes_a_run_its_own_is_no_difference(
    first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    assert of(*first) == of(*second)


@pytest.mark.quick("*rate=0.4*")
@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (("eps=3",), ["eps"]),
        (("sigma=2",), ["eps", "sigma"]),
        (("eps=10", "sigma=2"), ["sigma", "rounds"]),  # which follow from one another
        (("rate=0.4", "strategy.rows=6"), ["rate", "strategy.rows"]),
        (("generator.hidden=[8]",), ["generator.hidden"]),
    ],
    ids=str,
)
def test_keys_that_differ_are_named_those_of_no_group_first(
    overrides: tuple[str, ...], keys: list[str]
) -> None:
    assert sorted(differing([of(), of(*overrides)])) == sorted(keys)
    dotted = ["." in key for key in differing([of(), of(*overrides)])]
    assert dotted == sorted(dotted)


def test_a_key_that_another_method_does_not_have_differs() -> None:
    keys = differing([of(), of("strategy=gs_wgan")])
    assert {"strategy.name", "strategy.lam", "strategy.critics"} <= set(keys)
    assert not [key for key in keys if key.startswith("recipe")]
