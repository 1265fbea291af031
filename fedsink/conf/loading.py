"""Hydra over fedsink's YAML and that of installed packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any

import hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig

_VERSION = "1.3"


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
    """A Hydra application that reads `sys.argv` and gives the configuration to `task`."""
    Plugins.instance().register(InstalledPackages)
    run: Callable[[], None] = hydra.main(
        config_path="pkg://fedsink.conf", config_name="config", version_base=_VERSION
    )(task)
    return run


@contextmanager
def opened() -> Iterator[None]:
    """Hydra, ready to compose; also in a task of `application`, whose Hydra is put back."""
    Plugins.instance().register(InstalledPackages)
    outside = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_module("fedsink.conf", version_base=_VERSION):
            yield
    finally:
        GlobalHydra.instance().hydra = outside


def composed(overrides: list[str]) -> DictConfig:
    """The configuration under overrides, interpolations left as they are.

    Raises:
        HydraException, OmegaConfBaseException: an override is malformed, or names nothing.
    """
    with opened():
        return hydra.compose("config", overrides=overrides)


def choices(group: str) -> list[str]:
    """What can be chosen in a configuration group."""
    with opened():
        return sorted(GlobalHydra.instance().config_loader().get_group_options(group))
