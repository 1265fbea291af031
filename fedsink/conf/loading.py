"""Hydra over fedsink's YAML and that of installed packages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

import hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobRuntime
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf
from omegaconf.basecontainer import BaseContainer

from fedsink.conf.acting import refuse_idle

_VERSION = "1.3"
_OF_ONE_PROCESS = (GlobalHydra, JobRuntime, Plugins, VersionBase)


class InstalledPackages(SearchPathPlugin):
    """Lets Hydra look into the configuration folders that installed packages state.

    A folder is a package with YAML files in it, laid out as `fedsink.conf`, which is searched
    before it: no package can replace a file of fedsink's.

        [project.entry-points."fedsink.conf"]
        my_package = "my_package.conf"
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the folders, in the order of their names."""
        for entry in sorted(entry_points(group="fedsink.conf"), key=lambda entry: entry.value):
            search_path.append(provider=entry.name, path=f"pkg://{entry.value}")


def application(task: Callable[[DictConfig], Any]) -> Callable[[], None]:
    """A Hydra application that reads `sys.argv` and gives the configuration to `task`.

    Hydra would print its own errors over several lines and exit: here they are raised.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"
    Plugins.instance().register(InstalledPackages)
    run: Callable[[], None] = hydra.main(
        config_path="pkg://fedsink.conf", config_name="config", version_base=_VERSION
    )(task)
    return run


@contextmanager
def opened() -> Iterator[None]:
    """Hydra, ready to compose; what a Hydra application of the caller's holds comes back after."""
    instances: dict[type, Any] = Singleton._instances
    before = {cls: instances.pop(cls, None) for cls in _OF_ONE_PROCESS}
    resolvers = dict(BaseContainer._resolvers)
    try:
        Plugins.instance().register(InstalledPackages)
        with hydra.initialize_config_module("fedsink.conf", version_base=_VERSION):
            yield
    finally:
        BaseContainer._resolvers = resolvers
        for cls, instance in before.items():
            instances.pop(cls, None)
            if instance is not None:
                instances[cls] = instance


def composed(overrides: list[str]) -> DictConfig:
    """The configuration under overrides, interpolations left as they are.

    Raises:
        HydraException, OmegaConfBaseException: an override is malformed, or names nothing.
    """
    with opened():
        return hydra.compose("config", overrides=overrides)


def composed_run(
    overrides: list[str], of: Literal["run", "sweep"] = "run"
) -> tuple[dict[str, Any], Path]:
    """The values of a simulation under overrides, and its folder, or the sweep's that it is of.

    Raises:
        HydraException, OmegaConfBaseException: an override is malformed, or names nothing.
    """
    with opened():
        config: Any = hydra.compose("config", overrides=overrides, return_hydra_config=True)
        folder = Path(config.hydra[of].dir).expanduser().absolute()
        run = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
        return resolved(run, overrides), folder


def resolved(config: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """The values of a simulation: every interpolation resolved, every path absolute.

    Its run can be resumed from anywhere.

    Args:
        config: as it was composed.
        overrides: under which.

    Raises:
        ConfigError: a key was set that changes nothing.
        OmegaConfBaseException: a value is missing, or refers to one that is not there.
    """
    values = acting(config, overrides)
    data = values["data"]
    for group, key in ((data, "root"), (data, "clients_file"), (values, "policy")):
        if group.get(key):
            group[key] = str(Path(str(group[key])).expanduser().resolve())
    return values


def acting(config: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """The values under overrides, every interpolation resolved.

    Raises:
        ConfigError: a key was set that changes nothing.
        OmegaConfBaseException: a value is missing, or refers to one that is not there.
    """
    values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    refuse_idle(config, values, overrides)
    return dict(values)


def file_of(group: str, choice: str) -> DictConfig:
    """The content of a choice's file by itself, without what it builds on."""
    with opened():
        loader: Any = GlobalHydra.instance().config_loader()
        found = loader.repository.load_config(f"{group}/{choice}")
    return DictConfig({}) if found is None else found.config


def choices(group: str) -> list[str]:
    """What can be chosen in a configuration group."""
    with opened():
        return sorted(GlobalHydra.instance().config_loader().get_group_options(group))


def groups() -> list[str]:
    """The names of the configuration groups."""
    with opened():
        return sorted(GlobalHydra.instance().config_loader().list_groups(""))
