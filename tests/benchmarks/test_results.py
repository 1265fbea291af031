"""The tool behind the tables of docs/results/."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from fedsink.errors import ConfigError, FedsinkError
from fedsink.reporting.output_files import append_jsonl

from ..conf.conftest import FILES
from .conftest import commit_all, git

Script = Callable[[str], Any]
COMMAND = "fedsink simulate experiment=dp_sinkhorn_mnist_m1 scale=cpu"


def shown(table: str) -> list[str]:
    """The rows of a table's Markdown, without its heads."""
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith("| row |")]


def record(seed: int, cnn: float, **more: Any) -> dict[str, Any]:
    return {
        "command": f"{COMMAND} seed={seed}",
        "evaluate": f"fedsink evaluate n=20000 seed={seed} threads=1",
        "seed": seed,
        "epsilon": 9.9987,
        "accuracy": {"logreg": 0.5, "mlp": 0.6, "cnn": cnn},
        "cpu_seconds": 100.0 + seed,
        "resumed": False,
        **more,
    }


def table_of(script: Script, path: Path, *rows: dict[str, Any]) -> Any:
    """The table that a file of these rows declares; each is of one experiment unless it says so."""
    usual = {"experiment": "dp_sinkhorn_mnist_m1"}
    path.write_text(json.dumps([{"table": "t", "title": "T", "rows": [usual | r for r in rows]}]))
    (table,) = script("result_rows").declared(path)
    return table


def test_every_declared_row_is_an_experiment_that_exists(script: Script) -> None:
    tables = script("result_rows").declared()
    assert {"dp_sinkhorn", "ablations"} <= {table.name for table in tables}
    for row in (row for table in tables for row in table.rows):
        text = FILES[row.experiment].read_text()
        bases = re.findall(r"^  - (\w+)$", text, re.MULTILINE)
        inherited = any("scales:" in FILES[base].read_text() for base in bases)
        assert row.scales or "scales:" not in text
        assert not row.scales or "/published/" in text or "scales:" in text or inherited


def test_a_table_shows_means_spreads_epsilon_and_seconds(script: Script) -> None:
    rows = script("result_rows")
    table = rows.declared()[0]
    records = [record(0, 0.80), record(1, 0.82), record(2, 0.90, command=f"{COMMAND}x seed=2")]
    lines = shown(rows.markdown(table, records, "cpu"))
    first = [cell.strip() for cell in lines[0].strip("|").split("|")]
    assert first == [
        "MNIST, m = 1", "**−29.5 / −20.2 / −2.2**",
        "79.5 / 80.2 / 83.2 (Cao 1, DP-Sinkhorn, m = 1)", "50.0 ± 0.0", "60.0 ± 0.0",
        "81.0 ± 1.4", "9.999", "100", "0, 1 †", f"`{COMMAND}`",
    ]  # fmt: skip
    (other,) = [line for line in lines if line.startswith("| MNIST, m = 3 |")]
    assert other.startswith("| MNIST, m = 3 | – | 79.1 / 79.2 / 79.1 (Cao 1,")
    assert "| – | – | – | – | – | not run |" in other
    unprotected = [record(0, 0.9, epsilon=None, resumed=True)]
    cells = shown(rows.markdown(table, unprotected, "cpu"))[0]
    assert "| ∞ | ≥ 100 |" in cells


def test_a_table_may_show_distances(script: Script, tmp_path: Path) -> None:
    rows = script("result_rows")
    row = {"name": "points", "experiment": "half_circle_laplace", "scales": False}
    text = json.dumps([{"table": "t", "title": "T", "figures": ["sliced_w2", "w2"], "rows": [row]}])
    (path := tmp_path / "rows.yaml").write_text(text)
    (table,) = rows.declared(path)
    command = "fedsink simulate experiment=half_circle_laplace"
    found = record(0, 0, command=f"{command} seed=0", accuracy={}, w2=0.06543, sliced_w2=0.0123456)
    drawn = rows.markdown(table, [found], "cpu")
    head, [line] = drawn.splitlines()[2], shown(drawn)
    assert head.startswith("| row | sliced W2 | W2 | ε |")
    assert line.startswith("| points | 0.0123 | 0.065 | 9.999 |")
    path.write_text(text.replace("sliced_w2", "fid"))
    with pytest.raises(ConfigError, match="figure fid: there are logreg"):
        rows.declared(path)


