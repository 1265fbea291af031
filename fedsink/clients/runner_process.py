"""The process beside the private data, as `fedsink node` sees it: started, and asked in forks."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing import forkserver, get_context, parent_process
from multiprocessing.connection import Connection, wait
from typing import Any

from flwr.app import Error, Message

from fedsink.errors import ClientError, ConfigError
from fedsink.protocol.failure_codes import FAILED

_ATTEMPTS = 2
_PAUSE_SECONDS = 0.5  # the system counts a runner that is dying among the living for a moment
# Each fork unpacks _work, and imports the script that is the node's command.
_PRELOADED = ["fedsink.clients.runner", __name__, "fedsink.commands.cli", "runpy"]

# Pools of threads are made when a library is loaded; a fork that wants threads makes its own.
# Nothing is imported from the folder in which the node was started.
SURROUNDINGS = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "PYTHONSAFEPATH": "1",
}
"""Variables of the environment in which a runner starts."""


class RunnerProcess:
    """Answers each message in a fork of multiprocessing's fork server, the runner.

    The runner imports `fedsink.clients.runner` once. One that dies is started again.

    Guarantees:
        - Neither this process nor the runner reads a record: a fork's records and results die
          with it, except its reply and the files that the node wrote to its state folder.
        - No other thread of the runner is alive at a fork.
        - No code of a submitter is unpacked, imported or run.
        - A fork that dies is forked once more for the same message, which ledger and reply store
          make safe; after that the server learns a code.
        - Runner and forks end with this process.
    """

    def __init__(self, config: Mapping[str, str | int]) -> None:
        self._config = dict(config)
        self._processes = get_context("forkserver")
        self._processes.set_forkserver_preload(_PRELOADED)
        self.pid = 0
        """Process id of the runner that answered last."""
        opening: tuple[int, str] | None = self._fork("opened")
        code, self.admitted = opening or (1, "The runner died at its start.")
        if code != 0:
            raise (ConfigError if code == ConfigError.exit_code else ClientError)(self.admitted)

    def answer(self, message: Message) -> Message:
        """Returns the reply to a message, from a fork that ends with it."""
        for attempt in range(_ATTEMPTS):
            if attempt > 0:
                time.sleep(_PAUSE_SECONDS)
            if reply := self._fork("answered", message):
                return reply
            print("fedsink node: the process that answered a message died.", file=sys.stderr)
        return Message(Error(FAILED), reply_to=message)

    def _fork(self, work: str, *words: object) -> Any:
        """Returns what a function of `fedsink.clients.runner` gives in a fork; None if it died."""
        receiver, sender = self._processes.Pipe(duplex=False)
        words = (sender, work, self._config, *words)
        fork = self._processes.Process(target=_work, args=words, daemon=True)
        heard = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for this process alone
        try:
            forkserver.ensure_running()
        finally:
            signal.signal(signal.SIGINT, heard)
        try:
            fork.start()
            sender.close()
            runner, result = receiver.recv()
        except (EOFError, OSError):
            return None
        finally:
            sender.close()
            receiver.close()
        fork.join()
        if self.pid not in (0, runner):
            print("fedsink node: the runner died; another has started.", file=sys.stderr)
        self.pid = runner
        return result


def _work(sender: Connection, work: str, *words: object) -> None:
    """Runs a function of `fedsink.clients.runner` in a fork, which ends with the node's process."""
    pid = os.getppid()
    try:
        from fedsink.clients import runner
    except ImportError as error:  # over which the fork server passes in silence
        sys.exit(f"fedsink node: no message can be answered, install fedsink-node anew: {error}.")
    if runner.THREADS != 1:
        sys.exit(
            f"fedsink node: the runner has {runner.THREADS} threads and cannot fork safely: "
            "uninstall the package that starts threads when it is imported."
        )
    threading.Thread(target=_end_with_the_node, daemon=True).start()
    sender.send((pid, getattr(runner, work)(*words)))


def _end_with_the_node() -> None:
    node = parent_process()
    assert node is not None
    wait([node.sentinel])
    os._exit(1)
