"""A strict reader of TOML tables: an unknown key is an error, a misspelt limit limits nothing."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, NoReturn

from fedsink.errors import ConfigError

REQUIRED: Any = object()
"""The default of a key that must be there."""


class Table:
    """One table of the file; every key is taken once, and none may be left.

    Args:
        values: of its keys.
        file: its name.
        where: the table's place in the file; "" for the whole.
        words: keys that some table of such files has: none of them is another one mistyped.
    """

    def __init__(
        self, values: dict[str, Any], file: str, where: str, words: Iterable[str] = ()
    ) -> None:
        self._left = dict(values)
        self.file = file
        self._where = where
        self._words = frozenset(words)
        self._known: list[str] = []

    def fail(self, why: str) -> NoReturn:
        """Refuse the file: a ConfigError that names file and table."""
        place = f" [{self._where}]" if self._where else ""
        raise ConfigError(f"{self.file}{place}: {why}")

    def finish(self) -> None:
        """Refuse a key that nobody has taken."""
        for key in self._left:
            near = difflib.get_close_matches(key, self._known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            self.fail(f"unknown key {key!r}.{hint} Keys: {', '.join(self._known)}.")

    def names(self) -> list[str]:
        """The keys that nobody has taken yet, of a table whose keys are the owner's to choose."""
        return list(self._left)

    def table(self, key: str) -> Table:
        """A table inside this one; it must be there."""
        where = f"{self._where}.{key}" if self._where else key
        return Table(self._take(key, dict, "a table", REQUIRED), self.file, where, self._words)

    def optional_table(self, key: str) -> Table | None:
        """A table inside this one, or None."""
        if key in self._left:
            return self.table(key)
        self._known.append(key)
        return None

    def text(self, key: str, default: Any = REQUIRED) -> Any:
        """A text that is not empty."""
        value = self._take(key, str, "a non-empty text", default)
        if value == "":
            self.fail(f"{key} must be a non-empty text.")
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: Any) -> str:
        """One of some texts."""
        value = self.text(key, default)
        if value not in choices:
            self.fail(f"{key} is {' or '.join(choices)}, not {value!r}.")
        return str(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        return bool(self._take(key, bool, "true or false", default))

    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """A number ≥ 0 as a float; a default of None stays None."""
        value = self._take(key, (int, float), "a number ≥ 0", default)
        if value is not None and not 0 <= value < float("inf"):
            self.fail(f"{key} must be a number ≥ 0, not {value!r}.")
        return None if value is None else float(value)

    def whole(self, key: str, default: Any = REQUIRED) -> Any:
        """A whole number ≥ 0; a default of None stays None."""
        value = self._take(key, int, "a whole number", default)
        if value is None:
            return None
        if value < 0:
            self.fail(f"{key} must be a whole number ≥ 0, not {value!r}.")
        return int(value)

    def texts(self, key: str, default: Any = REQUIRED) -> Any:
        """A list of texts."""
        return self._list(key, str, "texts", default)

    def numbers(self, key: str) -> Any:
        """A list of whole numbers."""
        return self._list(key, int, "whole numbers", REQUIRED)

    def _list(self, key: str, kind: type, what: str, default: Any) -> Any:
        values = self._take(key, list, f"a list of {what}", default)
        if values is not None and not all(type(value) is kind for value in values):
            self.fail(f"{key} must be a list of {what}, not {values!r}.")
        return values

    def _take(self, key: str, kind: Any, what: str, default: Any) -> Any:
        self._known.append(key)
        if key not in self._left:
            if default is REQUIRED:
                self.fail(f"{key} is missing; it must be {what}.{self._mistyped(key)}")
            return default
        value = self._left.pop(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.fail(f"{key} must be {what}, not {value!r}.")
        return value

    def _mistyped(self, key: str) -> str:
        """A question about the key of this table that is most like a missing one."""
        plain = {_plain(left): left for left in self._left if left not in self._words}
        near = difflib.get_close_matches(_plain(key), plain, n=1)
        return f" There is {plain[near[0]]!r}: did you mean {key}?" if near else ""


def _plain(key: str) -> str:
    return key.casefold().replace("-", "_")
