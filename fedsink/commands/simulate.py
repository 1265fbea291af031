"""`fedsink simulate`: a Hydra application around `fedsink.simulation`."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from fedsink.commands.hydra_keys import one_sentence, overrides, typed_value
from fedsink.commands.sweep_objective import NoFigureError, SweepObjective, price_of_choice
from fedsink.conf.acting import resolved
from fedsink.conf.loading import application, choices
from fedsink.errors import ClientError, ConfigError
from fedsink.reporting.displays import ForgivingStream

_EXAMPLES = """fedsink simulate: learn an image generator from data that stays with its owners.

Examples:
  fedsink simulate mode=central                          gradients with noise, in every round
  fedsink simulate mode=ldp mechanism=laplace eps=35     records with noise, once
  fedsink simulate mode=central data=mnist data.root=DIR eps=1 seed=0
  fedsink simulate mode=central data=image_folder data.root=DIR clients=1
  fedsink simulate experiment=mnist_eps10 data.root=DIR
  fedsink simulate --multirun eps=1,3,10 seed=0          a sweep: a folder for each run
  fedsink simulate resume=runs/DATE/TIME-central         a run that was stopped

Usage: fedsink simulate [group=choice …] [key=value …]

Keys you type most:
  eps, delta        what a record costs in all (less is more private)
  sigma, rounds     the noise, and how often it is added; two of these and eps give the third
  clients           among how many owners the records are dealt out; 1: one owner holds all
  rate, clip        which part of the records a round samples, and what is clipped
  adjacency         what ε protects: add-remove, replace-one, user or client
  seed              an equal seed gives an equal run; left out: noise that is secret
  conditional       false: without labels
  data.root         the folder of the data
  hydra.run.dir     the folder of the run; left out: runs/DATE/TIME-MODE

