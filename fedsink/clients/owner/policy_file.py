"""Reads the owner's policy file strictly: an unknown key is an error.

A misspelt limit would limit nothing. `read_policy` is the entry point.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from fedsink.clients.answers.base import Answer
from fedsink.clients.answers.registry import ANSWERS, answers_by_word, find_answer
from fedsink.clients.owner.ledger.charge import Budget
from fedsink.clients.owner.policy import Aggregation, AllowTable, AppTable, Policy
from fedsink.data.spec import ARRAYS, DataSpec
from fedsink.errors import ConfigError, PrivacyError
from fedsink.models import GENERATORS
from fedsink.privacy import PrivacyPlan, RecordClip
from fedsink.privacy.adjacency import ADD_REMOVE, ADJACENCIES, CLIENT
from fedsink.privacy.plan import JOINT
from fedsink.protocol.signing import read_key, read_keys
from fedsink.secagg.identities import Authority, Peers
from fedsink.secagg.parameters import LEAST_COHORT, NO_CERTIFICATE, Trust
from fedsink.values import as_float, check_format
from fedsink.values import privacy_checks as checks

TABLE, TEXT, FLAG = "a table", "a non-empty text", "true or false"
NUMBER, WHOLE = "a number ≥ 0", "a whole number ≥ 0"
TEXTS, WHOLES, NUMBERS = "a list of texts", "a list of whole numbers", "a list of numbers"


def _list_of(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(type(each) in kinds for each in value)


_IS: dict[str, Callable[[Any], bool]] = {
    TABLE: lambda value: isinstance(value, dict),
    TEXT: lambda value: isinstance(value, str) and value != "",
    FLAG: lambda value: isinstance(value, bool),
    NUMBER: lambda value: 0 <= as_float(value) < math.inf,
    WHOLE: lambda value: type(value) is int and value >= 0,
    TEXTS: _list_of(str),
    WHOLES: _list_of(int),
    NUMBERS: _list_of(int, float),
}
"""Tests of a key's value, by the words that the owner reads; true is no number."""

REQUIRED: Any = object()
"""The default of a key that must be there."""

MAXIMUM_ROUNDS = 100_000  # default of a policy
LEAST_THRESHOLD = 2 / 3  # of a secret's shares: below it two sets of survivors can be unmasked
AGGREGATION = ("refused", "untrusted", "masked", "trusted")
FORMAT = 1
WORDS = (
    "format",
    *("data", "state", "noise", "budget", "allow", "operators", "keys"),
    *("lineage", "on_change", "root", "name", "shape", "classes", "nominal_records", "download"),
    "range",
    *("folder", "state_days", "backend"),
    *("epsilon", "delta", *ADJACENCIES),
    *("mechanisms", "generators", "labels", "minimum_noise_multiplier", "minimum_clip_bound"),
    *("maximum_clip_bound", "maximum_rounds", "maximum_rate", "capacity"),
    *("secure_aggregation", "aggregation", "peers", "authority", "certificate", "minimum_cohort"),
    *("threshold", "tolerate_dropouts"),
    *("app", "client", "config", "job", "rounds", "clip_bound", "noise_multiplier", "layers"),
    *("share", "metrics", "metric_noise_multiplier"),
)
"""Every key of a policy except the limits that answers state."""
_WHOLE = "each plan is charged whole before its first release, and plans add up"
_ASKS = "name those who may ask in [operators.keys]"
GONE = {
    "admission": f"{_WHOLE}: delete the line; what the ledger has charged stays",
    "order": f"the Rényi filter is gone, and {_WHOLE}: delete the line",
    "rounds_per_reservation": f"{_WHOLE}: delete the line, and {_ASKS}",
    "maximum_parameters": "train.parameter_gradient, which it bounds, is in fedsink-papers: delete "
    "the line, or install that and name parameter_gradient in mechanisms",
    "runs_per_day": f"it limited how fast a budget was used, not how much of it: {_ASKS}",
}
"""Keys of former versions, and what replaces them."""


