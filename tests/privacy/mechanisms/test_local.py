"""Promises of every local mechanism, and mechanisms that packages install."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsink.errors import ConfigError, PrivacyError
from fedsink.privacy import LOCAL_MECHANISMS, LocalMechanism, Stream, epsilon, local_mechanism
from fedsink.transport import cost_named

EVERY = pytest.mark.parametrize("name", LOCAL_MECHANISMS)
NAMES = st.sampled_from(list(LOCAL_MECHANISMS))
DELTA = 1e-5


def _delta(mechanism: type[LocalMechanism]) -> float:
    return DELTA if mechanism.needs_delta else 0.0


@given(NAMES, st.floats(1e-3, 1e3), st.floats(0.05, 60.0))
def test_scale_and_epsilon_invert_each_other_never_to_the_owners_disadvantage(
    name: str, sensitivity: float, eps: float
) -> None:
    mechanism = local_mechanism(name)
    there = mechanism.from_epsilon(sensitivity, eps, _delta(mechanism))
    back = mechanism.from_scale(sensitivity, there.scale, _delta(mechanism))
    assert back.scale == there.scale
    assert back.epsilon == pytest.approx(eps, rel=1e-6)
    less = mechanism.from_scale(sensitivity, there.scale * 0.99, _delta(mechanism))
    assert less.epsilon > back.epsilon
    assert mechanism.from_epsilon(sensitivity, back.epsilon, DELTA).scale <= there.scale * (
        1 + 1e-6
    )


@EVERY
def test_one_release_costs_what_is_claimed(name: str) -> None:
    mechanism = local_mechanism(name).from_epsilon(3.0, 5.0, DELTA)
    assert (mechanism.epsilon, mechanism.delta) == (5.0, _delta(type(mechanism)))
    assert (mechanism.adjacency, mechanism.unit) == ("replace-one", "record")
    delta = mechanism.delta or 1e-12
    cost = epsilon(mechanism.event, delta, adjacency="replace-one")
    assert cost == pytest.approx(5.0, rel=2e-3)


@EVERY
def test_the_standard_deviation_is_that_of_the_noise(name: str) -> None:
    mechanism = local_mechanism(name).from_epsilon(2.0, 3.0, DELTA)
    noise = mechanism.privatize(torch.zeros(200_000), Stream(b"key"))
    assert noise.dtype == torch.float32
    assert float(noise.std()) == pytest.approx(mechanism.noise_std, rel=0.01)
    assert abs(float(noise.mean())) < 0.01 * mechanism.noise_std


@EVERY
def test_what_is_not_finite_is_refused(name: str) -> None:
    mechanism = local_mechanism(name).from_epsilon(2.0, 3.0, DELTA)
    with pytest.raises(PrivacyError, match="values to privatize must be finite"):
        mechanism.privatize(torch.tensor([torch.nan]), Stream(b"key"))


@EVERY
def test_the_matched_cost_is_one_that_the_server_can_train_with(name: str) -> None:
    matched = local_mechanism(name).from_epsilon(2.0, 3.0, DELTA).matched_cost
    assert matched.lam > 0
    cost_named(matched.cost)


@EVERY
def test_calibrations_are_accepted_and_others_are_not(name: str) -> None:
    mechanism = local_mechanism(name)
    default = mechanism.from_epsilon(2.0, 3.0, DELTA)
    for number, calibration in enumerate(mechanism.calibrations):
        chosen = mechanism.from_epsilon(2.0, 3.0, DELTA, calibration)
        assert chosen.epsilon == 3.0
        assert (chosen == default) == (number == 0)


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(PrivacyError, match=r"mechanisms \['gaussian', 'laplace'\], not 'cauchy'"):
        local_mechanism("cauchy")


@pytest.mark.parametrize(
    "point", ["nothing = plugin:nothing", "other = plugin:Mechanism", "kind = plugin:Other"]
)
def test_what_is_installed_must_be_a_local_mechanism_of_its_name(
    point: str, install_package: Callable[[dict[str, str], str], None]
) -> None:
    text = "from fedsink.privacy import LaplaceMechanism as Mechanism\nnothing = 3\nOther = int\n"
    install_package({"plugin.py": text}, f"[fedsink.local_mechanisms]\n{point}\n")
    name = point.split()[0]
    with pytest.raises(ConfigError, match=f"'{name}' was installed as .* no LocalMechanism of tha"):
        local_mechanism(name)
