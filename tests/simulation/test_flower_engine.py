"""Flower's own simulation starts its nodes beside the server."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedsink.errors import ClientError
from fedsink.simulation import flower_engine as flower


def test_late_nodes_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "_POLL_SECONDS", 0.01)
    found = iter([[], [1001], [1000, 1001]])
    grid = SimpleNamespace(get_node_ids=lambda: next(found))
    flower.wait_for_nodes(grid, 2, 60.0)
    assert list(found) == []


def test_missing_ones_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "_POLL_SECONDS", 0.01)
    grid = SimpleNamespace(get_node_ids=lambda: [1000])
    with pytest.raises(ClientError, match=r"1 of 2 nodes are connected after 0.05 s: fewer clie"):
        flower.wait_for_nodes(grid, 2, 0.05)
