from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from fedsink_papers.parameter_gradient.strategy import ParameterGradient

from fedsink.conf.acting import compose_config
from fedsink.configuration import Configuration
from fedsink.errors import ConfigError
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhornSettings, DPSinkhornStrategy
from fedsink.strategies.gs_wgan import GSWGANStrategy
from fedsink.strategies.methods import STRATEGIES, settings_of, strategy_of
from fedsink.strategies.privatize_once import PrivatizeOnce


@dataclass(frozen=True)
class OtherSettings(DPSinkhornSettings):
    name: ClassVar[str] = "other"


class Other(DPSinkhornStrategy):
    Settings = OtherSettings


@pytest.fixture
def install() -> Iterator[Callable[[str], None]]:
    """Gives `Other` a name for the length of a test."""
    names = []

    def under(name: str) -> None:
        STRATEGIES[name] = Other
        names.append(name)

    yield under
    for name in names:
        del STRATEGIES[name]


def config(mode: str = "central", **strategy: Any) -> Configuration:
    composed = compose_config([f"mode={mode}", "data=half_circle"])
    return Configuration.read({**composed, "strategy": {**composed["strategy"], **strategy}})


def test_every_method_is_found_by_the_name_of_its_settings():
    assert dict(STRATEGIES) == {
        "dp_sinkhorn": DPSinkhornStrategy,
        "gs_wgan": GSWGANStrategy,
        "parameter_gradient": ParameterGradient,
        "privatize_once": PrivatizeOnce,
    }
    assert all(STRATEGIES[name].Settings.name == name for name in STRATEGIES)


def test_settings_lead_back_to_their_strategy(make_central, make_local, make_generator):
    for made in (make_central(), make_local()):
        assert type(strategy_of(made.settings, make_generator(), b"server")) is type(made)


@pytest.mark.medium
def test_an_unknown_method_is_named_with_those_there_are():
    with pytest.raises(ConfigError, match=r"privatize_once\. Did you mean dp_sinkhorn\?"):
        settings_of(config(name="dp_sinkhron"), "run")


def test_methods_of_the_other_mode_are_refused_with_those_that_fit(install):
    install("other")
    fitting = "dp_sinkhorn or gs_wgan or other or parameter_gradient"
    with pytest.raises(
        ConfigError, match=f"mode=central runs strategy={fitting}, not 'privatize_o"
    ):
        settings_of(config(name="privatize_once"), "run")


@pytest.mark.slow
def test_an_added_method_needs_nothing_else(install, make_generator):
    install("other")
    settings = settings_of(config(name="other"), "run")
    assert type(settings) is OtherSettings
    assert type(strategy_of(settings, make_generator(), b"server")) is Other


def test_a_method_whose_settings_have_another_name_is_refused(install):
    install("another")
    message = "strategy.name='another' is installed with settings that are named 'other'"
    with pytest.raises(ConfigError, match=message):
        settings_of(config(name="another"), "run")
