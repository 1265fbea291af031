"""The ground cost of the central mode's transport problem, in public terms."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch

from fedsink.errors import ConfigError, PrivacyError
from fedsink.protocol.objective import Objective
from fedsink.transport import append_labels

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
Y = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))


def test_the_cost_is_that_of_its_name() -> None:
    difference = X[:, None] - Y[None]
    squared, absolute = difference.square().sum(-1), difference.abs().sum(-1)
    for options, expected in (
        ({}, squared),
        ({"m": 3.0}, squared + 3.0 * absolute),
        ({"cost": "l1", "m": 3.0}, absolute),
    ):
        objective = Objective(1.0, 3, **options)
        torch.testing.assert_close(objective.ground_cost(X, Y), expected)
        assert objective.is_quadratic == (not options)
        assert Objective(**asdict(objective)) == objective


def test_a_label_mismatch_adds_two_alpha_to_the_absolute_cost() -> None:
    cost = Objective(1.0, 2, cost="l1").ground_cost
    labels = torch.tensor([0, 0, 1, 1])
    labelled = append_labels(X, labels, 2, 15.0)
    more = cost(labelled, labelled) - cost(X, X)
    torch.testing.assert_close(more, 30.0 * (labels[:, None] != labels[None]).float())


@pytest.mark.parametrize(
    ("name", "values"),
    [("lam", (2.0**-41, 2.0**41)), ("m", (2.0**21,)), ("label_weight", (2.0**21,))],
)
def test_no_problem_lives_at_the_edge_of_the_floats(name: str, values: tuple[float, ...]) -> None:
    for value in values:
        with pytest.raises(PrivacyError, match="far from the limits of floats"):
            Objective(**{"lam": 1.0, "classes": 3, name: value})


def test_the_diameter_is_the_largest_distance_in_a_ball() -> None:
    objective, ends = Objective(1.0, 2), torch.tensor([[-4.0, 0.0], [4.0, 0.0]])
    assert objective.diameter(4.0, labels=False) == 8.0
    labelled = append_labels(ends, torch.tensor([0, 1]), 2, objective.label_weight)
    distance = float((labelled[0] - labelled[1]).norm())
    assert objective.diameter(4.0, labels=True) == pytest.approx(distance)


def test_an_unknown_cost_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cost is mixed or l1, not 'l2'"):
        Objective(1.0, 2, cost="l2")
