from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dp_accounting
import pytest

from fedsink.clients.owner.ledger.charge import Charge
from fedsink.clients.owner.ledger.ledger import Ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    ledger = Ledger(path, durable=False)
    yield ledger
    ledger.close()


@pytest.fixture
def make_charge() -> Callable[..., Charge]:
    """A plan that says it costs `epsilon`; keywords replace its fields."""

    def make(epsilon: float = 1.0, **fields: Any) -> Charge:
        use = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(2.0))
        values: dict[str, Any] = {
            "adjacency": "add-remove",
            "plan": {"epsilon": epsilon},
            "event": dp_accounting.SelfComposedDpEvent(use, 10),
            "rounds": 10,
            "uses": 10,
            "delta": 1e-6,
            "epsilon": lambda: epsilon,
            **fields,
        }
        return Charge(**values)

    return make


@pytest.fixture
def in_processes() -> Callable[..., list[int | None]]:
    """Runs a function once for each argument, each in a new process, all at once."""

    def run(function: Callable[..., None], arguments: list[tuple[Any, ...]]) -> list[int | None]:
        context = multiprocessing.get_context("fork")
        barrier = context.Barrier(len(arguments))
        processes = [context.Process(target=function, args=(barrier, *each)) for each in arguments]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        return [process.exitcode for process in processes]

    return run
