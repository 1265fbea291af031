"""The uploads of each client of a run, in public numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, groupby, repeat
from typing import Any

from fedsink.configuration import Configuration
from fedsink.models.generators import parameter_count
from fedsink.protocol.packing import payload_bytes
from fedsink.results.pages.page import MISSING, PageTable, number, size
from fedsink.server.folder import RecordedRun
from fedsink.strategies.base.round_strategy import StrategySettings
from fedsink.strategies.methods import settings_of
from fedsink.values import MOST_CLIENTS, checks, read_ranges

_MOST_ROWS = 20  # that name clients


@dataclass(frozen=True)
class Uploads:
    """Uploads of the clients: what a reply holds and when it comes, in words, and a table."""

    what: str
    when: str
    table: PageTable  # a row for each range of clients with equal uploads, or their number

    @classmethod
    def of(cls, run: RecordedRun) -> Uploads:
        """Returns the uploads until the last round in metrics.jsonl, in sizes of packed replies."""
        checks.within("clients", run.config["clients"], f"[1, {MOST_CLIENTS}]")
        config = Configuration.read(run.config)
        settings = settings_of(config, "report")
        weights = _weights(config)
        if settings.mode == "ldp":
            return _once(run, settings, weights)
        rounds = int(run.rounds[-1]["round"]) if run.rounds else 0
        return _in_rounds(run, settings, weights, rounds)


def _in_rounds(run: RecordedRun, settings: StrategySettings, weights: int, rounds: int) -> Uploads:
    privacy, clients, together = run.privacy or {}, settings.clients, settings.uses_per_message
    spent, missed = [MISSING] * clients, [0] * clients
    for some, entry in read_ranges(privacy.get("clients", []), clients):
        spent[some.start : some.stop] = [_epsilon(entry)] * len(some)
    for some, count in missed_messages(privacy, clients):
        missed[some.start : some.stop] = [count] * len(some)
    asked = (settings.rounds_asked(client, rounds) for client in range(clients))
    sizes = cache(lambda count: _size(settings, count, weights))

    @cache
    def row(asked: int, absent: int, epsilon: str) -> tuple[str, ...]:
        messages, left = divmod(asked, together)
        full, last = sizes(together), sizes(left) if left else 0
        told = (MISSING, MISSING)
        if absent and left and full is not None:  # it may have missed the last message, a short one
            told = (size(full), MISSING)
        elif full is not None and last is not None:
            told = (size(full), size((messages - absent) * full + last))
        replies = number(messages + (left > 0) - absent)
        return (replies, *told, epsilon)

    columns = ["client", "replies", "bytes each", "bytes in all", "ε"]
    many = "" if together == 1 else f", each for {together} rounds"
    return Uploads(
        settings.leaves,
        f"{_rhythm(privacy)}{many}",
        PageTable(
            columns,
            _grouped(map(row, asked, missed, spent)),
            numeric=frozenset({1, 2, 3, 4}),
        ),
    )


def _once(run: RecordedRun, settings: StrategySettings, weights: int) -> Uploads:
    privacy = run.privacy or {}
    # The difference leaves out what a reply takes besides its records.
    of_one, of_two = (_size(settings, count, weights) for count in (1, 2))
    per_record = MISSING if of_one is None or of_two is None else size(of_two - of_one)
    told = _epsilon(privacy) if privacy else MISSING
    row = ("once" if run.rounds else "not yet", per_record, told)
    columns = ["client", "when", "bytes per record", "ε"]
    rows = _grouped(repeat(row, settings.clients))
    when = "once, before the first training step; training longer costs nothing"
    return Uploads(settings.leaves, when, PageTable(columns, rows, numeric=frozenset({2, 3})))


def _grouped(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Joins equal neighbours, or all that are equal, and labels rows with their clients."""
    runs = [(row, sum(1 for _ in alike)) for row, alike in groupby(rows)]
    if len(runs) > _MOST_ROWS:
        counts = Counter[tuple[str, ...]]()
        for row, count in runs:
            counts[row] += count
        return [(f"each of {number(count)}", *row) for row, count in counts.items()]
    ends = accumulate(count for _, count in runs)
    places = [(range(end - run[1], end), run[0]) for run, end in zip(runs, ends, strict=True)]
    return [(label(some) + ", each" * (len(some) > 1), *row) for some, row in places]


def label(clients: range) -> str:
    """Returns "client 3", or "clients 0–99"."""
    return f"clients {clients[0]}–{clients[-1]}" if len(clients) > 1 else f"client {clients[0]}"


def _rhythm(privacy: Mapping[str, Any]) -> str:
    return {
        "turn": "in turn: every client after the same number of rounds",
        "pick": "in the rounds in which a public draw picks it",
    }.get(str(privacy.get("schedule")), "in every round")


def missed_messages(privacy: Mapping[str, Any], clients: int) -> list[tuple[range, int]]:
    """Returns the numbers of messages that clients missed; none where a sentence tells them."""
    listed = (privacy.get("participation") or {}).get("missed", "")
    return [
        (some, checks.count("messages", entry.get("messages"), minimum=0))
        for some, entry in read_ranges([] if isinstance(listed, str) else listed, clients)
    ]


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
