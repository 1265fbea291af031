"""The rule meets the measured settings, and recipes follow it where nothing was measured."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsink.conf.acting import compose_config
from fedsink.conf.rule import sizes_of
from fedsink.configuration import Configuration
from fedsink.errors import FedsinkError
from fedsink.protocol.requests import UNNAMED
from fedsink.strategies.methods import settings_of
from fedsink.strategies.rule import Sizes

MNIST = Sizes((1, 28, 28), 10, 60_000, 10, 10.0, 1e-5)
MEASURED = {
    "digits": Sizes((1, 8, 8), 10, 1437, 10, 10.0, 1e-5),
    "mnist": MNIST,
    "fashion_mnist": MNIST,
}
FACTOR = {"rate": 3.0, "lam": 6.0, "bound": 3.0, "rows": 1.5, "history": 1.5, "lr": 1.5}
"""By how much the rule may be off the measured recipe of a data set."""


def near(found: float, expected: float, factor: float) -> bool:
    return expected / factor <= found <= expected * factor


@pytest.mark.parametrize("name", MEASURED)
def test_it_meets_the_measured_recipes_of_the_central_mode(name: str) -> None:
    recipe, rule = compose_config([f"data={name}"])["recipe"], MEASURED[name].central()
    for key, factor in FACTOR.items():
        assert near(rule["record"][key], recipe["record"][key], factor), key
        if name == "digits" or key not in ("rate", "lr"):  # MNIST's are for 40 clients there
            assert near(rule["batch"][key], recipe["batch"][key], 5.0), key
    assert rule["radius"] == recipe["view"]["radius"]
    assert near(rule["latent_dim"], recipe["generator"]["latent_dim"], 1.5)
    assert rule["hidden"] == recipe["generator"]["hidden"]


@pytest.mark.medium
@pytest.mark.quick("0-*")
@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
@pytest.mark.parametrize("name", ["digits", "mnist"])
@pytest.mark.parametrize("row", range(3))
def test_it_meets_the_measured_recipes_of_the_local_mode(
    name: str, mechanism: str, row: int
) -> None:
    overrides = ["mode=ldp", f"mechanism={mechanism}", f"data={name}"]
    recipe = compose_config(overrides)["recipe"]
    table = recipe["by_eps"]
    sizes = replace(MEASURED[name], eps=float(table["eps"][row]), delta=1e-4, mechanism=mechanism)
    rule = sizes.local()
    assert abs(rule["label_eps"] - table["label_eps"][row]) <= 1.3
    assert abs(rule["block"] - table["block"][row]) <= 3
    assert abs(rule["finite_batch_factor"] - table["finite_batch_factor"][row]) <= 0.1
    assert near(rule["batch"], recipe["batch"], 1.5)
    assert near(rule["rounds"], recipe["rounds"], 1.5)
    assert near(rule["latent_dim"], recipe["generator"]["latent_dim"], 1.5)


@pytest.mark.parametrize(
    ("change", "noisy"),
    [
        ({}, False),
        ({"clients": 1}, False),
        ({"eps": math.inf}, False),
        ({"eps": 3.0}, True),
        ({"eps": 1.0}, True),
        ({"eps": 1.0, "clients": 1}, True),
        ({"clients": 100}, True),
        ({"clients": 1000}, True),
    ],
)
def test_it_knows_the_runs_that_noise_limited(change: dict[str, Any], noisy: bool) -> None:
    """The runs on MNIST that gained by larger batches and a softer assignment."""
    sizes = replace(MNIST, **change)
    assert sizes.noisy == noisy
    record, quiet = (s.central()["record"] for s in (sizes, MNIST))
    if noisy:
        assert record["rate"] == 0.5
        assert record["lam"] == pytest.approx(4 * quiet["lam"], rel=0.1)
        assert record["bound"] == pytest.approx(quiet["bound"] / 2, rel=0.1)


@pytest.mark.slow
@given(st.floats(1.0, 60.0), st.integers(2, 60), st.sampled_from(["laplace", "gaussian"]))
def test_the_labels_share_is_where_a_mean_is_known_best(
    eps: float, classes: int, mechanism: str
) -> None:
    sizes = Sizes((1, 8, 8), classes, 1000, 1, eps, 1e-4, mechanism)
    assert 0.0 < sizes.label_eps <= 1.05 * eps / 2
    assert replace(sizes, eps=eps + 5.0).label_eps >= sizes.label_eps


def test_the_labels_share_for_ten_classes() -> None:
    """Worked out by hand for Laplace noise: (ε − ε_l)(e^ε_l − 1)/(e^ε_l + 9) is largest there."""
    shares = [Sizes((1, 8, 8), 10, 1, 1, eps, 0.0, "laplace").label_eps for eps in (10.0, 20.0)]
    assert shares == [pytest.approx(3.95, abs=0.11), pytest.approx(5.0, abs=0.21)]


SHAPES = st.tuples(st.sampled_from([1, 3]), st.integers(4, 96), st.integers(4, 96))


@pytest.mark.medium
@given(
    SHAPES, st.integers(1, 100), st.integers(1, 10**7), st.integers(1, 10**4), st.floats(0.1, 50)
)
def test_it_gives_sizes_in_range_for_any_data(
    shape: tuple[int, ...], classes: int, records: int, clients: int, eps: float
) -> None:
    sizes = Sizes(shape, classes, records, clients, eps, 1e-5)
    central, local = sizes.central(), sizes.local()
    assert 1.0 <= central["radius"] <= min(shape[1:])
    assert 0.0 < central["batch"]["rate"] <= 1.0
    assert 2 <= central["latent_dim"] <= 8
    assert 1 <= local["block"] * local["pool"] <= min(shape[1:])
    assert all(side % local["pool"] == 0 for side in shape[1:])
    assert all(number > 0 for part in ("record", "batch") for number in central[part].values())


DATA = ["data=image_folder", "data.root=DIR", "data.classes=[a,b,c]", "data.nominal_records=9000"]


@pytest.mark.medium
@pytest.mark.quick("more[03]-?3*")
@pytest.mark.parametrize("shape", ["[1,12,12]", "[3,64,48]"])
@pytest.mark.parametrize(
    "more", [[], ["clip=batch"], ["mode=ldp"], ["mode=ldp", "mechanism=gaussian", "eps=8"]]
)
def test_a_data_set_that_nobody_measured_follows_it(shape: str, more: list[str]) -> None:
    config = compose_config([*DATA, f"data.shape={shape}", *more])
    settings: Any = settings_of(Configuration.read(config), UNNAMED)
    sizes = Sizes(tuple(config["data"]["shape"]), 3, 9000, 10, 35.0, 1e-5, "laplace")
    if not more or "clip=batch" in more:
        rule = replace(sizes, eps=10.0, mechanism="gaussian").central()
        wanted = rule["batch" if more else "record"]
        assert (settings.rows, settings.objective.lam) == (wanted["rows"], wanted["lam"])
        assert (settings.plan.rate, settings.plan.clip.bound) == (wanted["rate"], wanted["bound"])
        assert settings.view["radius"] == rule["radius"]
        return
    if len(more) > 1:
        sizes = replace(sizes, eps=8.0, delta=1e-4, mechanism="gaussian")
    rule = sizes.local()
    assert settings.plan.label_epsilon == pytest.approx(rule["label_eps"])
    assert settings.plan.map.block == rule["block"]
    assert (settings.batch, settings.rounds) == (rule["batch"], rule["rounds"])
    assert settings.finite_batch_factor == pytest.approx(rule["finite_batch_factor"])


def test_what_is_stated_wins_over_it() -> None:
    config = compose_config([*DATA, "strategy.rows=7", "rate=0.3", "view.radius=4"])
    assert (config["strategy"]["rows"], config["rate"], config["view"]["radius"]) == (7, 0.3, 4)


@pytest.mark.medium
def test_it_counts_classes_where_a_run_tells_them_apart() -> None:
    told = sizes_of(compose_config(["data=digits"]))
    alike = sizes_of(compose_config(["data=digits", "conditional=false"]))
    assert told is not None
    assert alike is not None
    assert (told.classes, alike.classes) == (10, 1)


@pytest.mark.medium
@pytest.mark.parametrize("eps", ["eps=0", "eps=-1", "eps=many"])
def test_an_impossible_epsilon_is_the_plans_to_refuse(eps: str) -> None:
    config = compose_config([*DATA, eps])
    with pytest.raises(FedsinkError, match="eps must be a finite number > 0"):
        settings_of(Configuration.read(config), UNNAMED)


@pytest.mark.medium
@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_a_huge_epsilon_of_the_local_mode_is_planned(mechanism: str) -> None:
    sizes = replace(MNIST, eps=1500.0, mechanism=mechanism)
    assert 0.0 < sizes.local()["label_eps"] <= 750.0
