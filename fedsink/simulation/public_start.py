"""The statement of a simulation on public data, and the starts that it refuses."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

from fedsink.data.sources import load
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, FedsinkError
from fedsink.server.folder import RunFolder, stored_config
from fedsink.values import Config

_MOST_SHARED = 0.01  # of the clients' records: blank pictures are alike everywhere
_READ_AT_ONCE = 1000  # records, which bounds the memory


def entry(spec: DataSpec) -> dict[str, Any]:
    """Returns the entry `public` of privacy.json for a run with `public=true`."""
    records = load(spec)
    public = {"data": spec.name, "records": len(records), "classes": list(spec.classes)}
    return {"public": public | {"data_sha256": records.digest()}}


def refuse_private(source: Path, private: Config) -> None:
    """Refuses a start whose training records are the clients', bit by bit, if they are at hand.

    Args:
        source: folder of the start.
        private: the table `data` of the run that begins.

    Raises:
        ConfigError: of the clients' records more than one in a hundred trained the start.
    """
    try:
        public = _rows(stored_config(RunFolder(source))["data"])
    except (FedsinkError, AttributeError, KeyError, OSError):
        return
    _refuse_shared(public, private)


def _refuse_shared(public: set[bytes], private: Config) -> None:
    held = _rows(private)
    found = len(public & held)
    if found > _MOST_SHARED * len(held):
        raise ConfigError(
            f"{found} of the start's records are records of the clients, bit by bit: what clients "
            "hold is not public. Train the start on other data."
        )


def _rows(values: Config) -> set[bytes]:
    """Returns the hashes of the records that a configuration's table `data` names."""
    records = load(DataSpec.from_config(values))
    return {
        hashlib.blake2b(row, digest_size=16).digest()
        for places in torch.arange(len(records)).split(_READ_AT_ONCE)
        for row in records.take(places)[0].flatten(1).numpy()
    }
