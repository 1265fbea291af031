"""The process beside the private data, as `fedsink node` sees it: started, asked, ended."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import Pipe
from typing import Self

from flwr.app import Message

from fedsink.errors import ClientError, ConfigError

_ATTEMPTS = 2
_PATIENCE = 10.0
# Pools of threads are made when a library is loaded; a fork that wants threads makes its own.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class RunnerProcess:
    """Runs `fedsink.clients.runner` in a process; a context manager that ends it and its fork.

    A runner that dies is started again. It ends by itself when this process dies.

    Args:
        config: the owner's settings: `policy`, `partition-id`, `num-partitions` and `device`.

    Raises:
        ConfigError: policy, state, key or records are unusable.
        ClientError: the process died at its start, or twice over one message.
    """

    def __init__(self, config: Mapping[str, str | int]) -> None:
        self._config = json.dumps(dict(config))
        self.admitted = ""
        """The owner's limits, in one line."""

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    @property
    def pid(self) -> int:
        """Process id, for monitoring."""
        return self._process.pid

    def keep_alive(self) -> None:
        """Starts it again if it has died."""
        if self._process.poll() is not None:
            self._restart()

    def answer(self, message: Message) -> Message:
        """The reply to a message, from a fork that ends with it."""
        request = pickle.dumps(message)
        for _ in range(_ATTEMPTS):
            try:
                self._connection.send_bytes(request)
                reply: Message = pickle.loads(self._connection.recv_bytes())
                return reply
            except (EOFError, OSError):
                self._restart()
        raise ClientError(f"The runner died {_ATTEMPTS} times over one message: see its log above.")

    def _restart(self) -> None:
        self._end()
        code = self._process.returncode
        print(f"fedsink node: the runner died (exit code {code}); another starts.", file=sys.stderr)
        self._start()

    def _start(self) -> None:
        self._connection, far = Pipe()
        command = [sys.executable, "-P", "-m", "fedsink.clients.runner", self._config]
        self._process = subprocess.Popen(
            [*command, str(far.fileno())],
            pass_fds=[far.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **_ONE_THREAD},
            start_new_session=True,  # this process passes Ctrl-C on
        )
        far.close()
        try:
            code, said = pickle.loads(self._connection.recv_bytes())
        except EOFError:
            self._end()
            raise ClientError(
                f"The runner died at its start (exit code {self._process.returncode})."
            ) from None
        except BaseException:
            self._end()
            raise
        if code != 0:
            self._end()
            raise ConfigError(said) if code == ConfigError.exit_code else ClientError(said)
        self.admitted = said

    def _end(self) -> None:
        """Ends the runner: once its connection closes, it ends its fork and itself."""
        self._connection.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
