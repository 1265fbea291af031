"""A strategy that is played message by message, without the server's loop."""

from __future__ import annotations

from typing import Any

from flwr.app import ArrayRecord, ConfigRecord


def collect(strategy: Any, grid: Any) -> None:
    """Goes on until the clients have uploaded what the first round needs."""
    while strategy.uploading:
        asked = strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
        strategy.aggregate_train(1, grid.send_and_receive(asked))


def play(strategy: Any, grid: Any, messages: int | None = None) -> list[dict[str, Any]]:
    """Goes on to a message, or to the last one; returns the metrics of each."""
    metrics = []
    collect(strategy, grid)
    for number in range(strategy.message + 1, (messages or strategy.messages) + 1):
        asked = strategy.configure_train(number, ArrayRecord(), ConfigRecord(), grid)
        _, record = strategy.aggregate_train(number, grid.send_and_receive(asked))
        metrics.append(dict(record or {}))
    return metrics