def read_policy(path: Path) -> Policy:
    """Reads a policy file; relative paths in it start at its folder.

    Raises:
        ConfigError: it cannot be read, is of another format, or a key is unknown, missing or of
            the wrong type.
    """
    path = path.absolute()
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"The policy {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:  # of the syntax, the encoding, or a number of too many digits
        raise ConfigError(f"The policy {path} is no TOML file: {error}.") from None
    whole = TomlTable(content, path.name, "", [*WORDS, *_own_limits()])
    check_format(f"The policy {path}", whole.take("format", WHOLE, 1), FORMAT, error=ConfigError)
    data, state, noise = (whole.table(name) for name in ("data", "state", "noise"))
    lineage = data.take("lineage", TEXT)
    on_change = data.choice("on_change", ("inherit", "refuse"), "inherit")
    guarded, own = whole.optional_table("app"), TomlTable({"mechanisms": []}, path.name, "allow")
    allow = whole.table("allow") if guarded is None else whole.optional_table("allow") or own
    spec = _data_spec(data, path.parent, of_app=allow is own)
    folder = path.parent / state.take("folder", TEXT)
    days = state.take("state_days", NUMBER, None)
    backend = noise.choice("backend", ("secure", "fast"), REQUIRED)
    budgets = _budgets(whole.table("budget"))
    allowed = _allowed(allow, spec, budgets)
    operators = _operators(whole.optional_table("operators"))
    app = None if guarded is None else _app(guarded, budgets)
    if app is not None and (operators or on_change == "refuse"):
        whole.fail(
            'with [app] there are neither [operators] nor on_change = "refuse": servers of Flower '
            "sign no request, and only the app sees the data."
        )
    aggregation = _aggregation(whole.optional_table("aggregation"), path.parent)
    if allowed.secure_aggregation == "masked" and aggregation is None:
        whole.fail("allow.secure_aggregation = 'masked' needs a table [aggregation].")
    for table in (data, state, noise, whole):
        table.finish()
    return Policy(
        path, lineage, spec, on_change, folder, days, backend, budgets, allowed, operators,
        aggregation, app,
    )  # fmt: skip


def _app(table: TomlTable, budgets: dict[str, Budget]) -> AppTable:
    update = table.choice("job", ("update", "records"), REQUIRED) == "update"
    adjacency, one = (CLIENT, 1) if update else (ADD_REMOVE, None)  # a client sends one vector
    if (budget := budgets.get(adjacency)) is None:
        table.fail(f"its jobs are charged under {adjacency}: add a [budget.{adjacency}].")
    rounds, delta = table.take("rounds", WHOLE), table.take("delta", NUMBER)
    if not 0 < delta <= budget.delta:
        table.fail(f"delta = {delta:g} is not in (0, {budget.delta:g}], the budget's.")
    rule = table.take("secure_aggregation", TEXT, "refused")
    if rule not in ("refused", "trusted"):
        table.fail(
            f'secure_aggregation = "{rule}": servers of Flower unmask no sum, and a part of the '
            'noise protects no single reply: say "trusted" and share, or leave it out.'
        )
    share = table.take("share", WHOLE, REQUIRED if rule == "trusted" else 1)
    if share < 1 or (share > 1 and not (update and rule == "trusted")):
        table.fail('share, at least 1, is for job = "update" and secure_aggregation = "trusted".')

    def plan(bound: float, sigma: float) -> PrivacyPlan:
        clip = RecordClip(bound)
        plan = PrivacyPlan(1.0, sigma, rounds, clip, JOINT, delta, adjacency, one)
        if (cost := plan.rough_epsilon(budget.epsilon)) is not None:
            table.fail(f"a job costs ε = {cost:.3g}, above the budget's: add noise or do fewer.")
        return plan

    bounds = dict[str, tuple[float, float]]()
    if (named := table.optional_table("metrics")) is not None:
        for name in named.names():
            ends = named.take(name, NUMBERS)
            if len(ends) != 2 or not -1e300 < ends[0] < ends[1] < 1e300:
                named.fail(f"{name} must be [low, high].")
            bounds[name] = float(ends[0]), float(ends[1])
    of_update = of_metrics = None
    try:
        checks.count("rounds", rounds)
        if update:
            bound, sigma = (table.take(k, NUMBER) for k in ("clip_bound", "noise_multiplier"))
            of_update = plan(bound, sigma)
        if bounds:  # together they move by at most √n, whatever changes
            sigma, bound = table.take("metric_noise_multiplier", NUMBER), math.sqrt(len(bounds))
            of_metrics = plan(bound, sigma / bound)
    except PrivacyError as error:
        table.fail(str(error))
    client, config = table.take("client", TEXT, ""), table.take("config", TABLE, {})
    layers = table.take("layers", FLAG, False)
    table.finish()
    return AppTable(client, config, rounds, delta, of_update, layers, share, bounds, of_metrics)


