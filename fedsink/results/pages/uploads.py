"""The uploads of each client of a run, in public numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

from fedsink.configuration import Configuration
from fedsink.models.generators import parameter_count
from fedsink.protocol.packing import payload_bytes
from fedsink.results.pages.page import MISSING, PageTable, number, size
from fedsink.server.folder import RecordedRun
from fedsink.strategies.base.round_strategy import StrategySettings
from fedsink.strategies.methods import settings_of


@dataclass(frozen=True)
class Uploads:
    """Uploads of the clients.

    Attributes:
        what: content of a reply, in words.
        when: times at which a client answers, in words.
        table: a row for each range of neighbouring clients with equal uploads.
    """

    what: str
    when: str
    table: PageTable

    @classmethod
    def of(cls, run: RecordedRun) -> Uploads:
        """Returns the uploads until the last round in metrics.jsonl.

        Sizes are those of the method's own replies, packed as they are sent.

        Raises:
            FedsinkError: the stored configuration belongs to another version.
        """
        config = Configuration.read(run.config)
        settings = settings_of(config, "report")
        weights = _weights(config)
        if settings.mode == "ldp":
            return _once(run, settings, weights)
        rounds = int(run.rounds[-1]["round"]) if run.rounds else 0
        return _in_rounds(run, settings, weights, rounds)


def _in_rounds(run: RecordedRun, settings: StrategySettings, weights: int, rounds: int) -> Uploads:
    privacy = run.privacy or {}
    spent = {int(entry["client"]): _epsilon(entry) for entry in privacy.get("clients", [])}
    missed, together = _missed(privacy), settings.uses_per_message
    sizes = cache(lambda count: _size(settings, count, weights))

    def row(client: int) -> tuple[str, ...]:
        absent = missed.get(client, 0)
        messages, left = divmod(settings.rounds_asked(client, rounds), together)
        full, last = sizes(together), sizes(left) if left else 0
        told = (MISSING, MISSING)
        if absent and left and full is not None:  # it may have missed the last message, a short one
            told = (size(full), MISSING)
        elif full is not None and last is not None:
            told = (size(full), size((messages - absent) * full + last))
        replies = number(messages + (left > 0) - absent)
        return (replies, *told, spent.get(client, MISSING))

    columns = ["client", "replies", "bytes each", "bytes in all", "ε"]
    many = "" if together == 1 else f", each for {together} rounds"
    return Uploads(
        settings.leaves,
        f"{_rhythm(privacy)}{many}",
        PageTable(
            columns,
            _grouped([row(k) for k in range(settings.clients)]),
            numeric=frozenset({1, 2, 3, 4}),
        ),
    )


def _once(run: RecordedRun, settings: StrategySettings, weights: int) -> Uploads:
    privacy = run.privacy or {}
    # The difference leaves out what a reply takes besides its records.
    of_one, of_two = (_size(settings, count, weights) for count in (1, 2))
    per_record = MISSING if of_one is None or of_two is None else size(of_two - of_one)
    sent = bool(run.rounds)
    row = (
        "once" if sent else "not yet",
        per_record,
        _epsilon(privacy) if privacy else MISSING,
    )
    columns = ["client", "when", "bytes per record", "ε"]
    rows = _grouped([row] * settings.clients)
    when = "once, before the first training step; training longer costs nothing"
    return Uploads(settings.leaves, when, PageTable(columns, rows, numeric=frozenset({2, 3})))


def _grouped(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Joins equal neighbours, and labels rows with their clients."""
    told = []
    for row, alike in groupby(enumerate(rows), key=lambda entry: entry[1]):
        clients = [client for client, _ in alike]
        several = f"clients {clients[0]}–{clients[-1]}, each"
        told.append((several if len(clients) > 1 else f"client {clients[0]}", *row))
    return told


def _rhythm(privacy: Mapping[str, Any]) -> str:
    return {
        "turn": "in turn: every client after the same number of rounds",
        "pick": "in the rounds in which a public draw picks it",
    }.get(str(privacy.get("schedule")), "in every round")


def _missed(privacy: Mapping[str, Any]) -> dict[int, int]:
    entries = (privacy.get("participation") or {}).get("missed", [])
    return {int(entry["client"]): int(entry["messages"]) for entry in entries}


def _size(settings: StrategySettings, count: int, weights: int) -> int | None:
    reply = settings.reply(count, weights)
    return None if reply is None else payload_bytes(reply)


def _weights(config: Configuration) -> int:
    options = dict(config.generator)
    return parameter_count(
        str(options.pop("name", None)), config.data.shape, len(config.classes), **options
    )


def _epsilon(entry: Mapping[str, Any]) -> str:
    """Writes ε; null means that nothing is protected."""
    epsilon = entry.get("epsilon")
    return "∞" if epsilon is None else number(epsilon)
