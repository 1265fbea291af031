"""The process beside a real node's data: it imports everything once, and forks for each message.

`fedsink node` starts it as ``python -m fedsink.clients.runner`` and speaks to it through a socket
pair: a message in, a reply out. This process opens no connection and never sees the node's key;
the process that speaks with the SuperLink never reads a record.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path

import torch
from flwr.app import Context, Error, Message, RecordDict

from fedsink.clients.app import app, owners_settings
from fedsink.clients.node import TOLD, open_node
from fedsink.clients.policy import Policy
from fedsink.clients.policy_file import read_policy
from fedsink.errors import ClientError, ConfigError, FedsinkError
from fedsink.protocol.failure_codes import FAILED, failure_code
from fedsink.values import read_json

Work = Callable[[], bytes]

_LATER = (
    "dp_accounting.pld.privacy_loss_distribution",
    "dp_accounting.rdp",
    "opendp.prelude",  # where it is installed
    "PIL.BmpImagePlugin",
    "PIL.GifImagePlugin",
    "PIL.JpegImagePlugin",
    "PIL.PngImagePlugin",
    "PIL.PpmImagePlugin",
)
"""Modules that answers import when first needed: imported here before the first fork."""

_ATTEMPTS = 2
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux


class ForkingRunner:
    """Answers messages, each in a fork of this process.

    Guarantees:
        - This process never reads a record: a fork's records and results die with it, except its
          reply and the files that the node wrote to its state folder.
        - No thread but this one is alive at a fork.
        - No code of a submitter is unpacked, imported or run: whatever application a run names,
          the installed `fedsink.clients.app` answers.
        - A fork that dies is forked once more for the same message, which ledger and reply store
          make safe; after that the server learns a code.

    Args:
        config: the owner's settings, as `owners_settings` reads them.
        connection: to the process that speaks with the SuperLink.
    """

    def __init__(self, config: Mapping[str, str | int], connection: Connection) -> None:
        self._config: dict[str, bool | float | int | str] = dict(config)
        self._connection = connection

    def open(self) -> bool:
        """Checks policy, key, state and records in a fork; sends (exit code, sentence)."""
        said = self._fork(self._opened) or pickle.dumps((1, "The node could not be opened."))
        self._connection.send_bytes(said)
        code, _ = pickle.loads(said)
        if code == 0:  # the fork that read the records has told their owner
            TOLD.add(owners_settings(self._context(1, 1)).data)
        return bool(code == 0)

    def serve(self) -> None:
        """Answers until the other side of the connection is closed."""
        while True:
            try:
                request = self._connection.recv_bytes()
            except EOFError:
                return
            self._connection.send_bytes(self._answer(request))

    def _answer(self, request: bytes) -> bytes:
        for _ in range(_ATTEMPTS):
            if reply := self._fork(lambda: self._answered(request)):
                return reply
            print("fedsink node: the process that answered a message died.", file=sys.stderr)
        return self._fork(lambda: _failed(request))

    def _opened(self) -> bytes:
        try:
            settings = owners_settings(self._context(1, 1))
            policy = read_policy(Path(str(self._config["policy"])))
            _check_cohort(policy, settings.clients)
            _ = open_node(settings, int(self._config["partition-id"])).shard
            said = 0, _admitted(policy)
        except FedsinkError as error:
            said = error.exit_code, str(error)
        except ValueError as error:  # there is no such client
            said = 2, str(error)
        return pickle.dumps(said)

    def _answered(self, request: bytes) -> bytes:
        message: Message = pickle.loads(request)
        metadata = message.metadata
        try:
            reply = app(message, self._context(metadata.run_id, metadata.dst_node_id))
        except Exception as error:  # no type of message that the app knows
            code = failure_code(error, self._config["partition-id"])
            reply = Message(Error(code), reply_to=message)
        return pickle.dumps(reply)

    def _context(self, run_id: int, node_id: int) -> Context:
        return Context(run_id, node_id, self._config, RecordDict(), {})

    def _fork(self, task: Work) -> bytes:
        """Returns the result of a task in a separate process; empty if the process died.

        Raises:
            ClientError: another thread is alive.
            EOFError: the other side of the connection is gone.
        """
        _refuse_threads()
        receiver, sender = Pipe(duplex=False)
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            receiver.close()
            self._connection.close()
            _child(task, sender, parent)
        sender.close()
        try:
            if receiver not in wait([receiver, self._connection]):
                raise EOFError("the process that speaks with the SuperLink is gone")
            return receiver.recv_bytes()
        except EOFError:
            if self._connection.poll():
                raise
            return b""
        finally:
            receiver.close()
            os.kill(child, signal.SIGKILL)  # it has answered, or no process waits for it
            os.waitpid(child, 0)


def _child(task: Work, sender: Connection, parent: int) -> None:
    """Runs a task, sends its result, and ends the process; never returns."""
    try:
        _end_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one
        sender.send_bytes(task())
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def _end_with(parent: int) -> None:
    """Has this process killed when its parent dies, where the system can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _refuse_threads() -> None:
    """Raises ClientError where a fork would leave other threads' locks behind."""
    tasks = Path("/proc/self/task")
    threads = len(list(tasks.iterdir())) if tasks.is_dir() else threading.active_count()
    if threads != 1:
        raise ClientError(
            f"The node's process has {threads} threads and cannot fork safely: uninstall the "
            "package that starts threads when it is imported."
        )


