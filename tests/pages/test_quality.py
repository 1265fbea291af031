from __future__ import annotations

from pathlib import Path

import yaml

from fedsink.pages.quality import _published

ROOT = Path(__file__).resolve().parent.parent.parent


def test_published_rows_are_those_of_the_results() -> None:
    tables = yaml.safe_load((ROOT / "benchmarks" / "rows.yaml").read_text())
    rows = [row for table in tables for row in table["rows"]]
    known = {tuple(row["published"]) for row in rows if row["published"]}
    ours = {(row["logreg"], row["mlp"], row["cnn"]) for row in _published()}
    assert len(ours) == 3
    assert ours <= known
