"""Whose code solves a node's problems: libraries are for simulations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedsink.clients.node import Node
from fedsink.clients.settings import NodeSettings
from fedsink.errors import ConfigError, ReleaseRefusedError
from fedsink.protocol import GradientRequest
from fedsink.transport.solvers.backends import GeomlossSolver

Make = Callable[..., GradientRequest]


@pytest.mark.parametrize("backend", ["geomloss", "keops"])
def test_a_real_node_refuses_a_library_before_anything_is_charged_or_read(
    policy_file: Callable[..., Path],
    make_request: Make,
    install_source: Callable[..., None],
    backend: str,
) -> None:
    install_source(lambda spec, split: pytest.fail("the data were read"))
    settings = NodeSettings.from_policy(policy_file(), clients=2)
    request = make_request(solver="annealed", backend=backend)
    message = f"wants backend={backend}, and a real node solves its problems by native alone"
    for ask in (Node(settings, 0).gradients, Node(settings, 0).admit):
        with pytest.raises(ReleaseRefusedError, match=message):
            ask([request], b"digest")
    assert settings.ledger is not None
    assert not settings.ledger.exists()


def test_a_simulated_node_computes_by_the_library(
    settings: NodeSettings, make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, calls = make_request(solver="annealed", sigma=1e-3), []
    native = Node(settings, 0).gradient(request, b"digest").gradient
    solve = GeomlossSolver.__call__
    monkeypatch.setattr(
        GeomlossSolver, "__call__", lambda *a, **k: calls.append(1) or solve(*a, **k)
    )
    asked = replace(request, objective=replace(request.objective, backend="geomloss"))
    answer = Node(settings, 0).gradient(asked, b"digest").gradient
    assert calls == [1]
    torch.testing.assert_close(answer, native, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip": "record"}, "backend=geomloss belongs to clip=batch"),
        ({"capacity": 9}, "backend=geomloss has no fixed work"),
    ],
)
def test_a_request_names_no_library_where_none_would_solve_anything(
    make_request: Make, options: dict[str, object], message: str
) -> None:
    capacity = options.pop("capacity", None)
    request = make_request(solver="annealed", backend="geomloss", **options)
    if capacity is not None:
        request = replace(request, plan=replace(request.plan, capacity=capacity))
    with pytest.raises(ConfigError, match=message):
        request.check()


def test_a_request_says_which_backend(make_request: Make) -> None:
    request = make_request(solver="annealed", backend="keops")
    assert GradientRequest.from_record(request.to_record()).objective.backend == "keops"
    with pytest.raises(ConfigError, match='Unknown backend "pot"'):
        replace(request.objective, backend="pot")
