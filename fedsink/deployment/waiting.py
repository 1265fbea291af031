"""Waiting until the nodes of a run are there."""

from __future__ import annotations

import time

from flwr.serverapp import Grid

from fedsink.errors import ClientError

_POLL_SECONDS = 1.0


def wait_for_nodes(grid: Grid, nodes: int, seconds: float, *, advice: str) -> None:
    """Return once `nodes` nodes are connected.

    Args:
        grid: which nodes are there.
        nodes: how many there must be.
        seconds: to wait at most.
        advice: what to do about missing ones, for the error.

    Raises:
        ClientError: fewer are, after so many seconds.
    """
    deadline = time.monotonic() + seconds
    while (found := len(list(grid.get_node_ids()))) < nodes:
        if time.monotonic() > deadline:
            raise ClientError(
                f"{found} of {nodes} nodes are connected after {seconds:g} s: {advice}."
            )
        time.sleep(_POLL_SECONDS)
