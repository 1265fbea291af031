"""The figures of GS-WGAN's accounting, and the provable ones of the same run."""

from __future__ import annotations

import math

import pytest

from fedsink.errors import PrivacyError
from fedsink.privacy import (
    ADJACENCIES,
    BatchClip,
    Cost,
    JointSchedule,
    PickSchedule,
    PrivacyPlan,
    RowClip,
    TurnSchedule,
)
from fedsink.strategies.gs_wgan.published import gs_wgan_epsilon

ROUNDS, ROWS, CRITICS, DELTA, SIGMA = 20_000, 32, 1000, 1e-5, 1.07


def test_the_published_epsilon_is_reproduced():
    claimed = gs_wgan_epsilon(SIGMA, uses=ROUNDS * ROWS, critics=CRITICS, delta=DELTA)
    assert claimed == pytest.approx(9.993, abs=1e-3)


def test_the_published_federated_epsilon_is_reproduced():
    claimed = gs_wgan_epsilon(SIGMA, uses=30_000 * ROWS, critics=CRITICS, delta=DELTA)
    assert claimed == pytest.approx(12.7, abs=0.05)


@pytest.mark.quick("add-remove-329")
@pytest.mark.parametrize(("adjacency", "proved"), [("add-remove", 329), ("replace-one", 347)])
def test_rows_that_are_selected_together_cost_what_one_gaussian_of_all_of_them_does(
    adjacency, proved
):
    """Clipped row by row, 32 rows move by √32 times the sensitivity of one."""
    cost = Cost(BatchClip(1.0), JointSchedule(), adjacency)
    found = cost.epsilon(1 / CRITICS, SIGMA / math.sqrt(ROWS), ROUNDS, DELTA)
    assert found == pytest.approx(proved, abs=0.6)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize(
    ("schedule", "uses", "proved"),
    [(TurnSchedule(CRITICS), 20, 379), (PickSchedule(CRITICS, 1), 36, 637)],
    ids=["in turn", "picked"],
)
def test_clients_that_the_server_chooses_cost_their_uses(schedule, uses, proved, adjacency):
    """Holds for every unit: no choice is secret, and a client has one critic."""
    clip = RowClip(1.0, ROWS)
    sigma = SIGMA / math.sqrt(ROWS)
    plan = PrivacyPlan(1.0, sigma, ROUNDS, clip, schedule, DELTA, adjacency=adjacency)
    assert plan.noise_std == pytest.approx(2 * clip.bound * SIGMA)
    assert plan.uses == plan.event.count == uses
    assert plan.epsilon() == pytest.approx(proved, abs=0.6)
    assert plan.published


def test_more_uses_less_noise_and_fewer_critics_cost_more():
    costs = [
        gs_wgan_epsilon(SIGMA, uses=1000, critics=CRITICS, delta=DELTA),
        gs_wgan_epsilon(SIGMA, uses=2000, critics=CRITICS, delta=DELTA),
        gs_wgan_epsilon(SIGMA / 2, uses=2000, critics=CRITICS, delta=DELTA),
        gs_wgan_epsilon(SIGMA / 2, uses=2000, critics=CRITICS // 2, delta=DELTA),
    ]
    assert costs == sorted(costs)
    assert len(set(costs)) == 4


def test_bad_values_are_refused():
    for options, message in (
        ({"sigma": 0.0}, "sigma must be a finite number > 0"),
        ({"uses": 0}, "uses must be an integer"),
        ({"critics": 0}, "critics must be an integer"),
        ({"delta": 1.0}, "delta must lie in"),
    ):
        values = {"sigma": 1.0, "uses": 10, "critics": 10, "delta": 1e-5} | options
        with pytest.raises(PrivacyError, match=message):
            gs_wgan_epsilon(values.pop("sigma"), **values)