def _failed(request: bytes) -> bytes:
    return pickle.dumps(Message(Error(FAILED), reply_to=pickle.loads(request)))


def _check_cohort(policy: Policy, clients: int) -> None:
    """Refuses, before anything connects, a policy under which no sum can ever be unmasked."""
    aggregation = policy.aggregation
    if aggregation is not None and aggregation.minimum_cohort > clients:
        raise ConfigError(
            f"{policy.path} says aggregation.minimum_cohort = {aggregation.minimum_cohort}, and "
            f"clients={clients} take part: no sum is ever unmasked. Lower it, or have more clients."
        )


def _admitted(policy: Policy) -> str:
    """Returns a line for the owner: the allowed answers, their limits, and the state folder."""
    budgets = (f"ε ≤ {b.epsilon:g}, δ ≤ {b.delta:g} {name}" for name, b in policy.budgets.items())
    return (
        f"{policy.lineage}: answers {', '.join(policy.allowed.mechanisms)}; {'; '.join(budgets)}; "
        f"noise={policy.noise}{_shared(policy)}; state in {policy.state}"
    )


def _shared(policy: Policy) -> str:
    """Returns words for the owner on noise that other clients share; empty where none is."""
    rule, aggregation = policy.allowed.secure_aggregation, policy.aggregation
    if rule == "refused":
        return ""
    if aggregation is None:
        return f", shared ({rule})"
    return f", shared in sums of at least {aggregation.minimum_cohort} clients ({rule})"


def _import_all() -> None:
    # OpenDP loads scikit-learn where it is installed, that loads pandas, and pandas loads pyarrow,
    # which starts threads. All of them do without it.
    sys.modules.setdefault("pyarrow", None)  # type: ignore[arg-type]
    for name in _LATER:
        with contextlib.suppress(ImportError):  # code that needs it raises an error
            import_module(name)


def main(arguments: Sequence[str]) -> int:
    """Serves the connection with the given file descriptor; 1 where the node cannot be opened."""
    config, descriptor = arguments
    torch.set_num_threads(1)
    _import_all()
    gc.collect()
    gc.freeze()  # what is imported stays shared with every fork
    runner = ForkingRunner(read_json(config), Connection(int(descriptor)))
    try:
        if not runner.open():
            return 1
        runner.serve()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the process that speaks with the SuperLink is gone
    except ClientError as error:
        print(f"fedsink node: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