def test_a_run_may_be_evaluated_in_several_ways(script: Script, tmp_path: Path) -> None:
    rows = script("result_rows")
    both = {"name": "few"}, {"name": "bare", "evaluate": ["observation=false"]}
    table = table_of(script, tmp_path / "rows.yaml", *both)
    records = [record(0, 0.8), record(0, 0.7, evaluated=["observation=false"])]
    few, bare = shown(rows.markdown(table, records, "cpu"))
    assert "| 80.0 | 9.999 |" in few
    assert few.endswith(f"| `{COMMAND}` |")
    assert "| 70.0 | 9.999 |" in bare
    assert bare.endswith(f"| `{COMMAND}`, `fedsink evaluate observation=false` |")


def test_a_row_shows_the_records_of_every_engine(script: Script) -> None:
    rows = script("result_rows")
    table = rows.declared()[0]
    [row] = [r for r in table.rows if r.name == "MNIST, m = 1"]
    for engine in ("", " engine=local", " engine=ray"):
        found = record(0, 0.7) | {"command": f"{COMMAND}{engine} seed=0"}
        assert row.shows(found, f"{COMMAND} engine=local")
        line = shown(rows.markdown(table, [found], "cpu", ["engine=local"]))[0]
        assert line.endswith(f"| 0 † | `{COMMAND}` |")
    assert not row.shows(record(0, 0.7), f"{COMMAND} clients=10 engine=local")


def test_a_table_may_have_seeds_and_evaluations_of_its_own(script: Script, tmp_path: Path) -> None:
    rows = script("result_rows")
    usual = {
        "table": "t",
        "title": "T",
        "rows": [{"name": "few", "experiment": "dp_sinkhorn_mnist_m1"}],
    }
    held_out = {**usual, "seeds": [100, 101], "evaluations": {"": [], ", many": ["n=60000"]}}
    (path := tmp_path / "rows.yaml").write_text(json.dumps([usual, held_out]))
    tables = rows.declared(path)
    assert [row.name for row in tables[1].rows] == ["few", "few, many"]
    records = [record(0, 0.8), record(100, 0.6), record(101, 0.7, evaluated=["n=60000"])]
    (usual_line,) = shown(rows.markdown(tables[0], records, "cpu"))
    few, many = shown(rows.markdown(tables[1], records, "cpu"))
    assert "| 80.0 | 9.999 | 100 | 0 † |" in usual_line
    assert "| 60.0 | 9.999 | 200 | 100 † |" in few
    assert "| 70.0 | 9.999 | 201 | 101 † |" in many


def test_an_entry_names_its_source_and_has_a_figure(script: Script) -> None:
    for key, entry in script("result_rows").published().items():
        assert all((entry.paper, entry.table, entry.variant, entry.data)), key
        known = [value for value in entry.accuracy.values() if value is not None]
        assert known, key
        assert all(40 < value < 100 for value in known), key
        assert (entry.eps is None) == (entry.delta is None), key


def test_several_papers_stand_beside_one_row_and_a_miss_is_bold(
    script: Script, tmp_path: Path
) -> None:
    rows = script("result_rows")
    row = {"name": "few", "published": ["cao_weights", "dpdm_mnist_eps10"]}
    table = table_of(script, path := tmp_path / "rows.yaml", row)
    cells = shown(rows.markdown(table, [record(0, 0.807)], "cpu"))[0]
    assert "| **– / −19.9 / +0.0**<br>**−40.8 / −34.8 / −17.4** |" in cells
    assert "| – / 79.9 / 80.7 (Cao 2, weights' gradient, L2, no debiasing)<br>90.8 / 94.8" in cells
    kept = [record(0, 0.98)]
    kept[0]["accuracy"] = {"logreg": 0.9, "mlp": 0.8, "cnn": 0.807}
    assert "| – / +0.1 / +0.0<br>" in shown(rows.markdown(table, kept, "cpu"))[0]
    path.write_text(path.read_text().replace("cao_weights", "cao_wights"))
    with pytest.raises(ConfigError, match="cao_wights is no entry of published"):
        rows.declared(path)


