"""The process around fedsink: what its libraries change in it, and torch's devices."""

from __future__ import annotations

import faulthandler
import logging
import os
import random
import shlex
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedsink.errors import ConfigError, MissingPackageError

if TYPE_CHECKING:
    import torch


def quieten_flower() -> None:
    """Makes Flower send no telemetry, look for no update, and log only warnings, by default."""
    # Flower reads these variables when it is imported.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    os.environ.setdefault("FLWR_LOG_LEVEL", "WARNING")


_NAMES = {"hydra": "hydra-core", "omegaconf": "hydra-core", "sklearn": "scikit-learn"}
_OF_WHOLE = (*_NAMES, "ray", "matplotlib", "torchvision", "geomloss", "pykeops")
_OF_NODE = ("flwr", "httpx", "rich")


def missing_package(error: Exception, what: str) -> str:
    """Returns the sentence that `what` needs a package that is not installed; "" where it is."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if not module or find_spec(module) is not None:
        return ""
    remedy = "install it"
    if module in _OF_WHOLE:
        remedy = "fedsink brings it, fedsink-core does not (docs/install.md)"
    elif module in _OF_NODE:
        remedy = "fedsink brings it, and so does fedsink-core[node] (docs/install.md)"
    package = _NAMES.get(module, module)
    return f"{what} needs the Python package {package}, which is not installed here: {remedy}."


_OPEN = threading.Lock()
_calls = 0  # under way, in all threads
_process = ExitStack()  # restores the process when the last of them ends


@contextmanager
def undisturbed() -> Iterator[None]:
    """Gives fedsink the process as it needs it, and the caller's own back in the end.

    Libraries change a process when they are imported and when they run. Every function of
    `import fedsink` works inside this block: gradients, float32, the CPU, and no autocast, whatever
    the caller has set. In the end signal handlers, hooks, `sys.path`, the environment, loggers,
    warning filters, PyTorch's threads and default type, and Python's random numbers are the
    caller's. An instance of Ray that was started inside is shut down; the caller's own stays.
    """
    global _calls
    import numpy as np
    import torch

    with _OPEN:
        if _calls == 0:
            _process.enter_context(_restored())
        _calls += 1
    try:
        with ExitStack() as of_thread:
            of_thread.enter_context(torch.inference_mode(False))
            of_thread.enter_context(torch.enable_grad())
            usual = np.errstate(divide="warn", over="warn", under="ignore", invalid="warn")
            of_thread.enter_context(usual)
            if torch.get_default_device().type != "cpu":
                of_thread.enter_context(torch.device("cpu"))
            for device in ("cpu", "cuda"):
                if torch.is_autocast_enabled(device):
                    of_thread.enter_context(torch.autocast(device, enabled=False))
            yield
    except ModuleNotFoundError as error:
        if sentence := missing_package(error, "this"):
            raise MissingPackageError(sentence, name=error.name) from error
        raise
    finally:
        with _OPEN:
            _calls -= 1
            if _calls == 0:
                _process.close()


@contextmanager
def _restored() -> Iterator[None]:
    import torch

    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    hooks = sys.excepthook, threading.excepthook, logging.getLogRecordFactory()
    path, environment = list(sys.path), dict(os.environ)
    drawn, threads, dtype = random.getstate(), torch.get_num_threads(), torch.get_default_dtype()
    dumps, connected = faulthandler.is_enabled(), ray_is_connected()
    everything = [logging.root, *logging.root.manager.loggerDict.values()]
    loggers = [
        (logger, list(logger.handlers), list(logger.filters), logger.level, logger.propagate)
        for logger in everything
        if isinstance(logger, logging.Logger)
    ]
    quieten_flower()
    torch.set_default_dtype(torch.float32)
    try:
        with warnings.catch_warnings():
            yield
    finally:
        if not connected and ray_is_connected():
            sys.modules["ray"].shutdown()
        if not dumps:
            faulthandler.disable()
        for number, handler in handlers.items() if main else ():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        sys.excepthook, threading.excepthook = hooks[:2]
        logging.setLogRecordFactory(hooks[2])
        sys.path[:] = path
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        random.setstate(drawn)
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        for logger, its_handlers, filters, level, propagates in loggers:
            logger.handlers[:], logger.filters[:] = its_handlers, filters
            logger.setLevel(level)
            logger.propagate = propagates


def ray_is_connected() -> bool:
    """Returns whether this process is connected to Ray, without importing it."""
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def typed_name() -> str:
    """Returns `fedsink` as a shell finds it: by its path where PATH has none or another."""
    own = Path(sys.executable).with_name("fedsink")
    found = shutil.which("fedsink")
    if not own.is_file() or (found is not None and os.path.samefile(found, own)):
        return "fedsink"
    return shlex.quote(str(own))


def device_named(name: str, key: str) -> torch.device:
    """Returns the device "cpu", "cuda" (the current GPU) or "cuda:N" that `key` names."""
    # Under Ray the GPUs counted are those that the actor may see.
    import torch  # not above: the command line starts without it

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = ["cpu", *(["cuda"] if gpus else []), *(f"cuda:{number}" for number in range(gpus))]
    if name not in names:
        lacking = "" if gpus else " and no CUDA device"
        raise ConfigError(
            f"{key} asks for {name!r}, but torch finds {', '.join(names)}{lacking} here: choose "
            "one that is there."
        )
    return torch.device(name)
