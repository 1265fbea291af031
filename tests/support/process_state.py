"""The state of a Python process before and after calls of fedsink, run in a process of its own.

    python -P process_state.py ENGINE [mine] [error] [interrupt]

Prints a line for each thing that has changed, and `done` at the end. `mine`: the process is
connected to an instance of Ray before. Libraries that are imported first are a user's own.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import locale
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from hydra.core.global_hydra import GlobalHydra


def state() -> dict[str, Any]:
    """Everything of a process that a library could change and a user could miss."""
    numbers = np.random.get_state()
    loggers = {"root": logging.root, **logging.root.manager.loggerDict}
    found: dict[str, Any] = {
        "signals": {n: signal.getsignal(n) for n in signal.valid_signals()},
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, sys.displayhook),
        "streams": (sys.stdout, sys.stderr, list(sys.argv)),
        "sys.path": list(sys.path),
        "environment": dict(os.environ),
        "folder": Path.cwd(),
        "record factory": logging.getLogRecordFactory(),
        "logging disabled": logging.root.manager.disable,
        "warnings": (list(warnings.filters), warnings.showwarning, warnings.formatwarning),
        "torch threads": torch.get_num_threads(),
        "torch defaults": (torch.get_default_dtype(), torch.get_default_device()),
        "torch modes": (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_float32_matmul_precision(),
        ),
        "random numbers": (
            random.getstate(), bytes(torch.get_rng_state()), bytes(numbers[1]), numbers[2]
        ),
        "numpy": (np.geterr(), str(np.get_printoptions())),
        "ray": "ray" in sys.modules and sys.modules["ray"].is_initialized(),
        "hydra": GlobalHydra.instance().is_initialized(),
        "matplotlib": matplotlib.get_backend(),
        "threads": sorted(t.name for t in threading.enumerate()),
        "children": children(),
        "faulthandler": faulthandler.is_enabled(),
        "collector": (gc.isenabled(), gc.get_threshold()),
        "interpreter": (sys.getrecursionlimit(), sys.getswitchinterval(), sys.gettrace()),
        "locale": (locale.setlocale(locale.LC_ALL), time.tzname, socket.getdefaulttimeout()),
    }  # fmt: skip
    for name, logger in loggers.items():
        if isinstance(logger, logging.Logger):
            handlers, filters = list(logger.handlers), list(logger.filters)
            found[f"logger {name}"] = (
                handlers, filters, logger.level, logger.propagate, logger.disabled
            )  # fmt: skip
    return found


def children() -> list[str]:
    """Live child processes; one that has ended and was not asked for its status is none."""
    found = []
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        try:
            status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if status != "Z":
            found.append(pid)
    return found


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What has changed; loggers that are new belong to libraries that were imported."""
    return [
        f"{name}: {before[name]} -> {after[name]}" for name in before if before[name] != after[name]
    ]


def settled(before: dict[str, Any]) -> list[str]:
    """The changes that are left after a while: threads and processes take time to end."""
    deadline = time.monotonic() + 20
    while (found := changes(before, state())) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def hostile() -> None:
    """Settings of a process that a run cannot live with, and that are its user's."""
    matplotlib.use("svg")
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    sys.excepthook = lambda *_: None
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(2)
    torch.set_grad_enabled(False)
    np.seterr(all="raise")
    random.seed(3)
    os.environ["RAY_ADDRESS"] = "127.0.0.1:1"  # an engine that was told no address joins none


def main(engine: str, *words: str) -> None:
    """Runs the calls and prints what they have changed."""
    hostile()
    ray: Any = None
    if "mine" in words:
        ray = importlib.import_module("ray")
        ray.init("local", num_cpus=2, include_dashboard=False, logging_level=logging.ERROR)

        @ray.remote(num_cpus=0)
        class Counter:
            def __init__(self) -> None:
                self.count = 0

            def add(self) -> int:
                self.count += 1
                return self.count

        counter, kept = Counter.remote(), ray.put("mine")
        assert ray.get(counter.add.remote()) == 1
    before = state()
    import fedsink

    print(*settled(before), sep="\n")
    keys = {"engine": engine, "clients": 2, "rounds": 3, "seed": 0, "report.pictures": 0}
    if "error" in words:
        try:
            fedsink.simulate(
                keys, **{"strategy.optimizer.lr": 1e30, "strategy.optimizer.warmup": 0}
            )
        except fedsink.errors.FedsinkError as error:
            print("" if "diverged" in str(error) else error)
        else:
            print("no error")
    elif "interrupt" in words:
        folder = Path("stopped").resolve()

        def interrupt() -> None:
            while not (folder / "metrics.jsonl").is_file():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        try:
            fedsink.simulate({**keys, "rounds": 10_000}, folder=folder)
        except KeyboardInterrupt as stopped:
            print("" if "fedsink.resume" in str(stopped) else stopped)
        else:
            print("no interrupt")
    else:
        with torch.inference_mode(), torch.device("meta"), torch.autocast("cpu"):
            inside = state()
            run = fedsink.simulate(keys)
            print(*changes(inside, state()), sep="\n")
            run.sample(3)
            fedsink.load(run.folder).card()
            run.report()
            run._repr_html_()
            run.evaluate(n=20)
            print(*changes(inside, state()), sep="\n")
    if ray is not None:
        assert ray.get(counter.add.remote()) == 2
        assert ray.get(kept) == "mine"
        deadline = time.monotonic() + 30  # actors take time to end
        while [a["State"] for a in ray._private.state.actors().values()].count("ALIVE") > 1:
            assert time.monotonic() < deadline, ray._private.state.actors()
            time.sleep(0.2)
    print(*settled(before), sep="\n")
    print("done")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException:
        traceback.print_exc()  # the process has an excepthook that is silent
        raise