@pytest.mark.medium
def test_a_row_shows_records_of_one_recipe_and_says_when_it_has_changed(script: Script) -> None:
    rows, protocol = script("result_rows"), script("result_protocol")
    table = rows.declared()[0]
    now = protocol.configuration_of(tuple(COMMAND.split()[2:]))
    old = [record(0, 0.5), record(1, 0.7, configuration=now)]

    def cells(records: list[dict[str, Any]]) -> list[str]:
        return shown(rows.markdown(table, records, "cpu"))[0].split(" | ")

    assert cells(old)[5] == "60.0 ± 14.1"
    assert cells(old)[8] == "0, 1 †"
    new = record(2, 0.8, configuration=now, commit="c")
    assert cells([*old, new])[5] == "80.0"
    assert cells([*old, new])[8] == "2"
    other = record(3, 0.9, configuration="another", commit="c")
    assert cells([other, new])[8] == "2"
    assert cells([record(1, 0.7, configuration="a third"), other])[8] == "3 stale"


@pytest.mark.medium
def test_the_hash_of_a_configuration_is_of_what_determines_the_result(script: Script) -> None:
    protocol = script("result_protocol")

    def hashed(*overrides: str, of: str = "mnist_eps10") -> str:
        return str(protocol.configuration_of((f"experiment={of}", *overrides)))

    def changed(*values: str, of: str = "mnist_eps10") -> str:  # where no user types them
        config = OmegaConf.create(protocol.compose_config([f"experiment={of}"]))
        config.merge_with_dotlist(list(values))
        return str(protocol.configuration_hash(OmegaConf.to_container(config)))

    same = ("seed=7", "data.root=/elsewhere", "log=mlflow", "report.html=false", "engine=local",
            "data.download=false", "engine=ray")  # fmt: skip
    assert {hashed(override) for override in same} == {hashed()}
    first = [f"start=$(fedsink simulate eps=inf public=true seed={n})" for n in (5, 6)]
    assert len({hashed(), *map(hashed, first)}) == 2  # a seed is none of the configuration
    assert hashed(first[0].replace("seed=5", "rounds=9")) != hashed(first[0])
    assert {changed(value) for value in ("strategy.p=0.4", "map.block=3")} == {hashed()}
    others = ("eps=9", "strategy.lam=6", "clients=11", "generator=conv", "view.dc=true",
              "observation.noise.std=0.1", "partition=dirichlet")  # fmt: skip
    assert len({hashed(), *(hashed(override) for override in others)}) == len(others) + 1
    published = "dp_sinkhorn_mnist_m1"
    assert hashed("strategy.p=0.4", of=published) != hashed(of=published)
    assert changed("strategy.history=9", of=published) == hashed(of=published)
    local = [protocol.compose_config(["experiment=mnist_ldp_laplace35"]) for _ in range(2)]
    local[1]["recipe"]["by_eps"]["label_eps"][0] += 1
    assert len({protocol.configuration_hash(config) for config in local}) == 2


