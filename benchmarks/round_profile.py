"""Processor time of one simulated round by phase, client and server in one process.

`python benchmarks/round_profile.py [OVERRIDES]`, with the overrides of `fedsink simulate`, as
`data=mnist data.root=DIR rounds=300`. Every phase is timed without the phases inside it; the last
row is the time that no phase covers. The first rounds, which prepare the data, and the last one are
left out.
"""

from __future__ import annotations

import functools
import importlib
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from interleaved import table
from omegaconf import OmegaConf

from fedsink.conf.loading import composed
from fedsink.simulation import simulated_run
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhornStrategy

PHASES = {
    "server: generator, forwards": [
        "fedsink.strategies.dp_sinkhorn.strategy:DPSinkhornStrategy._generate"
    ],
    "server: self term": ["fedsink.strategies.dp_sinkhorn.self_term:History.__call__"],
    "server: pack requests": ["fedsink.strategies.dp_sinkhorn.strategy:packed_requests"],
    "server: mean of the replies, self term added": [
        "fedsink.strategies.dp_sinkhorn.strategy:DPSinkhornStrategy.aggregate_train"
    ],
    "server: backward, Adam, average": ["fedsink.strategies.base.trainer:Trainer.step"],
    "server: ε so far": [
        "fedsink.strategies.dp_sinkhorn.strategy:DPSinkhornStrategy.epsilon_bound"
    ],
    "server: metrics and progress": [
        "fedsink.server.folder:RunFolder.log",
        "fedsink.reporting.progress:Progress.update",
    ],
    "clients: unpack requests, check, hash": [
        "fedsink.strategies.dp_sinkhorn.strategy:checked",
        "fedsink.clients.answers.base:digest",
    ],
    "clients: admit": ["fedsink.clients.node_cohort:NodeCohort._admit"],
    "clients: sample records": [
        "fedsink.clients.records.pool:Pool.draw",
        "fedsink.clients.records.pool:Sample.in_buckets",
        "fedsink.clients.records.pool:Pool.batch",
    ],
    "clients: clipped sums": ["fedsink.clients.answers.dp_sinkhorn:client_totals"],
    "clients: noise": ["fedsink.privacy.plan:PrivacyPlan.release_each"],
    "clients: the rest of an answer, and adding up": [
        "fedsink.simulation.virtual_clients:Cohort.add_up"
    ],
}
_REST = "messages and all else"
_WARM_UP = 20


class Clock:
    """Processor time of each phase, without that of the phases inside."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._now = [_REST]
        self._since = time.process_time()

    def switch(self) -> None:
        """Books the time since the last switch on the phase that ends or is interrupted."""
        now = time.process_time()
        self.seconds[self._now[-1]] += now - self._since
        self._since = now

    def within(self, phase: str, call: Callable[[], Any]) -> Any:
        """Runs something as a phase."""
        self.switch()
        self._now.append(phase)
        try:
            return call()
        finally:
            self.switch()
            self._now.pop()

    def watch(self, phase: str, place: str) -> None:
        """Books a function's calls on a phase. A generator's steps are booked one by one."""
        module, _, path = place.partition(":")
        *owners, name = path.split(".")
        owner = functools.reduce(getattr, owners, importlib.import_module(module))
        original = getattr(owner, name)

        @functools.wraps(original)
        def timed(*args: Any, **options: Any) -> Any:
            found = self.within(phase, lambda: original(*args, **options))
            return self._steps(phase, found) if hasattr(found, "send") else found

        setattr(owner, name, timed)

    def _steps(self, phase: str, steps: Any) -> Any:
        end = object()
        while (step := self.within(phase, lambda: next(steps, end))) is not end:
            yield step


def main() -> None:
    overrides = ["seed=0", "engine=local", "report.pictures=0", "report.html=false", *sys.argv[1:]]
    config: Any = OmegaConf.to_container(composed(overrides), resolve=True)
    clock, rounds, seconds = Clock(), 0, {}
    begin = DPSinkhornStrategy.configure_train

    def counted(self: DPSinkhornStrategy, *args: Any) -> Any:
        nonlocal rounds, seconds
        clock.switch()
        if self.round == _WARM_UP:
            clock.seconds.clear()
        if self.round == self.rounds - 1:
            rounds, seconds = self.round - _WARM_UP, dict(clock.seconds)
        return begin(self, *args)

    for phase, places in PHASES.items():
        for place in places:
            clock.watch(phase, place)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(DPSinkhornStrategy, "configure_train", counted),
    ):
        simulated_run.start(config, Path(folder) / "run")
    total = sum(seconds.values())
    rows = [
        [
            phase,
            f"{1e3 * seconds.get(phase, 0.0) / rounds:.2f}",
            f"{seconds.get(phase, 0.0) / total:.0%}",
        ]
        for phase in [*PHASES, _REST]
    ]
    table(["phase", "ms a round", "share"], [*rows, ["all", f"{1e3 * total / rounds:.1f}", ""]])


if __name__ == "__main__":
    main()
