"""A node solves problems with fedsink's code: libraries are for simulations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedsink.clients.dp_sinkhorn import DPSinkhornAnswer
from fedsink.clients.node import Node
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.policy_file import read_policy
from fedsink.errors import ConfigError, ReleaseRefusedError
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.transport.backends import GeomlossSolver

from ..support.asking import gradient

Make = Callable[..., GradientRequest]


@pytest.mark.parametrize("backend", ["geomloss", "keops"])
def test_a_real_node_refuses_a_library_before_anything_is_charged_or_read(
    policy_file: Callable[..., Path],
    make_request: Make,
    install_source: Callable[..., None],
    backend: str,
) -> None:
    install_source(lambda spec, split: pytest.fail("the data were read"))
    node = Node(NodeSettings.from_policy(read_policy(policy_file()), clients=2), 0)
    answer = DPSinkhornAnswer([make_request(solver="annealed", backend=backend)])
    message = f"wants backend={backend}, and a real node solves its problems only by native"
    for ask in (node.reply, node.admit):
        with pytest.raises(ReleaseRefusedError, match=message):
            ask(answer, b"digest")
    assert node.settings.ledger is not None
    assert not node.settings.ledger.exists()


def test_a_simulated_node_computes_by_the_library(
    settings: NodeSettings, make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, calls = make_request(solver="annealed", sigma=1e-3), []
    native = gradient(Node(settings, 0), request, b"digest")
    solve = GeomlossSolver.__call__
    monkeypatch.setattr(
        GeomlossSolver, "__call__", lambda *a, **k: calls.append(1) or solve(*a, **k)
    )
    asked = replace(request, objective=replace(request.objective, backend="geomloss"))
    reply = gradient(Node(settings, 0), asked, b"digest")
    assert calls == [1]
    torch.testing.assert_close(reply, native, rtol=0, atol=1e-5)


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
    capacity = options.get("capacity")
    clip = options.get("clip", "batch")
    request = make_request(solver="annealed", backend="geomloss", clip=clip)
    request = replace(request, plan=replace(request.plan, capacity=capacity))
    with pytest.raises(ConfigError, match=message):
        request.check()


def test_a_request_says_which_backend(make_request: Make) -> None:
    request = make_request(solver="annealed", backend="keops")
    assert GradientRequest.from_record(request.to_record()).objective.backend == "keops"
    with pytest.raises(ConfigError, match='Unknown backend "pot"'):
        replace(request.objective, backend="pot")
