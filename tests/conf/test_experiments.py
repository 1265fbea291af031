"""Every named experiment composes at each of its scales."""

from __future__ import annotations

import pytest

from fedsink.conf.acting import compose_config
from fedsink.configuration import Configuration, Paper
from fedsink.errors import ConfigError

from .conftest import FILES, NAMES, root, scales


def composed(name: str, *more: str) -> dict[str, object]:
    return compose_config([f"experiment={name}", *root(name), *more])


@pytest.mark.medium
@pytest.mark.quick("digits_*", "half_circle_*", "*celeba")
@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_is_and_composes_at_each_of_its_scales(name: str) -> None:
    """Composing refuses a key of its file that changes nothing."""
    first, second = FILES[name].read_text().splitlines()[:2]
    assert first == "# @package _global_"
    assert second.startswith("# ")
    config = composed(name)  # at its default scale
    for scale in scales(name) - {config["scale"]}:
        assert composed(name, f"scale={scale}")["scale"] == scale


def test_what_a_paper_does_not_state_is_no_difference() -> None:
    paper = Paper("table 1", {"eps": 10.0, "strategy": {"rows": None, "lam": 0.05}})
    stated = paper.statement({"eps": 10.0, "strategy": {"rows": 9, "lam": 0.1}})
    assert stated["differs"] == {"strategy.lam": {"here": 0.1, "published": 0.05}}


@pytest.mark.medium
def test_a_paper_without_tables_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"paper\.values is a table, not 3"):
        Paper("source", 3)  # type: ignore[arg-type]
    without = {**composed("mnist_eps10"), "paper": {"source": "x"}}
    with pytest.raises(ConfigError, match=r"The configuration lacks paper\.values"):
        Configuration.read(without)
