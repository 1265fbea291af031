"""Flower's own command line, as a subprocess: submit a run, follow it, stop it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from fedsink import files as whole_files
from fedsink.deployment.results import Receiver
from fedsink.environment import typed_name
from fedsink.errors import ClientError, ConfigError, TransferError
from fedsink.reporting.displays import printable

_STARTED = re.compile(r"Successfully started run (\d+)")
_PROGRESS = re.compile(r"round \d+/\d+")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PATIENCE = 60.0
_PENDING = 30.0


class Submission:
    """Runs `flwr run` once, of the Flower app in a folder, by a connection of Flower's."""

    def __init__(self, app: Path, superlink: str, run_config: Path) -> None:
        self.app = app
        self.superlink = superlink
        self.run_id: str | None = None
        self.results = Receiver()  # of the server's results, from the run's log
        self._log: list[str] = []
        self._process = subprocess.Popen(
            [_flwr(), "run", str(app), superlink, "-c", str(run_config), "--stream"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=_quiet(),
            start_new_session=True,  # this process passes Ctrl-C on
        )

    def wait(self, *, everything: bool = False) -> None:
        """Follows the run's log until it ends; progress, or everything, goes to standard error."""
        if self._process.stdout is None:
            raise ConfigError("Flower's command line was started without an output.")
        pending = threading.Timer(_PENDING, self._say_if_pending)
        pending.daemon = True
        try:
            for line in self._process.stdout:
                if self.results.take(line):
                    continue
                self._log.append(line.rstrip())
                if self.run_id is None and (match := _STARTED.search(line)):
                    self.run_id = match.group(1)
                    pending.start()
                if everything or _PROGRESS.search(line):
                    sys.stderr.write(f"{printable(_COLOUR.sub('', line.rstrip()))}\n")
                    sys.stderr.flush()
            self._process.wait()
        finally:
            pending.cancel()
        if self.run_id is None:
            lines = (_COLOUR.sub("", line).strip(" │╭╰─╮╯") for line in self._log)  # no frames
            why = " ".join(filter(None, (line.removeprefix("Error ─") for line in lines)))
            raise ClientError(
                f"flwr run could not submit {self.app} to superlink={self.superlink}: "
                f"{why or 'it said nothing.'} (Is the SuperLink running, and named in "
                "$FLWR_HOME/config.toml?)"
            )

    def stop(self) -> None:
        """Stops the run on the SuperLink, and the process that follows it."""
        if self.run_id is not None:
            self._ask("stop", self.run_id, self.superlink)
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _say_if_pending(self) -> None:
        if self._process.poll() is None and self.status() == "pending":
            print(
                f"fedsink: run {self.run_id} is pending since {_PENDING:.0f} s: the SuperLink has "
                "taken it and not started it. It waits for another run to end, or its executor "
                "cannot reach it: see the SuperLink's own log. With TLS its certificate must name "
                "127.0.0.1 too (docs/deploy.md). Ctrl-C stops the run.",
                file=sys.stderr,
                flush=True,
            )

    def status(self) -> str:
        """Returns the SuperLink's word for the state of this run."""
        run = ("--run-id", str(self.run_id))
        text = self._ask("list", self.superlink, *run, "--format", "json")
        match = re.search(r'"status"\s*:\s*"([^"]+)"', text)
        return match.group(1) if match else "unknown"

    def _ask(self, *words: str) -> str:
        try:
            done = subprocess.run(
                [_flwr(), *words],
                capture_output=True,
                text=True,
                env=_quiet(),
                timeout=_PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired:  # what the user can do next is said without its answer
            return ""
        return done.stdout + done.stderr


def submit(
    app: Path,
    superlink: str,
    run_config: Mapping[str, str],
    folder: Path,
    *,
    everything: bool,
    stopped: Callable[[Submission], int] | None = None,
) -> int:
    """Submits a run, follows it, makes its run folder of the results; returns the exit code."""
    # `run_config` overrides the app's configuration; `folder` is missing or empty, and printed when
    # it has been made. At Ctrl-C or SIGTERM the run is stopped, and `stopped` gives the exit code,
    # or Ctrl-C is raised again. Results that did not arrive whole are a TransferError.
    with tempfile.TemporaryDirectory(prefix="fedsink-deploy-") as scratch:
        path = Path(scratch) / "run.toml"
        # JSON's strings are TOML's.
        path.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in run_config.items()), "utf-8")
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
        try:
            submission = Submission(app, superlink, path)
            try:
                submission.wait(everything=everything)
            except KeyboardInterrupt:
                submission.stop()
                if stopped is None:
                    raise
                return stopped(submission)
        finally:
            signal.signal(signal.SIGTERM, before)
    again = f"{typed_name()} fetch run={run_config['name']} app={app} superlink={superlink}"
    if not submission.results.begun:
        print(
            f"fedsink: the log of run {submission.run_id} ended without results (its status is "
            f"{submission.status()}): see flwr log {submission.run_id} {superlink}. Once it has "
            f"ended: {again}",
            file=sys.stderr,
        )
        return 1
    try:
        files, failure = submission.results.results()
    except TransferError as error:
        raise TransferError(f"{error} {again}") from error
    if failure is not None:
        print(f"fedsink: {printable(failure['message'])}", file=sys.stderr)
        return int(failure["exit_code"])
    with whole_files.new_folder(folder) as made:  # all of them, or none at all
        for name, content in files.items():
            whole_files.write_atomic(made / name, content)
    from fedsink.results.pages.report_page import report_at_end

    report_at_end(folder)
    print(folder)
    return 0


def app_at(text: str) -> Path:
    """Returns the folder of the Flower app."""
    app = Path(text).expanduser().resolve()
    if not (app / "pyproject.toml").is_file():
        raise ConfigError(
            f"app={app} holds no pyproject.toml: name the folder deploy/ of fedsink's "
            "repository, or a copy of it."
        )
    return app


def new_folder(text: str) -> Path:
    """Returns a path where a run folder can be made: it is missing, or an empty folder."""
    folder = Path(text).expanduser().resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not an empty folder: give another folder=.")
    return folder


def _flwr() -> str:
    """Returns Flower's command beside this Python, or the first on the PATH."""
    beside = Path(sys.executable).with_name("flwr")
    command = str(beside) if beside.is_file() else shutil.which("flwr")
    if command is None:
        raise ConfigError(
            "Flower's command flwr was not found: install fedsink again in this environment."
        )
    return command


def _quiet() -> dict[str, str]:
    return {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