@pytest.mark.medium
def test_recipes_are_frozen_in_a_commit_before_anything_runs(
    script: Script, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    frozen, results = script("result_protocol").frozen_commit, script("results")
    commit = git(checkout, "rev-parse", "HEAD")
    assert frozen(checkout) == commit
    (checkout / "README.md").write_text("b\n")
    assert frozen(checkout) == f"{commit}-dirty"
    for name in ("fedsink/conf/a.yaml", "benchmarks/rows.yaml", "fedsink/conf/new.yaml"):
        (checkout / name).write_text("a: 2\n")
        with pytest.raises(ConfigError, match=f"{name} is not committed: commit recipes and rows"):
            frozen(checkout)
        monkeypatch.setattr(results, "ROOT", checkout)
        assert results.main(["run", "--folder", str(tmp_path / "none")]) == 2
        assert "is not committed" in capsys.readouterr().err
        commit_all(checkout)
    (tmp_path / "bare").mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    with pytest.raises(ConfigError, match="is no checkout with a commit"):
        frozen(tmp_path / "bare")


def test_render_writes_a_page_for_each_table(script: Script, tmp_path: Path) -> None:
    append_jsonl(tmp_path / "results.jsonl", record(0, 0.8))
    results, pages = script("results"), tmp_path / "pages"
    only = ["--only", "dp_sinkhorn", "celeba"]
    assert results.main(["render", *only, "--folder", str(tmp_path), "--pages", str(pages)]) == 0
    assert sorted(path.name for path in pages.iterdir()) == ["celeba.md", "dp_sinkhorn.md"]
    text = (pages / "dp_sinkhorn.md").read_text()
    assert text.startswith(
        "# DP-Sinkhorn's published rows\n\n<!-- by `python benchmarks/results.py"
    )
    assert "| 80.0 |" in text


@pytest.mark.medium
def test_rows_that_are_marked_or_not_run_stand_apart(script: Script) -> None:
    rows = script("result_rows")
    now = script("result_protocol").configuration_of(tuple(COMMAND.split()[2:]))
    table = rows.declared()[0]
    fresh = record(0, 0.8, configuration=now, commit="c")
    trusted, apart = rows.markdown(table, [fresh], "cpu").split("## Old, stale or not run")
    assert [line.split(" | ")[0] for line in shown(trusted)] == ["| MNIST, m = 1"]
    assert len(shown(apart)) == len(table.rows) - 1
    assert "## " not in rows.markdown(replace(table, rows=table.rows[:1]), [fresh], "cpu")


def test_what_is_recorded_is_not_run_again(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("result_runs")
    runs = module.Runs(tmp_path, None, 20000)
    arguments = ["experiment=dp_sinkhorn_mnist_m1", "scale=cpu", "seed=0"]
    assert runs.known(arguments) is None
    stored = record(0, 0.8, command=f"{COMMAND} engine=local seed=0")
    append_jsonl(runs.records, stored)
    with runs.records.open("a") as file:
        file.write('{"torn')
    monkeypatch.setattr(module, "FEDSINK", tmp_path / "nothing to run")
    assert runs.record(arguments, seed=0) == stored
    with pytest.raises(OSError, match="nothing to run"):
        runs.record([*arguments[:-1], "seed=1"], seed=1)
    assert runs.known(arguments, ["observation=false"]) is None
    assert runs.known(arguments, ["n=60000"]) is None
    assert module.Runs(tmp_path, None, 100).known(arguments) is None  # other classifiers


@pytest.mark.medium
def test_every_stored_record_is_known_by_the_row_that_shows_it(script: Script) -> None:
    """By the commands of the page, without --also, and whatever its recipe is today."""
    rows, module = script("result_rows"), script("result_runs")
    records = rows.measured(rows.ROWS.with_name("measured.jsonl"))
    runs = module.Runs(rows.ROWS.parent, None, 20000)
    runs.records = rows.ROWS.with_name("measured.jsonl")
    monkey = pytest.MonkeyPatch()
    plain = [{k: v for k, v in r.items() if k != "configuration"} for r in records]
    with monkey.context() as patched:
        patched.setattr(module, "measured", lambda path: plain)
        shown = [
            (row, r)
            for table in rows.declared() for row in table.rows for r in plain
            if row.shows(r, " ".join(["fedsink simulate", *row.arguments("cpu", 0)[:-1]]))
        ]  # fmt: skip
        assert {id(r) for _, r in shown} == {id(r) for r in plain}  # none that no page shows
        assert len(shown) > 100
        for row, found in shown:
            known = runs.known(row.arguments("cpu", found["seed"]), row.evaluate)
            assert known is not None, found["command"]


@pytest.mark.medium
def test_only_data_in_files_are_told_where_they_lie(script: Script, tmp_path: Path) -> None:
    runs = script("result_runs").Runs(tmp_path, tmp_path, 100)
    assert runs._rooted(["experiment=shapes_curator"]) == []
    assert runs._rooted(["experiment=mnist_small"]) == [f"data.root={tmp_path}"]


def test_an_unknown_row_is_one_line(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    assert script("results").main(["run", "--only", "dp_sinkhorn_mnist_m9"]) == 2
    assert "There is no row 'dp_sinkhorn_mnist_m9': choose from" in capsys.readouterr().err


@pytest.mark.slow
def test_a_row_is_run_evaluated_and_recorded_once(
    script: Script, tiny_data: Path, checkout: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(script("results"), "ROOT", checkout)
    tables = [
        replace(table, rows=tuple(row for row in table.rows if "half an hour" not in row.name))
        for table in script("results").declared()
    ]
    monkeypatch.setattr(script("results"), "declared", lambda: tables)
    options = ["--only", "dp_sinkhorn_mnist_m1", "--scale", "smoke", "--seeds", "0"]
    options += ["--data", str(tiny_data), "--folder", str(tmp_path), "--n", "100"]
    for _ in range(2):
        assert script("results").main(["run", *options]) == 0
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    found, by_geomloss = (json.loads(line) for line in lines)
    assert by_geomloss["command"].endswith("scale=smoke strategy.backend=geomloss seed=0")
    assert found["command"] == "fedsink simulate experiment=dp_sinkhorn_mnist_m1 scale=smoke seed=0"
    assert set(found["accuracy"]) == {"logreg", "mlp", "cnn"}
    assert found["cpu_seconds"] > 0.5
    assert not found["resumed"]
    told = capsys.readouterr()
    assert "| 79.5 / 80.2 / 83.2 (Cao 1, DP-Sinkhorn, m = 1) |" in told.out
    assert f"1 of 3: MNIST, m = 1, seed 0: {found['command']}\n" in told.err
    assert "  round " in told.err
    assert found["commit"] == git(checkout, "rev-parse", "HEAD")
    protocol = script("result_protocol")
    words = ("experiment=dp_sinkhorn_mnist_m1", "scale=smoke")
    assert found["configuration"] == protocol.configuration_of(words)
    assert found["configuration"] != by_geomloss["configuration"]
    config = protocol.compose_config([*words, f"data.root={tiny_data}"])
    assert found["data"] == by_geomloss["data"] == protocol.data_hash(config)
    assert found["evaluation"] == {
        "threads": 1, "classifiers": "ours", "n": 100, "seed": 0, "observation": False
    }  # fmt: skip
    assert datetime.fromisoformat(found["time"]).tzinfo is not None
    runs = script("result_runs").Runs(tmp_path, tiny_data, 100)
    arguments = [*found["command"].split()[2:]]
    bare = runs.record(arguments, ["observation=false", "n=50"], seed=0)
    assert bare["cpu_seconds"] == found["cpu_seconds"]  # the run is shared
    keys = "n=50 seed=0 threads=1 reference=false observation=false"
    assert bare["evaluate"] == f"fedsink evaluate {keys}"
    assert runs.known(arguments)["evaluate"] != bare["evaluate"]
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
        runs.record([*arguments, "clients=0"], seed=0)
    with pytest.raises(ConfigError, match=r"fedsink simulate experiment=none: .*experiment/none"):
        runs.record(["experiment=none"], seed=0)


@pytest.mark.slow
def test_ctrl_c_stops_a_row_with_a_checkpoint_and_one_line(
    script: Script, tiny_data: Path, checkout: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(script("results"), "ROOT", checkout)
    options = ["--only", "dp_sinkhorn_mnist_m1", "--scale", "smoke", "--seeds", "0"]
    options += ["--data", str(tiny_data), "--folder", str(tmp_path), "--n", "100"]
    options += ["--also", "rounds=100000"]

    def interrupt() -> None:
        while not list(tmp_path.glob("runs/*/metrics.jsonl")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    assert script("results").main(["run", *options]) == 130
    assert capsys.readouterr().err.endswith(
        "same command goes on, with the run that was cut short.\n"
    )
    assert list(tmp_path.glob("runs/*/checkpoint*"))
    (spent,) = tmp_path.glob("runs/*.json")
    assert not json.loads(spent.read_text()).get("running")