Groups, of which you choose one name each; what is left out follows from mode, data and mechanism:
"""
_CHOSEN = (
    *("mode", "strategy", "data", "mechanism", "map", "generator", "partition", "noise", "engine"),
    *("view", "experiment"),
)
_MORE = """
fedsink simulate [key=value …] --cfg job shows every key with its value, and runs nothing;
docs/guide.md has those that are needed most, and the comments in fedsink/conf/ explain all.
--hydra-help lists Hydra's own flags."""


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Runs, resumes or sweeps; prints the run folder in the last line of standard output."""
    typed, flags, multirun = _parted(arguments)
    objective, typed = _objective(typed)
    if not {"--cfg", "-c", "--info", "-i"}.intersection(flags):
        _begin(typed)
    resumed = [key.partition("=")[2] for key in typed if key.startswith("resume=")]
    if "" in resumed:
        raise ConfigError("resume= names no folder: name that of a run, or leave it out.")
    if len(resumed) == 1 and resumed[0] != "null":
        _resume(resumed[0], [a for a in arguments if not a.startswith("resume=")], debug)
        return 0
    keys = overrides(typed, sweep=multirun)
    failures: list[Exception] = []
    finished: list[Path] = []
    before, folders = sys.argv, _Folders(keys)
    try:
        sys.argv = ["fedsink simulate", *keys, *flags]
        application(_task(debug, folders, failures, finished, objective))()
        if objective is not None and (price := price_of_choice(finished)):
            ForgivingStream(sys.stderr).write(f"{price}\n")
    except KeyboardInterrupt:
        if not failures:
            raise
        failures = failures[-1:]  # the run that ended the sweep
    except (HydraException, OmegaConfBaseException) as error:
        failures = [error]
        folders.remove_new_sweeps()
    except ValueError as error:  # flags that exclude each other
        failures = [error if isinstance(error, ConfigError) else ConfigError(str(error))]
    finally:
        sys.argv = before
    if not failures:
        return 0
    if debug or not isinstance(failures[0], HydraException | OmegaConfBaseException):
        raise failures[0]
    raise ConfigError(one_sentence(failures[0])) from failures[0]


def _help() -> str:
    """Returns the page of help. No configuration is composed for it, which would take seconds."""
    lists = [
        f"{group}: {', '.join(choice for choice in choices(group) if choice != 'deploy')}"
        for group in _CHOSEN
    ]
    filled = (
        fill(text, 99, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
        for text in lists
    )
    return "\n".join([_EXAMPLES.rstrip("\n"), *filled, _MORE])


HELP = _help


def _begin(keys: Sequence[str]) -> None:
    """Says at once what starts, to a person who waits: libraries take seconds to load."""
    if sys.stderr is not None and sys.stderr.isatty():
        typed = " ".join(["fedsink simulate", *keys])
        ForgivingStream(sys.stderr).write(f"{typed}: loading libraries, checking data and keys …\n")


def _end(folder: Path) -> None:
    """Says how a run ended, and what to do next."""
    from fedsink.results.pages.report_page import FILE_NAME
    from fedsink.server.folder import RecordedRun, command_for, promise

    run = RecordedRun.of(folder)
    if run.privacy is None:
        return
    report = folder / FILE_NAME
    lines = [f"Done: {promise(run.privacy)}." + (f" Report: {report}" if report.is_file() else "")]
    if len(run.config["data"]["shape"]) == 3 and not run.evaluations:
        lines.append(f"Next: {command_for('evaluate', 'run', folder)}")
    ForgivingStream(sys.stderr).write("".join(f"{line}\n" for line in lines))


def _parted(arguments: Sequence[str]) -> tuple[list[str], list[str], bool]:
    """Keys and flags, in whichever order they were typed, and whether they make a sweep."""

    # Hydra's own parser refuses flags between keys, and any wrong flag with a page of usage.
    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{message}; fedsink simulate --help says what there is.")

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    parsed = parser.parse_intermixed_args(list(arguments))
    flags = list(arguments)
    for key in parsed.overrides:
        flags.remove(key)
    return parsed.overrides, flags, parsed.multirun or "hydra.mode=MULTIRUN" in parsed.overrides


def _objective(typed: Sequence[str]) -> tuple[SweepObjective | None, list[str]]:
    """Parts `objective=KEY` from the other keys: it belongs to the sweep, not to a run."""
    of_sweep = [key for key in typed if key.startswith("objective=")]
    if len(of_sweep) > 1:
        raise ConfigError("objective was given twice.")
    others = [key for key in typed if key not in of_sweep]
    return (SweepObjective(of_sweep[-1].partition("=")[2]) if of_sweep else None), others


class _Folders:
    """Folders that Hydra makes before anything is checked: a refused run leaves none of them."""

    def __init__(self, keys: Sequence[str]) -> None:
        places = ("hydra.run.dir=", "hydra.sweep.dir=")
        named = [Path(typed_value(key)).expanduser() for key in keys if key.startswith(places)]
        self._places = [Path.cwd() / place for place in (Path("runs"), *named)]
        paths = [path for place in self._places for path in (place, *place.parents)]
        self._standing = {path.resolve() for path in paths if os.path.exists(path)}
        self._sweeps = self._all_sweeps()

    def _all_sweeps(self) -> set[Path]:
        runs, *named = self._places
        return {path for path in (*runs.glob("*/*"), *named) if (path / "multirun.yaml").is_file()}

    def remove_new_sweeps(self) -> None:
        """Removes what Hydra has made for a sweep whose runs it could not compose."""
        for folder in self._all_sweeps() - self._sweeps:
            self.remove_empty(folder)

    def remove_empty(self, folder: Path) -> None:
        for path in (folder.resolve(), *folder.resolve().parents):
            if path in self._standing:
                return
            if not path.is_dir():
                continue
            if [child.name for child in path.iterdir()] == ["multirun.yaml"]:
                (path / "multirun.yaml").unlink()
            try:
                path.rmdir()
            except OSError:  # it holds something
                return


def _task(
    debug: bool,
    folders: _Folders,
    failures: list[Exception],
    finished: list[Path],
    objective: SweepObjective | None,
) -> Callable[[DictConfig], float | None]:
    """Runs the task that Hydra starts, and returns the objective."""
    # In this process it stores an error, because Hydra would announce it in a separate line; except
    # with an objective, where the sweeper must know that a run failed. In another process, where a
    # launcher has sent it, it raises what Hydra brings back.
    here = os.getpid()

    def task(config: DictConfig) -> float | None:
        from fedsink.server.loop import InterruptedRunError
        from fedsink.simulation.simulated_run import start

        hydra = HydraConfig.get()
        folder = Path(hydra.runtime.output_dir)
        if hydra.mode is RunMode.MULTIRUN:
            line = f"Run {hydra.job.num}: {' '.join(hydra.overrides.task)}\n"
            ForgivingStream(sys.stderr).write(line)
        try:
            values = resolved(config, hydra.overrides.task)
            run = start(values, folder, debug=debug)
            _end(run)
            print(run)
            finished.append(run)
            return None if objective is None else objective.value(run)
        except InterruptedRunError as error:
            failures.append(error)
            raise KeyboardInterrupt from error  # ends a whole sweep, not one run of it
        except Exception as error:
            if os.getpid() != here:
                try:
                    pickle.loads(pickle.dumps(error))
                except Exception:  # only its text survives the way to another process
                    raise ClientError(str(error)) from None
                raise error from None
            failures.append(error)
            if hydra.mode is RunMode.MULTIRUN:  # the last line names only the first of them
                ForgivingStream(sys.stderr).write(f"Run {hydra.job.num} failed: {error}\n")
            if isinstance(error, NoFigureError):
                raise KeyboardInterrupt from error  # the next run would have none either
            if objective is not None:
                raise
            return None
        finally:
            folders.remove_empty(folder)

    return task


def _resume(path: str, others: list[str], debug: bool) -> None:
    if others:
        raise ConfigError(
            f"resume={path} uses the configuration stored in that folder: leave out "
            f"{' '.join(others)}."
        )
    folder = Path(path).expanduser().resolve()
    _begin([f"resume={path}"])
    from fedsink.server.folder import RunFolder
    from fedsink.simulation.simulated_run import resume

    if RunFolder.existing(folder).finished:
        ForgivingStream(sys.stderr).write("This run has ended already: nothing is left to do.\n")
    made = resume(folder, debug=debug)
    _end(made)
    print(made)
