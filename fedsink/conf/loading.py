"""Hydra over fedsink's YAML and that of installed packages; Python values as its overrides.

>>> as_overrides({"eps": float("inf"), "strategy": {"rows": 20}, "data.root": "/a b"}, {"strategy"})
['eps=inf', 'strategy.rows=20', "data.root='/a b'"]
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from numbers import Integral, Real
from typing import Any

import hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobRuntime
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.version import VersionBase
from omegaconf import DictConfig
from omegaconf.basecontainer import BaseContainer

from fedsink.errors import ConfigError

_VERSION = "1.3"
_OF_ONE_PROCESS = (GlobalHydra, JobRuntime, Plugins, VersionBase)
_KEY = re.compile(r"[A-Za-z_]\w*([./@][A-Za-z_]\w*)*", re.ASCII)


class InstalledPackages(SearchPathPlugin):
    """Adds the configuration folders that installed packages state to Hydra's search path.

    A folder is a package with YAML files, laid out as `fedsink.conf`. Hydra searches `fedsink.conf`
    first: no package can replace a file of fedsink's.

        [project.entry-points."fedsink.conf"]
        my_package = "my_package.conf"
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Appends the folders, in the order of their names."""
        for entry in sorted(entry_points(group="fedsink.conf"), key=lambda entry: entry.value):
            search_path.append(provider=entry.name, path=f"pkg://{entry.value}")


def application(task: Callable[[DictConfig], Any]) -> Callable[[], None]:
    """Makes a Hydra application that reads `sys.argv` and gives the configuration to `task`."""
    # Hydra's own errors are raised; by default Hydra prints them over several lines and exits.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    Plugins.instance().register(InstalledPackages)
    run: Callable[[], None] = hydra.main(
        config_path="pkg://fedsink.conf", config_name="config", version_base=_VERSION
    )(task)
    return run


@contextmanager
def opened() -> Iterator[None]:
    """Makes Hydra ready to compose, and then restores the caller's Hydra application."""
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
    """Composes the configuration under overrides, interpolations left as they are."""
    with opened():
        return hydra.compose("config", overrides=overrides)


def file_of(group: str, choice: str) -> DictConfig:
    """Reads a choice's file by itself, without the files that it builds on."""
    with opened():
        loader: Any = GlobalHydra.instance().config_loader()
        found = loader.repository.load_config(f"{group}/{choice}")
    return DictConfig({}) if found is None else found.config


def choices(group: str) -> list[str]:
    """Lists the choices of a configuration group."""
    with opened():
        return sorted(GlobalHydra.instance().config_loader().get_group_options(group))


def groups() -> list[str]:
    """Lists the configuration groups."""
    with opened():
        return sorted(GlobalHydra.instance().config_loader().list_groups(""))


def as_overrides(values: Mapping[str, Any], groups: Collection[str]) -> list[str]:
    """Writes one override for each key, of which Hydra reads exactly the value that was given."""
    # A mapping under the name of a group stands for the options of that group; under any other key
    # it is a table. Text that holds ``${`` is an interpolation, as on the command line.
    overrides: dict[str, str] = {}
    for key, value in _flat(values, groups):
        if key in overrides:
            raise ConfigError(f"{key} was given twice: leave one of them out.")
        overrides[key] = f"{key}={_literal(key, value)}"
    return list(overrides.values())


def _flat(values: Mapping[str, Any], groups: Collection[str]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if key in groups and isinstance(value, Mapping):
            yield from ((f"{key}.{_checked(option)}", inner) for option, inner in value.items())
        else:
            yield _checked(key), value


def _checked(key: object) -> str:
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise ConfigError(f"A key is a name such as eps or strategy.rows, not {key!r}.")
    return key


def _literal(key: str, value: object) -> str:
    """Writes a value in the grammar of Hydra's overrides."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        return repr(float(value))
    if isinstance(value, str | os.PathLike):
        return QuotedString(os.fsdecode(value), Quote.single).with_quotes()
    if isinstance(value, list | tuple):
        return f"[{','.join(_literal(key, element) for element in value)}]"
    if isinstance(value, Mapping):
        items = (f"{_checked(name)}:{_literal(key, inner)}" for name, inner in value.items())
        return f"{{{','.join(items)}}}"
    raise ConfigError(
        f"{key} is of the type {type(value).__name__}: give None, a truth value, a number, text, a "
        "path, or a list or mapping of these."
    )
