"""The declared rows, their measurements, and their Markdown tables."""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from result_protocol import standing, start_of

from fedsink.errors import ConfigError
from fedsink.results.pages.page import MISSING

ROWS = Path(__file__).with_name("rows.yaml")
PAGES = Path("docs/results")
GENERATED = "<!-- by `python benchmarks/results.py render`, from benchmarks/measured.jsonl -->"
Record = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """Name and format of a figure of evaluation.json."""

    name: str
    factor: float
    digits: int


FIGURES = {
    "logreg": Figure("LogReg", 100.0, 1),
    "mlp": Figure("MLP", 100.0, 1),
    "cnn": Figure("CNN", 100.0, 1),
    "w2": Figure("W2", 1.0, 3),
    "sliced_w2": Figure("sliced W2", 1.0, 4),
}
CLASSIFIERS = ("logreg", "mlp", "cnn")
HELD_OUT = 100
"""Seeds from here on belong to the tables that name them; the others show smaller ones."""


@dataclass(frozen=True)
class Published:
    """Figures that a paper prints, in percent.

    Attributes:
        paper, table, variant: the source, and the paper's name of the method.
        data: fedsink's name of the dataset.
        eps, delta: stated by the paper; None without privacy.
        accuracy: by classifier; None where the paper prints none.
    """

    paper: str
    table: str
    variant: str
    data: str
    eps: float | None
    delta: float | None
    accuracy: Mapping[str, float | None]

    @property
    def triple(self) -> str:
        """Figures side by side, with as many decimals as the paper has."""
        return " / ".join(MISSING if v is None else str(v) for v in self.accuracy.values())


@cache
def published() -> dict[str, Published]:
    """Reads all entries of published.yaml, by key."""
    entries = yaml.safe_load(ROWS.with_name("published.yaml").read_text())
    return {
        key: Published(accuracy=dict(zip(CLASSIFIERS, entry.pop("figures"), strict=True)), **entry)
        for key, entry in entries.items()
    }


@dataclass(frozen=True)
class Row:
    """One line of a table: an experiment, the papers' figures, and the keys of its evaluation.

    Attributes:
        published: entries of published.yaml.
        evaluate: keys of `fedsink evaluate` beyond the run's, such as observation=false; rows that
            differ only in them share their runs.
        seeds: those that the row shows; none named: all below `HELD_OUT`.
    """

    name: str
    experiment: str
    published: tuple[Published, ...] = ()
    overrides: tuple[str, ...] = ()
    scales: bool = True
    evaluate: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()

    def arguments(self, scale: str, seed: int, more: Sequence[str] = ()) -> list[str]:
        """Returns the arguments of `fedsink simulate`."""
        scaled = [f"scale={scale}"] if self.scales else []
        return [f"experiment={self.experiment}", *scaled, *self.overrides, *more, f"seed={seed}"]

    def shows(self, record: Record, command: str) -> bool:
        """Tells whether a record is a seed of this row, run by `command` and evaluated so."""
        seed, evaluated = record["seed"], record.get("evaluated", [])
        return (
            any_engine(record["command"]).startswith(f"{any_engine(command)} seed=")
            and tuple(evaluated) == self.evaluate
            and (seed in self.seeds if self.seeds else seed < HELD_OUT)
        )


@dataclass(frozen=True)
class Table:
    """Rows that stand together, a remark on their published figures, and the shown figures."""

    name: str
    title: str
    source: str
    rows: tuple[Row, ...]
    figures: tuple[str, ...] = CLASSIFIERS


def declared(path: Path = ROWS) -> list[Table]:
    """The tables of rows.yaml, each row once for each of its table's evaluations.

    Raises:
        ConfigError: the file cannot be read, or an entry is not one of a row.
    """
    try:
        tables = yaml.safe_load(path.read_text())
        return [
            Table(
                table["table"],
                table["title"],
                table.get("source", ""),
                tuple(_rows(table)),
                _figures(table.get("figures", CLASSIFIERS)),
            )
            for table in tables
        ]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} is not a list of tables with rows: {reason}.") from error


def any_engine(command: str) -> str:
    """Returns a command without its engine: engines have the same results."""
    return " ".join(word for word in command.split() if not word.startswith("engine="))


def _figures(keys: Sequence[str]) -> tuple[str, ...]:
    if unknown := sorted(set(keys) - set(FIGURES)):
        raise KeyError(f"figure {unknown[0]}: there are {', '.join(FIGURES)}")
    return tuple(keys)


def _rows(table: dict[str, Any]) -> Iterator[Row]:
    papers = published()
    for entry in table["rows"]:
        plain = {key: value for key, value in entry.items() if key != "start"}
        if unknown := [key for key in entry.get("published", ()) if key not in papers]:
            raise KeyError(f"{unknown[0]} is no entry of published.yaml")
        lists = {
            "published": tuple(papers[key] for key in entry.get("published", ())),
            "overrides": (*entry.get("overrides", ()), *_start(entry)),
            "seeds": tuple(table.get("seeds", ())),
        }
        for suffix, words in table.get("evaluations", {"": []}).items():
            evaluate = (*entry.get("evaluate", ()), *words)
            yield Row(**{**plain, **lists, "name": entry["name"] + suffix, "evaluate": evaluate})


