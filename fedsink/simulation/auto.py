"""`engine=auto`: local or ray, by public numbers alone, once before a run begins.

Ray's processes share the clients' work. Against that they take seconds to start, and some
milliseconds for each message there and back. Measured on two cores of one machine by
`benchmarks/simulation_rounds.py engines`; the table is in benchmarks/README.md.
"""

from __future__ import annotations

import os
from dataclasses import fields, replace

import torch

from fedsink.protocol.tree_sum import BLOCK
from fedsink.simulation.settings import EngineSettings
from fedsink.strategies.strategy_settings import StrategySettings

_OF_RAY = ("address", "actors", "num_cpus", "num_gpus", "data", "revive_seconds", "timeout")
_START = 8.0  # seconds until Ray's processes answer, less those until this one does
_WAY = 13e-3  # seconds that a message takes longer to Ray's processes and back
_OF_EACH = 1e-3  # more of them for every process
_SHARED = 0.7  # how much of the work that others do is time saved, at least


def taken(
    engine: EngineSettings, strategy: StrategySettings, cores: int | None = None
) -> EngineSettings:
    """The engine that `engine=auto` takes, and why; any other as it is.

    Where clients are on GPUs (`engine.device=cuda`), these count in place of cores. That part
    has not been measured.

    Args:
        engine: as it was configured.
        strategy: the method, whose public numbers say how much clients have to do.
        cores: of this machine; None: those that this process may use.
    """
    if engine.name != "auto":
        return engine
    stated = [
        f"engine.{field.name}={value}"
        for field in fields(engine)
        if field.name in _OF_RAY and (value := getattr(engine, field.name)) != field.default
    ]
    if stated:
        return replace(engine, name="ray", chosen=f"{', '.join(stated)} is for Ray alone")
    gpus = torch.cuda.device_count() if engine.device == "cuda" else 0
    workers = gpus or cores or usable_cores()
    unit = "GPU" if gpus else "core"
    found = f"{strategy.clients} clients on {workers} {unit}{'s' if workers > 1 else ''}"
    saved = seconds_saved(strategy, workers)
    if saved <= 0:
        return replace(engine, name="local", chosen=f"{found}, where Ray is not faster")
    why = f"{found}, where Ray ends about {saved:.0f} s sooner"
    if gpus:
        return replace(engine, name="ray", num_gpus=1.0, actors=workers, chosen=why)
    return replace(engine, name="ray", chosen=why)


def seconds_saved(strategy: StrategySettings, workers: int) -> float:
    """About how many seconds sooner a run ends on Ray; cautious, and negative where it is later.

    Args:
        strategy: whose public numbers say how much its clients have to do.
        workers: processes that share them.
    """
    answers = strategy.clients * strategy.messages
    together = max(1, answers // strategy.exchanges)
    blocks = -(-together // BLOCK)  # which are not divided
    largest = min(together, -(-blocks // workers) * BLOCK) / together
    shared = _SHARED * (1 - largest) * answers * strategy.message_seconds
    return shared - strategy.exchanges * (_WAY + workers * _OF_EACH) - _START


def usable_cores() -> int:
    """CPU cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
