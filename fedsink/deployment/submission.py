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
    """Runs `flwr run` once.

    Args:
        app: folder of the Flower app.
        superlink: name of the connection in Flower's configuration.
        run_config: TOML file that overrides the app's configuration.

    Attributes:
        results: the server's results, from the run's log.
    """

    def __init__(self, app: Path, superlink: str, run_config: Path) -> None:
        self.app = app
        self.superlink = superlink
        self.run_id: str | None = None
        self.results = Receiver()
        self._said: list[str] = []
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
        """Follows the run's log until it ends; its progress goes to standard error.

        Args:
            everything: relay the whole log, Flower's own lines and tracebacks included.

        Raises:
            ClientError: the run could not be submitted.
        """
        if self._process.stdout is None:
            raise ConfigError("Flower's command line was started without an output.")
        pending = threading.Timer(_PENDING, self._say_if_pending)
        pending.daemon = True
        try:
            for line in self._process.stdout:
                if self.results.take(line):
                    continue
                self._said.append(line.rstrip())
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
            why = " ".join(filter(None, map(_plain, self._said))) or "it said nothing."
            raise ClientError(
                f"flwr run could not submit {self.app} to superlink={self.superlink}: "
                f"{why} (Is the SuperLink running, and named in $FLWR_HOME/config.toml?)"
            )

    def stop(self) -> None:
        """Stops the run on the SuperLink, and the process that follows it."""
        if self.run_id is not None:
            self._ask("stop")
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def what_happened(self) -> str:
        """Returns the SuperLink's status of a run that told no results."""
        return (
            f"the log of run {self.run_id} ended without results (its status is {self._status()}): "
            f"see flwr log {self.run_id} {self.superlink}."
        )

    def _say_if_pending(self) -> None:
        if self._process.poll() is None and self._status() == "pending":
            print(
                f"fedsink: run {self.run_id} is pending since {_PENDING:.0f} s: the SuperLink has "
                "taken it and not started it. It waits for another run to end, or its executor "
                "cannot reach it: see the SuperLink's own log. With TLS its certificate must name "
                "127.0.0.1 too (docs/deploy.md). Ctrl-C stops the run.",
                file=sys.stderr,
                flush=True,
            )

    def _status(self) -> str:
        text = self._ask("list", "--run-id", "--format", "json")
        match = re.search(r'"status"\s*:\s*"([^"]+)"', text)
        return match.group(1) if match else "unknown"

    def _ask(self, command: str, *options: str) -> str:
        run_id = str(self.run_id)
        words = [_flwr(), command]
        if options:
            words += [self.superlink, options[0], run_id, *options[1:]]
        else:
            words += [run_id, self.superlink]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, env=_quiet(), timeout=_PATIENCE, check=False
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
    """Submits a run, follows it, and makes its run folder from the server's results.

    Args:
        app: folder of the Flower app.
        superlink: name of the connection in Flower's configuration.
        run_config: overrides the app's configuration.
        folder: missing or empty; printed when it has been made.
        everything: relay the whole log.
        stopped: called at Ctrl-C or SIGTERM; None: the run is stopped, and Ctrl-C raised again.

    Returns:
        The exit code.

    Raises:
        ClientError: the run could not be submitted.
        TransferError: the results did not arrive whole.
    """
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
        print(f"fedsink: {submission.what_happened()} Once it has ended: {again}", file=sys.stderr)
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
    from fedsink.pages.report_page import report_at_end

    report_at_end(folder)
    print(folder)
    return 0


def app_at(text: str) -> Path:
    """The folder of the Flower app.

    Raises:
        ConfigError: the folder is no Flower app.
    """
    app = Path(text).expanduser().resolve()
    if not (app / "pyproject.toml").is_file():
        raise ConfigError(
            f"app={app} holds no pyproject.toml: name the folder deploy/ of fedsink's "
            "repository, or a copy of it."
        )
    return app


def new_folder(text: str) -> Path:
    """Returns a path where a run folder can be made.

    Raises:
        ConfigError: the path is not an empty folder.
    """
    folder = Path(text).expanduser().resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not an empty folder: give another folder=.")
    return folder


def _flwr() -> str:
    """Flower's command beside this Python, or the first on the PATH.

    Raises:
        ConfigError: there is no such command.
    """
    beside = Path(sys.executable).with_name("flwr")
    command = str(beside) if beside.is_file() else shutil.which("flwr")
    if command is None:
        raise ConfigError(
            "Flower's command flwr was not found: install fedsink again in this environment."
        )
    return command


def _quiet() -> dict[str, str]:
    return {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def _plain(text: str) -> str:
    """Returns a line of the log without colours and frames."""
    return _COLOUR.sub("", text).strip(" │╭╰─╮╯").removeprefix("Error ─")
