from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedsink.errors import ConfigError
from fedsink.transport import L1, AnnealedProblem, Cost, Mixed, SquaredEuclidean, backend_named
from fedsink.transport.solvers.backends import geomloss, keops, native

from ...support.clouds import cloud


@pytest.fixture(scope="module")
def compiles() -> None:
    """Skip where KeOps cannot build its code."""
    try:
        keops(AnnealedProblem(cloud(3, 2), cloud(4, 2), L1(), 1.0))
    except Exception as error:
        pytest.skip(f"KeOps cannot compile here: {error}")


@pytest.mark.parametrize("cost", [L1(), SquaredEuclidean(), Mixed(0.3)], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_geomloss_gives_the_native_answer(cost: Cost, weighted: bool) -> None:
    one = problem(cost, weighted, 0.5)
    value, gradient = geomloss(one)
    expected = native(one)
    torch.testing.assert_close(value, expected[0], rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(gradient, expected[1], rtol=1e-7, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("cost", [L1(), SquaredEuclidean(), Mixed(0.3)], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_keops_gives_the_native_answer(compiles: None, cost: Cost, weighted: bool) -> None:
    one = problem(cost, weighted, 0.7)
    value, gradient = keops(one)
    expected = native(one)
    torch.testing.assert_close(value, expected[0], rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(gradient, expected[1], rtol=1e-7, atol=1e-7)


def problem(cost: Cost, weighted: bool, scaling: float) -> AnnealedProblem:
    x, y = cloud(9, 3, seed=1), cloud(7, 3, seed=2) + 0.5
    if not weighted:
        return AnnealedProblem(x, y, cost, 0.3, scaling)
    log_b = torch.full((7,), -math.log(5.0), dtype=torch.float64)
    log_b[1:3] = -math.inf
    return AnnealedProblem(x, y, cost, 0.3, scaling, cloud(9, seed=3).log_softmax(0), log_b)


def test_backends_by_name() -> None:
    assert backend_named("native") is native
    assert backend_named("geomloss") is geomloss
    assert backend_named("keops") is keops
    with pytest.raises(ConfigError, match='Unknown backend "pot": choose one of native, geomloss'):
        backend_named("pot")


def test_keops_refuses_a_cost_that_it_cannot_write_down() -> None:
    class Zero(Cost):
        def __call__(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.zeros(len(x), len(y))

        def gradient(self, x: Tensor, y: Tensor, plan: Tensor, *, sparse: bool = False) -> Tensor:
            return torch.zeros_like(x)

    with pytest.raises(ConfigError, match=r"no symbolic form of .*: use native or geomloss"):
        keops(AnnealedProblem(cloud(3, 2), cloud(4, 2), Zero(), 1.0))