def _start(entry: dict[str, Any]) -> list[str]:
    """The command that makes the start of a row, as an argument of the row's."""
    if "start" not in entry:
        return []
    words = [f"experiment={entry['experiment']}", *entry["start"], "public=true"]
    named = dict(word.split("=", 1) for word in words)  # the last of two counts
    return [f"start=$(fedsink simulate {shlex.join(f'{k}={v}' for k, v in named.items())})"]


def measured(path: Path) -> list[Record]:
    """The records of a results.jsonl; a line torn by a crash is no record."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text().splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def page(table: Table, records: Sequence[Record], scale: str, more: Sequence[str] = ()) -> str:
    """The page of docs/results/ with a table: rows to trust first, then those that are not."""
    return f"# {table.title}\n\n{GENERATED}\n\n{markdown(table, records, scale, more)}\n"


def markdown(table: Table, records: Sequence[Record], scale: str, more: Sequence[str] = ()) -> str:
    """The table with mean ± sd over the seeds at one scale; a dash where nothing was measured.

    Rows that are marked or not run stand apart. Published figures and the differences from them are
    left out where no row has any.
    """
    names = [FIGURES[key].name for key in table.figures]
    papers = list(dict.fromkeys(entry.paper for row in table.rows for entry in row.published))
    beside = ["ours − published", f"published {' / '.join(names)}"] if papers else []
    heads = ["row", *beside, *names, "ε", "CPU s", "seeds", "command"]
    trusted: list[str] = []
    apart: list[str] = []
    for row in table.rows:
        arguments = row.arguments(scale, 0, more)[:-1]
        command = any_engine(" ".join(["fedsink simulate", *arguments]))
        of_row, mark = standing(
            [record for record in records if row.shows(record, command)], arguments
        )
        of_row.sort(key=lambda record: record["seed"])
        epsilons = sorted({_epsilon(record["epsilon"]) for record in of_row})
        seconds = [record["cpu_seconds"] for record in of_row]
        at_least = "≥ " if any(record["resumed"] for record in of_row) else ""
        seeds = ", ".join(str(record["seed"]) for record in of_row) or "not run"
        plain, start = start_of(arguments)
        told = [f"`{any_engine(' '.join(['fedsink simulate', *plain]))}`"]
        if start is not None:
            told.insert(0, f"`fedsink simulate {shlex.join(start)}` makes DIR")
        if row.evaluate:
            told.append(f"`fedsink evaluate {' '.join(row.evaluate)}`")
        cells = [
            row.name,
            *((_differences(of_row, row), _figures_of(row)) if papers else ()),
            *(spread(of_row, key) for key in table.figures),
            ", ".join(epsilons) or "–",
            f"{at_least}{statistics.mean(seconds):.0f}" if seconds else "–",
            f"{seeds} {mark}".rstrip(),
            ", ".join(told),
        ]
        (apart if mark or not of_row else trusted).append(f"| {' | '.join(cells)} |")
    head = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    remark = "; ".join([*papers, *([table.source] if table.source else [])])
    parts = ["\n".join([*head, *trusted])] if trusted else []
    if apart:
        parts += ["## Old, stale or not run", "\n".join([*head, *apart])]
    return "\n\n".join([*parts, *([f"Published: {remark}"] if remark else [])])


def _figures_of(row: Row) -> str:
    """Published figures for a row, each with author, table and variant."""
    told = [
        f"{entry.triple} ({entry.paper.split()[0]} {entry.table}, {entry.variant})"
        for entry in row.published
    ]
    return "<br>".join(told) or "–"


def _differences(of_row: Sequence[Record], row: Row) -> str:
    """Our means less each published figure, in bold where one is missed."""
    told = []
    for entry in row.published:
        pairs = [(mean(of_row, key), value) for key, value in entry.accuracy.items()]
        known = [None if a is None or b is None else round(a, 1) - b for a, b in pairs]
        missed = any(value is not None and round(value, 1) < 0 for value in known)
        shown = ["–" if value is None else f"{value:+.1f}" for value in known]
        cell = " / ".join(shown).replace("-", "−")
        told.append(f"**{cell}**" if missed else cell)
    return "<br>".join(told) if of_row and told else "–"


def _epsilon(value: float | None) -> str:
    return "∞" if value is None else f"{value:.3f}"


def spread(records: Sequence[Record], key: str) -> str:
    """Mean ± sd of a figure over runs; a dash where no run has it."""
    figure, known = FIGURES[key], _values(records, key)
    if not known:
        return "–"
    shown = f"{statistics.mean(known):.{figure.digits}f}"
    if len(known) == 1:
        return shown
    return f"{shown} ± {statistics.stdev(known):.{figure.digits}f}"


def mean(records: Sequence[Record], key: str) -> float | None:
    """Mean of a figure over runs, in the unit in which tables show it; None where no run has it."""
    known = _values(records, key)
    return statistics.mean(known) if known else None


def _values(records: Sequence[Record], key: str) -> list[float]:
    values = [(r["accuracy"] if key in CLASSIFIERS else r).get(key) for r in records]
    return [FIGURES[key].factor * value for value in values if value is not None]
