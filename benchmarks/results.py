"""Runs the rows of docs/results/ and writes its pages: `python benchmarks/results.py run`.

Without an argument it lists the rows and their measurements. `run` runs experiments × seeds
(`fedsink simulate`, then `fedsink evaluate`), one after the other, and adds a JSON line for each to
FOLDER/results.jsonl. A recorded run is repeated only if its recipe has changed, and a run that
was cut short continues. Recipes and rows have to be committed: a record names the commit.
`render` writes a page for each table. Seconds are the CPU's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from result_protocol import ROOT, frozen_commit
from result_rows import PAGES, Row, Table, declared, markdown, measured, page, spread
from result_runs import INTERRUPTED, Runs

from fedsink.errors import ConfigError, FedsinkError
from fedsink.files import write_atomic


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, render or list; 1 where a row failed, 2 for a wrong request, 130 after Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        tables = _chosen(declared(), options.only)
        return {"run": _run, "render": _render, "list": _list}[options.action](tables, options)
    except ConfigError as error:
        print(f"results: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", nargs="?", choices=["list", "run", "render"], default="list")
    parser.add_argument("--only", nargs="*", default=[], help="tables or experiments")
    parser.add_argument("--scale", default="cpu", choices=["smoke", "cpu", "paper"])
    parser.add_argument("--seeds", nargs="*", type=int, help="instead of a row's own")
    parser.add_argument("--folder", type=Path, default=Path("runs/results"))
    parser.add_argument("--data", type=Path, help="data.root of MNIST, Fashion-MNIST and CelebA")
    parser.add_argument("--n", type=int, default=20000, help="images for the classifiers")
    parser.add_argument("--also", nargs="*", default=[], help="further KEY=VALUE for simulate")
    parser.add_argument("--pages", type=Path, default=PAGES, help="folder of the pages")
    return parser


def _chosen(tables: list[Table], only: Sequence[str]) -> list[Table]:
    names = {name for table in tables for name in (table.name, *(r.experiment for r in table.rows))}
    if unknown := sorted(set(only) - names):
        raise ConfigError(
            f"There is no row {unknown[0]!r}: choose from {', '.join(sorted(names))}."
        )
    if not only:
        return tables
    kept = [
        replace(t, rows=tuple(r for r in t.rows if {t.name, r.experiment} & set(only)))
        for t in tables
    ]
    return [table for table in kept if table.rows]


def _runs(options: argparse.Namespace, commit: str | None = None) -> Runs:
    return Runs(options.folder.resolve(), options.data, options.n, commit)


def _run(tables: Sequence[Table], options: argparse.Namespace) -> int:
    runs, failed = _runs(options, frozen_commit(ROOT)), 0
    wanted = [(t, r, s) for t in tables for r in t.rows for s in _seeds(r, options)]
    for number, (table, row, seed) in enumerate(wanted, 1):
        arguments = row.arguments(options.scale, seed, options.also)
        place = f"{number} of {len(wanted)}: {row.name}, seed {seed}"
        print(f"{place}: fedsink simulate {' '.join(arguments)}", file=sys.stderr, flush=True)
        try:
            record = runs.record(
                arguments, row.evaluate, seed=seed, row=row.name, scale=options.scale
            )
        except FedsinkError as error:
            failed += 1
            print(f"{row.name}, seed {seed}: {error}", file=sys.stderr)
            continue
        figures = " ".join(f"{key} {spread([record], key)}" for key in table.figures)
        print(f"{row.name}, seed {seed}: {figures}, {record['cpu_seconds']:.0f} CPU s", flush=True)
    records = measured(runs.records)
    for table in tables:
        print(f"\n{markdown(table, records, options.scale, options.also)}")
    return 1 if failed else 0


def _seeds(row: Row, options: argparse.Namespace) -> Sequence[int]:
    return options.seeds or row.seeds or (0, 1, 2)


def _render(tables: Sequence[Table], options: argparse.Namespace) -> int:
    """Every page is made before the first one is written."""
    records = measured(_runs(options).records)
    pages = {t.name: page(t, records, options.scale, options.also) for t in tables}
    options.pages.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        write_atomic(options.pages / f"{name}.md", text.encode())
    return 0


def _list(tables: Sequence[Table], options: argparse.Namespace) -> int:
    runs = _runs(options)

    def seeds(row: Row) -> str:
        done = [
            s
            for s in _seeds(row, options)
            if runs.known(row.arguments(options.scale, s, options.also), row.evaluate)
        ]
        return f"seeds {', '.join(map(str, done))}" if done else "not run"

    for table in tables:
        print(table.name)
        for row in table.rows:
            command = " ".join(row.arguments(options.scale, 0, options.also)[:-1])
            print(f"  {row.name}: {command}: {seeds(row)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