def _aggregation(table: TomlTable | None, folder: Path) -> Aggregation | None:
    if table is None:
        return None
    minimum = table.take("minimum_cohort", WHOLE)
    if minimum < LEAST_COHORT:
        table.fail(f"minimum_cohort must be at least {LEAST_COHORT}, not {minimum}.")
    threshold = table.take("threshold", NUMBER, LEAST_THRESHOLD)
    if not LEAST_THRESHOLD <= threshold < 1:
        table.fail(f"threshold must be at least 2/3 and below 1, not {threshold:g}.")
    spared = table.take("tolerate_dropouts", WHOLE, None)
    peers, authority = table.take("peers", TEXT, None), table.take("authority", TEXT, None)
    certificate = table.take("certificate", TEXT, None)
    if (peers is None) == (authority is None) or (authority is None) != (certificate is None):
        table.fail("give peers, or authority with the certificate of this node's key.")
    trust: Trust
    try:
        if peers is not None:
            trust = Peers(_peers(folder / Path(peers).expanduser()))
        else:
            trust = Authority(read_key(authority))
        signed = NO_CERTIFICATE if certificate is None else bytes.fromhex(certificate)
    except ConfigError as error:
        table.fail(f"{'authority' if peers is None else 'peers'}: {error}")
    except ValueError:
        signed = b""
    if len(signed) != len(NO_CERTIFICATE):
        table.fail("certificate is the text that fedsink node certify printed.")
    table.finish()
    return Aggregation(trust, minimum, threshold, signed, spared)


def _peers(path: Path) -> dict[int, bytes]:
    """Reads the public keys of a consortium's nodes, by the numbers of their clients."""
    keys = read_keys(f"The file {path}", path)
    for name in keys.values():  # a number has one spelling: two lines never mean one client
        if not re.fullmatch("0|[1-9][0-9]{0,8}", name):
            raise ConfigError(f"{path}: {name!r} is not how a client's number is written: 0, 1, …")
    return {int(name): key for key, name in keys.items()}


def _operators(table: TomlTable | None) -> dict[str, bytes]:
    if table is None:
        return {}
    keys = table.table("keys")
    operators = {}
    for name in keys.names():
        try:
            operators[name] = read_key(keys.take(name, TEXT))
        except ConfigError as error:
            keys.fail(f"{name}: {error}")
    if not operators:
        keys.fail("name at least one operator, or leave [operators] out.")
    table.finish()
    return operators


def _data_spec(data: TomlTable, folder: Path, *, of_app: bool) -> DataSpec:
    if of_app:  # which alone reads them
        return DataSpec(ARRAYS, (1,), ("all",), data.take("nominal_records", WHOLE))
    root = data.take("root", TEXT, None)
    try:
        return DataSpec(
            name=data.take("name", TEXT),
            shape=tuple(data.take("shape", WHOLES)),
            classes=tuple(data.take("classes", TEXTS)),
            nominal_records=data.take("nominal_records", WHOLE),
            root=None if root is None else str(folder / Path(root).expanduser()),
            download=data.take("download", FLAG, False),
            range=data.take("range", NUMBERS, None),
        )
    except ConfigError as error:
        raise error if data.file in str(error) else ConfigError(f"{data.file}: {error}") from None


def _budgets(tables: TomlTable) -> dict[str, Budget]:
    budgets = {}
    for name in ADJACENCIES:
        if (table := tables.optional_table(name)) is None:
            continue
        epsilon, delta = table.take("epsilon", NUMBER), table.take("delta", NUMBER)
        try:
            budgets[name] = Budget(epsilon, delta)
        except PrivacyError as error:
            table.fail(str(error))
        table.finish()
    tables.finish()
    if not budgets:
        tables.fail(f"at least one of {', '.join(ADJACENCIES)} is needed.")
    return budgets


