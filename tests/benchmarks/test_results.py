"""The tool behind the tables of docs/results.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsink.errors import ConfigError, FedsinkError
from fedsink.reporting.records import append_jsonl

Script = Callable[[str], Any]
COMMAND = "fedsink simulate experiment=dp_sinkhorn_mnist_m1 scale=cpu"


def record(seed: int, cnn: float, **more: Any) -> dict[str, Any]:
    return {
        "key": f"k{seed}",
        "command": f"{COMMAND} seed={seed}",
        "seed": seed,
        "epsilon": 9.9987,
        "accuracy": {"logreg": 0.5, "mlp": 0.6, "cnn": cnn},
        "cpu_seconds": 100.0 + seed,
        "resumed": False,
        **more,
    }


def test_every_declared_row_is_an_experiment_that_exists(script: Script) -> None:
    import fedsink.conf

    folder = Path(str(fedsink.conf.__file__)).parent / "experiment"
    tables = script("result_rows").declared()
    assert {"dp_sinkhorn", "ablations"} <= {table.name for table in tables}
    for table, row in ((each, row) for each in tables for row in each.rows):
        text = (folder / f"{row.experiment}.yaml").read_text()
        assert row.scales == ("/published/" in text or "scales:" in text)
        assert row.published is None or len(row.published) == len(table.figures)


def test_a_table_shows_means_spreads_epsilon_and_seconds(script: Script) -> None:
    rows = script("result_rows")
    table = rows.declared()[0]
    records = [record(0, 0.80), record(1, 0.82), record(2, 0.90, command=f"{COMMAND}x seed=2")]
    lines = rows.markdown(table, records, "cpu").splitlines()
    first = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert first == [
        "MNIST, m = 1", "79.5 / 80.2 / 83.2", "50.0 ± 0.0", "60.0 ± 0.0", "81.0 ± 1.4", "9.999",
        "100", "0, 1", f"`{COMMAND}`",
    ]  # fmt: skip
    assert "| – | – | – | – | – | – |" in lines[3]  # not measured
    unprotected = [record(0, 0.9, epsilon=None, resumed=True)]
    cells = rows.markdown(table, unprotected, "cpu").splitlines()[2]
    assert "| ∞ | ≥ 100 |" in cells


def test_a_table_may_show_distances(script: Script, tmp_path: Path) -> None:
    rows = script("result_rows")
    row = {"name": "points", "experiment": "half_circle_laplace", "scales": False}
    text = json.dumps([{"table": "t", "source": "none", "figures": ["sliced_w2", "w2"],
                        "rows": [{**row, "published": None}]}])  # fmt: skip
    (path := tmp_path / "rows.yaml").write_text(text)
    (table,) = rows.declared(path)
    command = "fedsink simulate experiment=half_circle_laplace"
    found = record(0, 0, command=f"{command} seed=0", accuracy={}, w2=0.06543, sliced_w2=0.0123456)
    head, _, line = rows.markdown(table, [found], "cpu").splitlines()[:3]
    assert head.startswith("| row | published sliced W2 / W2 | sliced W2 | W2 | ε |")
    assert line.startswith("| points | – | 0.0123 | 0.065 | 9.999 |")
    path.write_text(text.replace("sliced_w2", "fid"))
    with pytest.raises(ConfigError, match="figure fid: there are logreg"):
        rows.declared(path)


def test_a_run_may_be_evaluated_in_several_ways(script: Script, tmp_path: Path) -> None:
    rows = script("result_rows")
    row = {"experiment": "dp_sinkhorn_mnist_m1", "published": None}
    both = [{"name": "few", **row}, {"name": "bare", **row, "evaluate": ["observation=false"]}]
    (path := tmp_path / "rows.yaml").write_text(
        json.dumps([{"table": "t", "source": "none", "rows": both}])
    )
    (table,) = rows.declared(path)
    records = [record(0, 0.8), record(0, 0.7, evaluated=["observation=false"])]
    few, bare = rows.markdown(table, records, "cpu").splitlines()[2:4]
    assert "| 80.0 | 9.999 |" in few
    assert few.endswith(f"| `{COMMAND}` |")
    assert "| 70.0 | 9.999 |" in bare
    assert bare.endswith(f"| `{COMMAND}`, `fedsink evaluate observation=false` |")


def test_a_table_goes_between_its_markers_and_nothing_else_changes(script: Script) -> None:
    rows = script("result_rows")
    document = "# A\n<!-- results:x -->\nold\n<!-- end -->\nB\n<!-- results:y -->\n<!-- end -->\n"
    once = rows.rendered(document, "x", "new")
    assert once == document.replace("\nold\n", "\n\nnew\n\n")
    assert rows.rendered(once, "x", "new") == once
    for broken in ("# A\n", "<!-- results:x -->\n", document + document):
        with pytest.raises(ConfigError, match="no place for the table x"):
            rows.rendered(broken, "x", "new")


def test_the_published_tables_are_the_recorded_runs(script: Script) -> None:
    rows = script("result_rows")
    root = Path(rows.__file__).parents[1]
    records = rows.measured(root / "benchmarks" / "measured.jsonl")
    text = (root / "docs" / "results.md").read_text()
    for table in rows.declared():
        content = rows.markdown(table, records, "cpu", ["engine=local"])
        assert rows.rendered(text, table.name, content) == text, table.name


def test_render_writes_the_document_once_all_tables_are_made(
    script: Script, tmp_path: Path
) -> None:
    document = tmp_path / "results.md"
    document.write_text("<!-- results:dp_sinkhorn -->\n<!-- end -->\n")
    append_jsonl(tmp_path / "results.jsonl", record(0, 0.8))
    results = script("results")
    options = ["--folder", str(tmp_path), "--document", str(document)]
    assert results.main(["render", *options]) == 0
    assert "| 80.0 |" in (before := document.read_text())
    assert results.main(["render", "--only", "dp_sinkhorn", "celeba", *options]) == 2
    assert document.read_text() == before


def test_what_is_recorded_is_not_run_again(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("result_runs")
    runs = module.Runs(tmp_path, None, 20000)
    arguments = ["experiment=dp_sinkhorn_mnist_m1", "scale=cpu", "seed=0"]
    assert runs.known(arguments) is None
    stored = record(0, 0.8, key=runs._key(arguments))
    append_jsonl(runs.records, stored)
    with runs.records.open("a") as file:
        file.write('{"torn')
    monkeypatch.setattr(module, "FEDSINK", tmp_path / "nothing to run")
    assert runs.record(arguments, seed=0) == stored
    with pytest.raises(OSError, match="nothing to run"):
        runs.record([*arguments[:-1], "seed=1"], seed=1)
    assert module.Runs(tmp_path, None, 100).known(arguments) is None  # other classifiers


def test_an_unknown_row_is_one_line(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    assert script("results").main(["run", "--only", "dp_sinkhorn_mnist_m9"]) == 2
    assert "There is no row 'dp_sinkhorn_mnist_m9': choose from" in capsys.readouterr().err


@pytest.mark.slow
def test_a_row_is_run_evaluated_and_recorded_once(
    script: Script, tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--only", "dp_sinkhorn_mnist_m1", "--scale", "smoke", "--seeds", "0"]
    options += ["--data", str(tiny_data), "--folder", str(tmp_path), "--n", "100"]
    for _ in range(2):
        assert script("results").main(["run", *options]) == 0
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    found, with_ten_clients = (json.loads(line) for line in lines)
    assert with_ten_clients["command"].endswith("scale=smoke clients=10 seed=0")
    assert found["command"] == "fedsink simulate experiment=dp_sinkhorn_mnist_m1 scale=smoke seed=0"
    assert set(found["accuracy"]) == {"logreg", "mlp", "cnn"}
    assert found["cpu_seconds"] > 0.5
    assert not found["resumed"]
    assert "| MNIST, m = 1 | 79.5 / 80.2 / 83.2 |" in capsys.readouterr().out
    runs = script("result_runs").Runs(tmp_path, tiny_data, 100)
    arguments = [*found["command"].split()[2:]]
    bare = runs.record(arguments, ["observation=false", "n=50"], seed=0)
    assert bare["cpu_seconds"] == found["cpu_seconds"]  # the run is shared
    assert bare["evaluate"] == "fedsink evaluate n=50 seed=0 threads=1 observation=false"
    assert runs.known(arguments)["key"] != bare["key"]
    (run,) = (tmp_path / "runs").glob("*/evaluation-bare.json")
    assert json.loads(run.read_text())["accuracy"] == bare["accuracy"]


@pytest.mark.slow
def test_a_killed_run_goes_on_and_its_seconds_are_a_lower_bound(
    script: Script, tiny_data: Path, tmp_path: Path
) -> None:
    runs = script("result_runs").Runs(tmp_path, tiny_data, 100)
    run = tmp_path / "runs" / "one"
    arguments = ["experiment=dp_sinkhorn_mnist_m1", "scale=smoke", "seed=0"]
    whole = runs._simulate(run, arguments)
    assert whole["seconds"] > 0.5
    assert not whole["killed"]
    # As a kill between the last checkpoint and the end would leave it.
    (run / "metrics.json").unlink()
    run.with_suffix(".json").write_text(
        json.dumps({"seconds": 3.0, "killed": False, "running": True})
    )
    again = runs._simulate(run, arguments)
    assert again["killed"]
    assert again["seconds"] > 3.5
    with pytest.raises(FedsinkError, match="ended with 2 after"):
        runs.record(["experiment=none"], seed=0)
