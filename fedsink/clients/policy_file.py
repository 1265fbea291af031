"""Reading a policy: an unknown key is an error, because a misspelt limit limits nothing."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any, NoReturn

from fedsink.clients.policy import (
    AGGREGATION,
    CENTRAL,
    MAXIMUM_PARAMETERS,
    MAXIMUM_ROUNDS,
    PARAMETERS,
    Allowed,
    Policy,
    mechanisms,
)
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, PrivacyError
from fedsink.privacy.adjacency import ADD_REMOVE, ADJACENCIES, REPLACE_ONE
from fedsink.privacy.ledger import Budget

_REQUIRED = object()


def read_policy(path: Path) -> Policy:
    """The policy in a TOML file; relative paths in it start at its folder.

    Raises:
        ConfigError: the file cannot be read, or a key is unknown, missing or of the wrong type.
    """
    path = path.absolute()
    try:
        with path.open("rb") as file:
            whole = _Table(tomllib.load(file), path.name, "")
    except OSError as error:
        raise ConfigError(f"The policy {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The policy {path} is no TOML file: {error}.") from None
    data, state, noise = (whole.table(name) for name in ("data", "state", "noise"))
    lineage = data.text("lineage")
    on_change = data.choice("on_change", ("inherit", "refuse"), "inherit")
    spec = _data_spec(data, path.parent)
    folder = path.parent / state.text("folder")
    backend = noise.choice("backend", ("secure", "fast"), _REQUIRED)
    budgets = _budgets(whole.table("budget"))
    allowed = _allowed(whole.table("allow"), spec, budgets)
    for table in (data, state, noise, whole):
        table.finish()
    return Policy(path, lineage, spec, on_change, folder, backend, budgets, allowed)


def _data_spec(data: _Table, folder: Path) -> DataSpec:
    root = data.text("root", None)
    try:
        return DataSpec(
            name=data.text("name"),
            shape=tuple(data.numbers("shape")),
            classes=tuple(data.texts("classes")),
            nominal_records=data.whole("nominal_records"),
            root=None if root is None else str(folder / Path(root).expanduser()),
            download=data.flag("download", False),
        )
    except ConfigError as error:
        raise error if data.file in str(error) else ConfigError(f"{data.file}: {error}") from None


def _budgets(tables: _Table) -> dict[str, Budget]:
    budgets = {}
    for name in ADJACENCIES:
        if (table := tables.optional_table(name)) is None:
            continue
        epsilon, delta = table.number("epsilon"), table.number("delta")
        admission = table.text("admission", "reserve")
        order = table.number("order", None)
        try:
            budgets[name] = Budget(epsilon, delta, admission, order)
        except PrivacyError as error:
            table.fail(str(error))
        if admission == "rdp-filter" and name != ADD_REMOVE:
            table.fail(f"the filter is known for {ADD_REMOVE} only: use admission = 'reserve'.")
        table.finish()
    tables.finish()
    if not budgets:
        tables.fail(f"at least one of {', '.join(ADJACENCIES)} is needed.")
    return budgets


def _allowed(table: _Table, data: DataSpec, budgets: dict[str, Budget]) -> Allowed:
    named = tuple(table.texts("mechanisms"))
    if unknown := sorted(set(named) - set(mechanisms())):
        table.fail(f"mechanisms: {unknown[0]!r} is none of {', '.join(mechanisms())}.")
    central = {CENTRAL, PARAMETERS}
    if set(named) - central and REPLACE_ONE not in budgets:
        table.fail(f"mechanisms of the local mode need a [budget.{REPLACE_ONE}].")
    # Limits of the central mode must be stated where it is allowed, and may be elsewhere.
    missing: Any = _REQUIRED if central & set(named) else 0
    listed = table.texts("labels", None)
    if unknown := sorted(set(listed or ()) - set(data.classes)):
        table.fail(f"labels: {unknown[0]!r} is not in data.classes.")
    allowed = Allowed(
        mechanisms=named,
        minimum_noise_multiplier=table.number("minimum_noise_multiplier", missing),
        maximum_clip_bound=table.number("maximum_clip_bound", missing),
        maximum_images=table.whole("maximum_images", missing),
        maximum_rate=table.number("maximum_rate", 1.0),
        minimum_clip_bound=table.number("minimum_clip_bound", 0.0),
        maximum_rounds=table.whole("maximum_rounds", MAXIMUM_ROUNDS),
        maximum_parameters=table.whole("maximum_parameters", MAXIMUM_PARAMETERS),
        labels=None if listed is None else frozenset(map(data.classes.index, listed)),
        capacity=table.choice("capacity", ("required", "optional"), "optional") == "required",
        secure_aggregation=table.choice("secure_aggregation", AGGREGATION, AGGREGATION[0]),
    )
    table.finish()
    return allowed


class _Table:
    """One table of the file; every key is taken once, and none may be left."""

    def __init__(self, values: dict[str, Any], file: str, where: str) -> None:
        self._left = dict(values)
        self.file = file
        self._where = where
        self._known: list[str] = []

    def fail(self, why: str) -> NoReturn:
        place = f" [{self._where}]" if self._where else ""
        raise ConfigError(f"{self.file}{place}: {why}")

    def finish(self) -> None:
        for key in self._left:
            near = difflib.get_close_matches(key, self._known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            self.fail(f"unknown key {key!r}.{hint} Keys: {', '.join(self._known)}.")

    def table(self, key: str) -> _Table:
        where = f"{self._where}.{key}" if self._where else key
        return _Table(self._take(key, dict, "a table", _REQUIRED), self.file, where)

    def optional_table(self, key: str) -> _Table | None:
        if key in self._left:
            return self.table(key)
        self._known.append(key)
        return None

    def text(self, key: str, default: Any = _REQUIRED) -> Any:
        value = self._take(key, str, "a non-empty text", default)
        if value == "":
            self.fail(f"{key} must be a non-empty text.")
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: Any) -> str:
        value = self.text(key, default)
        if value not in choices:
            self.fail(f"{key} is {' or '.join(choices)}, not {value!r}.")
        return str(value)

    def flag(self, key: str, default: bool) -> bool:
        return bool(self._take(key, bool, "true or false", default))

    def number(self, key: str, default: Any = _REQUIRED) -> Any:
        value = self._take(key, (int, float), "a number ≥ 0", default)
        if value is not None and not 0 <= value < float("inf"):
            self.fail(f"{key} must be a number ≥ 0, not {value!r}.")
        return None if value is None else float(value)

    def whole(self, key: str, default: Any = _REQUIRED) -> int:
        value = self._take(key, int, "a whole number", default)
        if value < 0:
            self.fail(f"{key} must be a whole number ≥ 0, not {value!r}.")
        return int(value)

    def texts(self, key: str, default: Any = _REQUIRED) -> Any:
        return self._list(key, str, "texts", default)

    def numbers(self, key: str) -> Any:
        return self._list(key, int, "whole numbers", _REQUIRED)

    def _list(self, key: str, kind: type, what: str, default: Any) -> Any:
        values = self._take(key, list, f"a list of {what}", default)
        if values is not None and not all(type(value) is kind for value in values):
            self.fail(f"{key} must be a list of {what}, not {values!r}.")
        return values

    def _take(self, key: str, kind: Any, what: str, default: Any) -> Any:
        self._known.append(key)
        if key not in self._left:
            if default is _REQUIRED:
                self.fail(f"{key} is missing; it must be {what}.")
            return default
        value = self._left.pop(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.fail(f"{key} must be {what}, not {value!r}.")
        return value
