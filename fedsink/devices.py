"""The devices that torch finds on this machine."""

from __future__ import annotations

import torch

from fedsink.errors import ConfigError


def device_named(name: str, key: str) -> torch.device:
    """The device called "cpu", "cuda" (the current GPU) or "cuda:N".

    Under Ray the GPUs counted are those that the actor may see.

    Args:
        name: which device is asked for.
        key: the setting that asks for it, for the error.

    Raises:
        ConfigError: this machine has no such device.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = ["cpu", *(["cuda"] if gpus else []), *(f"cuda:{number}" for number in range(gpus))]
    if name not in known:
        lacking = "" if gpus else " and no CUDA device"
        raise ConfigError(
            f"{key} asks for {name!r}, but torch finds {', '.join(known)}{lacking} here: choose "
            "one that is there."
        )
    return torch.device(name)
