"""Things by name: those of fedsink, and those that installed packages add by an entry point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from fedsink.errors import ConfigError

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Everything of one kind by its name; what a package adds is loaded when it is asked for.

    A package adds a thing in its pyproject.toml:

    .. code-block:: toml

        [project.entry-points."fedsink.local_mechanisms"]
        my_mechanism = "my_package.mechanism:MyMechanism"

    Names are read once a process, so that a name in a message costs a look-up and no more.

    Args:
        kind: what one of them is called in an error, for example "local mechanism".
        group: the entry-point group.
        own: fedsink's own, by name.

    Raises:
        ConfigError: from every use, where two packages have something of one name; from the
            look-up, where what was installed cannot be loaded.
    """

    def __init__(self, kind: str, group: str, own: Mapping[str, T]) -> None:
        self._kind = kind
        self._group = group
        self._own = own

    def __getitem__(self, name: str) -> T:
        installed = self._installed()
        if name in self._own:
            return self._own[name]
        point = installed[name]
        try:
            loaded: T = point.load()
        except Exception as error:
            raise ConfigError(
                f"The {self._kind} {name!r} ({point.value}) cannot be loaded: {error}; correct or "
                "uninstall the package that adds it."
            ) from error
        return loaded

    def __iter__(self) -> Iterator[str]:
        return iter([*self._own, *self._installed()])

    def __len__(self) -> int:
        return len(self._own) + len(self._installed())

    def _installed(self) -> Mapping[str, EntryPoint]:
        points: dict[str, EntryPoint] = {}
        for point in _points(self._group):
            if point.name in self._own or point.name in points:
                raise ConfigError(
                    f"There are two of the {self._kind} {point.name!r}, one of them {point.value}: "
                    "uninstall the package that adds it."
                )
            points[point.name] = point
        return points


@cache
def _points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, read once a process."""
    return tuple(entry_points(group=group))
