"""`fedsink simulate`: a Hydra application around `fedsink.simulation`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from fedsink.commands.hydra_errors import one_sentence
from fedsink.conf.loading import application, resolved
from fedsink.errors import ConfigError


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Run, resume or sweep; prints the run folder in the last line of standard output."""
    wanted = [a.partition("=")[2] for a in arguments if a.startswith("resume=")]
    if wanted and wanted[0] not in ("", "null"):
        _resume(wanted[0], [a for a in arguments if not a.startswith("resume=")], debug)
        return 0
    arguments = _flags_last(arguments)
    # Hydra would print its own errors over several lines and exit; let them come to us instead.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    failures: list[Exception] = []
    before, sys.argv = sys.argv, ["fedsink simulate", *arguments]
    try:
        application(_task(debug, _standing(arguments), failures))()
    except KeyboardInterrupt:
        if not failures:
            raise
        failures = failures[-1:]  # the run that was stopped, with its checkpoint
    except (HydraException, OmegaConfBaseException) as error:
        failures = [error]
    except ValueError as error:  # flags that exclude each other
        failures = [ConfigError(str(error))]
    finally:
        sys.argv = before
    if not failures:
        return 0
    if debug or not isinstance(failures[0], HydraException | OmegaConfBaseException):
        raise failures[0]
    raise ConfigError(one_sentence(failures[0])) from failures[0]


def _flags_last(arguments: Sequence[str]) -> list[str]:
    """Keys first, flags after them, in whichever order they were typed.

    Hydra's own parser refuses flags between keys, and any wrong flag with a page of usage.

    Raises:
        ConfigError: a flag that Hydra does not have.
    """

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{message}; fedsink simulate --help says what there is.")

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    keys = parser.parse_intermixed_args(list(arguments)).overrides
    flags = list(arguments)
    for key in keys:
        flags.remove(key)
    return [*keys, *flags]


def _task(debug: bool, standing: set[Path], failures: list[Exception]) -> Any:
    """The Hydra task. It keeps its error to itself: Hydra would announce it in a line of its own.

    Args:
        debug: show what clients log.
        standing: folders that a refused run must not remove.
        failures: where errors go.
    """

    def task(config: DictConfig) -> None:
        from fedsink.server.interrupt import InterruptedRunError
        from fedsink.simulation.simulate import start

        folder = Path(HydraConfig.get().runtime.output_dir)
        try:
            print(start(resolved(config), folder, debug=debug))
        except InterruptedRunError as error:
            failures.append(error)
            raise KeyboardInterrupt from error  # ends a whole sweep, not one run of it
        except Exception as error:
            failures.append(error)
        finally:
            _remove_empty(folder, standing)

    return task


def _resume(path: str, others: list[str], debug: bool) -> None:
    if others:
        raise ConfigError(
            f"resume={path} uses the configuration stored in that folder: leave out "
            f"{' '.join(others)}."
        )
    from fedsink.simulation.simulate import resume

    print(resume(Path(path).expanduser().resolve(), debug=debug))


def _standing(arguments: Sequence[str]) -> set[Path]:
    """Folders that are there already, among those that a run folder could lie in."""
    keys = ("hydra.run.dir=", "hydra.sweep.dir=")
    named = [a.partition("=")[2] for a in arguments if a.startswith(keys)]
    paths = [Path.cwd() / name for name in ("runs", *named)]
    return {p.resolve() for path in paths for p in (path, *path.parents) if os.path.exists(p)}


def _remove_empty(folder: Path, standing: set[Path]) -> None:
    """Hydra made folders before anything was checked; a refused run leaves none of them."""
    for path in (folder.resolve(), *folder.resolve().parents):
        if path in standing:
            return
        if not path.is_dir():
            continue
        if [child.name for child in path.iterdir()] == ["multirun.yaml"]:
            (path / "multirun.yaml").unlink()
        try:
            path.rmdir()
        except OSError:  # it holds something
            return
