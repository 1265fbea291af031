from __future__ import annotations

from typing import Any

import pytest

from fedsink.secagg.identities import Peers
from fedsink.secagg.parameters import PROTOCOL, Parameters, Rules
from fedsink.secagg.refusals import CohortError, MalformedTripError, WeakThresholdError

VALUES: dict[str, Any] = {
    "run": "r", "message": "m", "clients": (0, 1, 2, 5), "bits": 32, "length": 3, "minimum": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [{"run": "s"}, {"message": "n"}, {"clients": (0, 1, 2, 6)}, {"bits": 33}, {"length": 4},
     {"minimum": 3}, {"threshold": 4}],
)  # fmt: skip
def test_every_number_is_in_the_digest(changed: dict[str, Any]) -> None:
    assert Parameters(**VALUES).digest != Parameters(**VALUES | changed).digest


def test_the_number_of_neighbours_is_in_the_digest() -> None:
    many = VALUES | {"clients": tuple(range(70)), "threshold": 25}
    assert Parameters(**many, neighbours=30).digest != Parameters(**many, neighbours=32).digest


def test_the_version_of_the_protocol_is_in_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Parameters(**VALUES).digest
    monkeypatch.setattr("fedsink.secagg.parameters.PROTOCOL", PROTOCOL + 1)
    assert Parameters(**VALUES).digest != now


@pytest.mark.parametrize(
    "changed",
    [{"run": ""}, {"run": "r" * 257}, {"message": 1}, {"clients": (0,)}, {"clients": (1, 0)},
     {"clients": (0, 0, 1)}, {"clients": [0, 1]}, {"clients": (0, True)}, {"clients": (-1, 0)},
     {"clients": (0, 2**32)}, {"bits": 15}, {"bits": 61}, {"bits": True}, {"length": 0},
     {"minimum": 1}, {"minimum": 5}, {"threshold": 2.5}],
)  # fmt: skip
def test_values_out_of_range_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(MalformedTripError):
        Parameters(**VALUES | changed)


def test_the_threshold_is_above_two_thirds_and_by_a_rule_that_all_know() -> None:
    parameters = Parameters(**VALUES)
    assert (parameters.neighbours, parameters.threshold, parameters.quorum) == (3, 3, 3)
    assert parameters.least == 3
    assert Parameters(**VALUES | {"threshold": 4}).least == 4
    assert Parameters(**VALUES | {"minimum": 4}).least == 4
    for weak in ({"threshold": 2}, {"neighbours": 2, "threshold": 3}):
        with pytest.raises(WeakThresholdError):
            Parameters(**VALUES | weak)


def test_in_a_large_cohort_two_thirds_of_all_take_part_whatever_a_neighbourhood_needs() -> None:
    many = Parameters(**VALUES | {"clients": tuple(range(70))})
    assert many.threshold < many.quorum == many.least == 47


def test_an_owner_demands_more_than_a_fraction_of_the_shares() -> None:
    parameters = Parameters(**VALUES)  # 3 of 4 shares
    Rules(Peers({}), 3, 0.7499).check(parameters)
    for threshold in (0.75, 0.76):
        with pytest.raises(WeakThresholdError, match="3 of 4 shares"):
            Rules(Peers({}), 3, threshold).check(parameters)
    with pytest.raises(CohortError, match="demands 4"):
        Rules(Peers({}), 4).check(parameters)


def test_parameters_are_read_as_they_were_written() -> None:
    parameters = Parameters(**VALUES)
    assert Parameters.from_dict(parameters.to_dict()) == parameters