def _allowed(table: TomlTable, data: DataSpec, budgets: dict[str, Budget]) -> AllowTable:
    words, by_word = tuple(table.take("mechanisms", TEXTS)), answers_by_word()
    if unknown := sorted(set(words) - set(by_word)):
        moved = unknown[0] in ("parameter-gradient", "parameter_gradient")
        hint = " parameter_gradient is in fedsink-papers: see docs/papers.md." if moved else ""
        table.fail(f"mechanisms: {unknown[0]!r} is none of {', '.join(by_word)}.{hint}")
    named = [find_answer(name, None) for name in sorted({by_word[word] for word in words})]
    for answer in named:
        if answer.adjacency not in (None, *budgets):
            adjacency = answer.adjacency
            table.fail(f"mechanisms charged under {adjacency} need a [budget.{adjacency}].")
    generators = tuple(table.take("generators", TEXTS, ()))
    if unknown := sorted(set(generators) - set(GENERATORS)):
        table.fail(f"generators: {unknown[0]!r} is none of {', '.join(GENERATORS)}.")
    listed = table.take("labels", TEXTS, None)
    if unknown := sorted(set(listed or ()) - set(data.classes)):
        table.fail(f"labels: {unknown[0]!r} is not in data.classes.")
    # Limits of the central mode must be stated where it is allowed, and may be elsewhere.
    missing: Any = REQUIRED if any(answer.adjacency is None for answer in named) else 0
    allowed = AllowTable(
        mechanisms=words,
        generators=generators,
        limits=_limits(table, named),
        minimum_noise_multiplier=table.take("minimum_noise_multiplier", NUMBER, missing),
        minimum_clip_bound=table.take("minimum_clip_bound", NUMBER, 0.0),
        maximum_clip_bound=table.take("maximum_clip_bound", NUMBER, missing),
        maximum_rounds=table.take("maximum_rounds", WHOLE, MAXIMUM_ROUNDS),
        maximum_rate=table.take("maximum_rate", NUMBER, 1.0),
        labels=None if listed is None else frozenset(map(data.classes.index, listed)),
        capacity=table.choice("capacity", ("required", "optional"), "optional") == "required",
        secure_aggregation=table.choice("secure_aggregation", AGGREGATION, AGGREGATION[0]),
    )
    table.finish()
    return allowed


def _limits(table: TomlTable, named: list[type[Answer]]) -> dict[str, int]:
    """Returns the limits that answers state: fedsink's own, and those that the policy names."""
    defaults: dict[str, Any] = dict.fromkeys(_own_limits(), 0)
    for answer in named:
        defaults |= {k: REQUIRED if v is None else v for k, v in answer.limits.items()}
    return {key: table.take(key, WHOLE, default) for key, default in defaults.items()}


def _own_limits() -> list[str]:
    return [key for name in ANSWERS.own for key in ANSWERS[name].limits]


class TomlTable:
    """A table of the file, at the place `where`; every key is taken once, and none may be left.

    `words` are all known keys of such files: a known key is never taken for a mistyped one.
    """

    def __init__(
        self, values: dict[str, Any], file: str, where: str, words: Iterable[str] = ()
    ) -> None:
        self._rest = dict(values)
        self.file = file
        self._where = where
        self._words = frozenset(words)
        self._names: list[str] = []

    def fail(self, why: str) -> NoReturn:
        """Raises a ConfigError that names file and table."""
        place = f" [{self._where}]" if self._where else ""
        raise ConfigError(f"{self.file}{place}: {why}")

    def finish(self) -> None:
        """Refuses a key that nobody has taken, and one of before by what replaces it."""
        for key in self._rest:
            if key in GONE:
                self.fail(f"{key} is no key any more: {GONE[key]}.")
            near = difflib.get_close_matches(key, self._names, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            self.fail(f"unknown key {key!r}.{hint} Keys: {', '.join(self._names)}.")

    def names(self) -> list[str]:
        """Returns the keys that nobody has taken yet, where the owner chooses the keys."""
        return list(self._rest)

    def table(self, key: str) -> TomlTable:
        """Returns a table inside this one; it must be there."""
        where = f"{self._where}.{key}" if self._where else key
        return TomlTable(self.take(key, TABLE), self.file, where, self._words)

    def optional_table(self, key: str) -> TomlTable | None:
        """Returns a table inside this one, or None."""
        if key in self._rest:
            return self.table(key)
        self._names.append(key)
        return None

    def choice(self, key: str, choices: tuple[str, ...], default: Any) -> str:
        """Returns one of some texts."""
        value = self.take(key, TEXT, default)
        if value not in choices:
            self.fail(f"{key} is {' or '.join(choices)}, not {value!r}.")
        return str(value)

    def take(self, key: str, what: str, default: Any = REQUIRED) -> Any:
        """Returns the value of a key, which must be `what`; numbers as floats."""
        self._names.append(key)
        if key not in self._rest:
            if default is REQUIRED:
                self.fail(f"{key} is missing; it must be {what}.{self._mistyped(key)}")
            return default
        value = self._rest.pop(key)
        if not _IS[what](value):
            self.fail(f"{key} must be {what}, not {value!r}.")
        return float(value) if what == NUMBER else value

    def _mistyped(self, key: str) -> str:
        """Returns a question about the key of this table that is most like a missing one."""
        plain = {_plain(left): left for left in self._rest if left not in self._words}
        near = difflib.get_close_matches(_plain(key), plain, n=1)
        return f" There is {plain[near[0]]!r}: did you mean {key}?" if near else ""


def _plain(key: str) -> str:
    return key.casefold().replace("-", "_")
