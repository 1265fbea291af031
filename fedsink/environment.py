"""The process's environment: settings of libraries before their import, and torch's devices."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedsink.errors import ConfigError

if TYPE_CHECKING:
    import torch


def quieten_flower() -> None:
    """Makes Flower send no telemetry, look for no update, and log only warnings.

    Variables that the environment already sets stay. Flower reads them when it is imported.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    os.environ.setdefault("FLWR_LOG_LEVEL", "WARNING")


def typed_name() -> str:
    """Returns `fedsink` as a shell of this user finds it: by its path where PATH has another."""
    own = Path(sys.executable).with_name("fedsink")
    found = shutil.which("fedsink")
    if not own.is_file() or (found is not None and os.path.samefile(found, own)):
        return "fedsink"
    return shlex.quote(str(own))


def device_named(name: str, key: str) -> torch.device:
    """Returns the device called "cpu", "cuda" (the current GPU) or "cuda:N".

    Under Ray the GPUs counted are those that the actor may see.

    Args:
        name: of the device.
        key: the setting that names the device, for the error.

    Raises:
        ConfigError: this machine has no such device.
    """
    import torch  # not above: the command line starts without it

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = ["cpu", *(["cuda"] if gpus else []), *(f"cuda:{number}" for number in range(gpus))]
    if name not in known:
        lacking = "" if gpus else " and no CUDA device"
        raise ConfigError(
            f"{key} asks for {name!r}, but torch finds {', '.join(known)}{lacking} here: choose "
            "one that is there."
        )
    return torch.device(name)
