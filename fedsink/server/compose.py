"""The configuration as plain values: composed from overrides, stored in a run folder, read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from fedsink.errors import CheckpointError
from fedsink.reporting.output_files import write_atomic
from fedsink.server.folder import RunFolder


def compose_config(
    overrides: Sequence[str], values: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the configuration under Hydra overrides, every interpolation resolved.

    Args:
        overrides: as typed.
        values: plain values of whole keys or groups, which replace the composed ones before
            anything refers to them.

    Raises:
        ConfigError: an override sets a key that changes nothing.
        HydraException, OmegaConfBaseException: an override is malformed, or names nothing.
    """
    from fedsink.conf.acting import acting_values
    from fedsink.conf.loading import composed

    config = composed(list(overrides))
    with open_dict(config):
        config.update(values or {})
    return acting_values(config, overrides)


def store_config(folder: RunFolder, config: Mapping[str, Any]) -> None:
    """Writes config.yaml: from then on the folder is one that can be resumed."""
    write_atomic(folder.config, OmegaConf.to_yaml(OmegaConf.create(dict(config))).encode())


def stored_config(folder: RunFolder) -> dict[str, Any]:
    """Returns the configuration that a run was started with.

    Raises:
        CheckpointError: config.yaml cannot be read, or is not a table.
    """
    try:
        config: Any = OmegaConf.to_container(OmegaConf.load(folder.config), resolve=True)
    except (YAMLError, OmegaConfBaseException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{folder.config} cannot be read: {reason}.") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{folder.config} is not a run's configuration: not a table.")
    return config
