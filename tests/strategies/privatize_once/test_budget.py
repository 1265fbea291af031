"""Division of a total ε between image and label."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsink.errors import ConfigError
from fedsink.privacy import LaplaceMechanism
from fedsink.protocol.privatize_once import LocalPlan
from fedsink.strategies.privatize_once import local_plan

_RECIPE: dict[str, Any] = {
    "eps": 35.0,
    "map": {"name": "dct_direction", "norm": "l1"},
    "by_eps": {
        "eps": [10, 20, 35],
        "label_eps": [3, 4, 5],
        "block": [4, 5, 7],
        "finite_batch_factor": [1.0, 0.9, 0.8],
    },
}
_LAPLACE = {"name": "dct_direction", "norm": "l1"}
_GAUSSIAN = {"name": "non_negative_direction", "pool": 1}


def _plan(
    name: str = "laplace",
    *,
    eps: float | None = None,
    sigma: float | None = None,
    label_eps: float | None = None,
    block: int | None = None,
    classes: int = 10,
    delta: float | None = None,
) -> tuple[LocalPlan, float]:
    options = dict(_LAPLACE if name == "laplace" else _GAUSSIAN)
    stated = {} if block is None else {"block": block}
    return local_plan(
        {**_RECIPE, "map": options},
        mechanism={"name": name, "label_eps": label_eps},
        chosen_map={**options, **stated},
        shape=(1, 8, 8),
        classes=classes,
        eps=eps,
        sigma=sigma,
        delta=(0.0 if name == "laplace" else 1e-4) if delta is None else delta,
    )


@pytest.mark.parametrize(
    ("eps", "label", "block", "factor"),
    [
        (35, 5, 7, 0.8),
        (20, 4, 5, 0.9),
        (10, 3, 4, 1.0),
        (15, 3.5, 4, 0.95),  # halfway; the block is rounded down
        (27.5, 4.5, 6, 0.85),
        (100, 5, 7, 0.8),  # outside, the last row stays
        (8, 3, 4, 1.0),
        (4, 2, 4, 1.0),  # the label gets at most half
    ],
)
def test_between_the_rows_of_the_table_values_are_interpolated(
    eps: float, label: float, block: int, factor: float
) -> None:
    plan, found = _plan(eps=eps)
    assert plan.label_epsilon == pytest.approx(label)
    assert plan.map.to_dict()["block"] == block
    assert found == pytest.approx(factor)


@given(st.floats(0.1, 200.0), st.sampled_from(["laplace", "gaussian"]))
def test_image_and_label_add_up_to_the_total(eps: float, name: str) -> None:
    plan, _ = _plan(name, eps=eps)
    assert plan.total_epsilon == pytest.approx(eps)
    assert plan.label_epsilon is not None
    assert plan.epsilon > 0
    assert plan.label_epsilon > 0


def test_no_eps_is_the_recipes_eps() -> None:
    assert _plan()[0].total_epsilon == pytest.approx(35)


def test_without_labels_the_image_gets_everything() -> None:
    plan, _ = _plan(eps=35, classes=1, label_eps=5)
    assert plan.label_epsilon is None
    assert plan.image_mechanism.epsilon == pytest.approx(35)


def test_what_is_stated_wins_over_the_table() -> None:
    plan, _ = _plan(eps=35, label_eps=2, block=3)
    assert (plan.label_epsilon, plan.epsilon) == (2, 33)
    assert plan.map.to_dict()["block"] == 3


@pytest.mark.parametrize("name", ["laplace", "gaussian"])
def test_sigma_is_the_scale_of_the_noise_and_epsilon_follows(name: str) -> None:
    plan, _ = _plan(name, sigma=0.2)
    assert plan.image_mechanism.scale == pytest.approx(0.2, rel=1e-6)
    if name == "laplace":
        assert isinstance(plan.image_mechanism, LaplaceMechanism)
        assert plan.epsilon == pytest.approx(2 / 0.2, rel=1e-5)


def test_delta_belongs_to_the_gaussian_mechanism_alone() -> None:
    assert _plan("laplace", eps=20)[0].delta == 0.0
    assert _plan("gaussian", eps=20)[0].delta == 1e-4
    with pytest.raises(ConfigError, match=r"laplace gives pure ε and has no δ, but delta=1e-05"):
        _plan("laplace", eps=20, delta=1e-5)


def test_a_map_that_is_not_the_recipes_keeps_its_own_resolution() -> None:
    plan, _ = local_plan(
        _RECIPE,
        mechanism={"name": "laplace", "label_eps": None},
        chosen_map={"name": "l1_ball", "radius": 20.0},
        shape=(1, 8, 8),
        classes=10,
        eps=35,
        sigma=None,
        delta=0.0,
    )
    assert plan.map.dimension == 64
    assert plan.map.sensitivity == pytest.approx(40, rel=1e-5)  # the diameter, not the radius


def test_sigma_and_eps_may_agree_but_not_contradict() -> None:
    plan, _ = _plan(sigma=0.1, eps=24.3)
    assert plan.total_epsilon == pytest.approx(24.3, rel=0.01)
    for stated in (21, 40):  # too small, and not the price of the two
        with pytest.raises(
            ConfigError, match=rf"sigma=0\.1 costs ε = 20 .* not eps={stated} in all"
        ):
            _plan(sigma=0.1, eps=stated)


@pytest.mark.parametrize("eps", [0, -1, float("nan"), "10", True])
def test_a_total_that_is_not_a_positive_number_is_refused(eps: Any) -> None:
    with pytest.raises(ConfigError, match="eps must be a positive number"):
        _plan(eps=eps)


def test_a_label_that_takes_everything_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"label_eps=20 leaves nothing of eps=20"):
        _plan(eps=20, label_eps=20)
