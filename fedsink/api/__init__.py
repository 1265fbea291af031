"""What `import fedsink` offers: the commands' work as functions, and a run as an object."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from fedsink.api.run import Run
from fedsink.commands.hydra_errors import one_sentence
from fedsink.conf.loading import composed_run, groups
from fedsink.conf.overrides import as_overrides
from fedsink.environment import quieten_flower
from fedsink.errors import ConfigError
from fedsink.server.interrupt import InterruptedRunError

__all__ = ["Run", "load", "resume", "simulate"]


def simulate(
    values: Mapping[str, Any] | None = None,
    /,
    *,
    folder: str | os.PathLike[str] | None = None,
    **keys: Any,
) -> Run:
    """Learn a generator from simulated clients, as `fedsink simulate` does.

    It takes the keys of the command line: groups and keys by keyword, keys with a dot through a
    mapping. Whatever is left out is what the command would take.

        run = fedsink.simulate(mode="central", eps=5, seed=0)
        run = fedsink.simulate({"strategy.rows": 20}, mode="central")
        run = fedsink.simulate(mode="central", strategy={"rows": 20})
        runs = [fedsink.simulate(mode="ldp", eps=eps) for eps in (20, 35)]

    Progress is shown on standard error, or below a notebook's cell. An experiment that is a study
    gives a run of several `parts`. The process is left as it was found: Hydra's and Ray's state,
    PyTorch's threads, signal handlers.

    Args:
        values: values by key. A mapping under the name of a group holds the group's options.
        folder: the run folder, new or empty; None: a new one under `runs`, as `hydra.run.dir` says.
        keys: the same by keyword.

    Returns:
        The finished run.

    Raises:
        FedsinkError: bad input, in the command's words (nothing is left behind), or a run that
            failed.
        KeyboardInterrupt: the run was stopped; its text says how to continue it.
    """
    given: dict[str, Any] = {}
    for source in (values or {}, keys, {} if folder is None else {"hydra.run.dir": folder}):
        if twice := sorted(given.keys() & source.keys()):
            raise ConfigError(f"{twice[0]} was given twice: leave one of them out.")
        given |= source
    if given.get("resume") is not None:
        raise ConfigError(
            f"fedsink.simulate starts runs: continue with fedsink.resume({given['resume']!r})."
        )
    nested = any(isinstance(value, Mapping) for value in given.values())
    try:
        config, path = composed_run(as_overrides(given, groups() if nested else ()))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(one_sentence(error)) from error
    with _undisturbed(path):
        from fedsink.simulation.simulated_run import start

        return Run(start(config, path))


def resume(folder: str | os.PathLike[str]) -> Run:
    """Continue with the run in a folder, to the same end as if it had never stopped.

    Raises:
        CheckpointError: the folder holds no run, or its checkpoint or key is unusable.
        KeyboardInterrupt: the run was stopped again.
    """
    path = Path(folder).expanduser().resolve()
    with _undisturbed(path):
        from fedsink.simulation.simulated_run import resume

        return Run(resume(path))


def load(folder: str | os.PathLike[str]) -> Run:
    """The run in a folder, finished or not; what was read once is not read again.

    Raises:
        CheckpointError: the folder holds no run.
    """
    return Run(folder)


@contextmanager
def _undisturbed(folder: Path) -> Iterator[None]:
    """The process afterwards as it was before; a stopped run is a KeyboardInterrupt."""
    quieten_flower()
    import torch

    threads, connected = torch.get_num_threads(), _ray_is_connected()
    try:
        yield
    except InterruptedRunError as error:
        raise KeyboardInterrupt(
            f"{error.stopped} Continue with: fedsink.resume({str(folder)!r})"
        ) from error
    finally:
        torch.set_num_threads(threads)
        if not connected and _ray_is_connected():
            sys.modules["ray"].shutdown()


def _ray_is_connected() -> bool:
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())
