"""Several methods on the same clients: runs, refusals and results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedsink.conf.acting import compose_config
from fedsink.errors import ConfigError, DataError, FedsinkError
from fedsink.server.folder import RunFolder, stored_config
from fedsink.server.recorded import RecordedRun
from fedsink.simulation.simulated_run import resume, start
from fedsink.simulation.studies import method_comparison
from fedsink.simulation.studies.method_comparison import SHARED, MethodComparison
from fedsink.values import leaves

METHODS = ("dp_sinkhorn", "gs_wgan", "parameter_gradient", "privatize_once")
SMALL = (
    "experiment=compare_methods", "engine=local", "clients=3", "report.pictures=1",
    "report.html=false", "study.images=40",
    *(f"study.overrides.{method}=['rounds=3']" for method in METHODS),
)  # fmt: skip
TWO = "study.methods=[dp_sinkhorn,privatize_once]"


def small(*overrides: str) -> dict[str, Any]:
    return compose_config([*SMALL, *overrides])


def planned(*overrides: str) -> dict[str, dict[str, Any]]:
    """The configurations of the runs, without any run."""
    from fedsink.simulation.run_settings import RunIdentity
    from fedsink.simulation.simulated_run import configure

    config = small(*overrides)
    node = configure({**config, "study": None}, Path("unused"), RunIdentity.fresh(0)).node
    values = {key: value for key, value in config["study"].items() if key != "name"}
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return MethodComparison(**values).plan(config, node).runs


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small study of all four methods; tests must not change it."""
    return start(small("seed=0"), tmp_path_factory.mktemp("comparison") / "played")


@pytest.mark.slow
def test_each_method_runs_is_evaluated_and_is_in_the_page(played: Path) -> None:
    study = RecordedRun.of(played)
    assert tuple(study.parts) == METHODS
    page = (played / "compare.html").read_text()
    for method, run in study.parts.items():
        assert run.finished
        assert run.rounds[-1]["round"] == 3
        assert run.evaluations["evaluation"]["n"] == 40
        assert run.config["strategy"]["name"] == method
        assert f'<th scope="row">{method}</th>' in page


@pytest.mark.slow
def test_the_clients_hold_the_same_records_in_every_run(played: Path) -> None:
    dealt = [json.loads((played / name / "partition.json").read_text()) for name in METHODS]
    assert len(dealt[0]["clients"]) == 3
    assert all(other == dealt[0] for other in dealt)
    for key in SHARED:
        values = [stored_config(RunFolder(played / name))[key] for name in METHODS]
        assert all(value == values[0] for value in values), key


@pytest.mark.slow
def test_each_model_spends_the_budget_that_is_stated_for_it(played: Path) -> None:
    for name, run in RecordedRun.of(played).parts.items():
        assert run.privacy is not None
        model, eps = ("ldp", 35.0) if name == "privatize_once" else ("central", 10.0)
        assert run.privacy["model"] == model
        assert 0.99 * eps <= run.privacy["epsilon"] <= eps


@pytest.mark.slow
def test_a_run_is_what_the_method_s_own_command_runs() -> None:
    runs = planned("seed=4", "clients=7", "study.overrides.gs_wgan=['strategy.rows=5']")
    own = compose_config(
        ["strategy=gs_wgan", "eps=10.0", "seed=4", "clients=7", "engine=local", "report.pictures=1",
         "report.html=false", "strategy.rows=5"]
    )  # fmt: skip
    assert runs["gs_wgan"] == own
    assert dict(leaves(runs["privatize_once"]))["mechanism.name"] == "laplace"


@pytest.mark.slow
def test_a_recipe_s_epsilon_and_one_of_a_method_s_own() -> None:
    runs = planned("study.eps.central=null", "study.overrides.gs_wgan=['eps=3']")
    assert {name: run["eps"] for name, run in runs.items()} == {
        "dp_sinkhorn": None, "gs_wgan": 3, "parameter_gradient": None, "privatize_once": 35.0,
    }  # fmt: skip


@pytest.mark.medium
def test_every_seed_is_a_run_of_every_method() -> None:
    runs = planned(TWO, "study.seeds=[3,5]")
    assert {name: run["seed"] for name, run in runs.items()} == {
        "dp_sinkhorn-seed3": 3, "dp_sinkhorn-seed5": 5,
        "privatize_once-seed3": 3, "privatize_once-seed5": 5,
    }  # fmt: skip


@pytest.mark.slow
def test_other_data_have_their_own_recipes(tiny_data: Path) -> None:
    runs = planned("data=mnist", f"data.root={tiny_data}", "study.overrides.gs_wgan=[]")
    assert runs["gs_wgan"]["recipe"]["rounds"] == 900
    assert runs["gs_wgan"]["data"]["root"] == str(tiny_data)


@pytest.mark.medium
@pytest.mark.quick("overrides*[05]-*")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("eps=3",), r"eps=3 says nothing about which promise: .* give study\.eps\.central="),
        (("mode=ldp",), r"mode=ldp is for a single method, .* leave it out, or give it in study\."),
        (("strategy.rows=3",), r"strategy\.rows=3 is for a single method"),
        (("study.methods=[gs_wgan]",), "leaves nothing to compare: name two or more of dp_sink"),
        (("study.methods=gs_wgan",), "list of methods, each once, not 'gs_wgan'"),
        (("study.methods=[gs_wgan,gs_wgan]",), "study.methods is a list of methods, each once"),
        (("study.methods=[gs_wgan,wgan]",), r"strategy\.name='wgan' is unknown; choose one of"),
        (("+study.overrides.wgan=[]",), r"strategy\.name='wgan' is unknown; choose one of"),
        (("study.overrides.gs_wgan=3",), r"study\.overrides\.gs_wgan is a list of key=value"),
        (("study.overrides=3",), "study.overrides is a table by name, not 3"),
        (("+study.eps.local=3",), "study.eps has central and ldp, not 'local'"),
        (("study.seeds=[]",), r"study\.seeds is null or a list of numbers, each once, not \[\]"),
        (("study.seeds=[1,1]",), r"study\.seeds is null or a list of numbers, each once"),
        (("study.seeds=[-1]",), r"study\.seeds must be a whole number of at least 0, not -1"),
        (("seed=1", "study.seeds=[1]"), r"seed=1 and study\.seeds=\[1\] both name seeds: leave"),
        (("study.images=3",), r"study\.images must be 0 or a whole number of at least 20, not 3"),
        (("study.eps.ldp=-1",), "eps must be a positive number, not -1"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused_and_leaves_nothing(
    tmp_path: Path, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(FedsinkError, match=message):
        start(small(*overrides), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.medium
def test_data_without_a_file_of_their_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(method_comparison, "choices", lambda group: ["mnist"])
    with pytest.raises(ConfigError, match="with data=digits, and there is no such file: name the"):
        start(small(), tmp_path / "run")


@pytest.mark.slow
def test_data_without_a_test_split_are_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_test(spec: object, split: str) -> None:
        raise DataError(f"There is no split {split}.")

    monkeypatch.setattr(method_comparison, "load", no_test)
    with pytest.raises(DataError, match="There is no split test"):
        start(small(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert planned("study.images=0")


@pytest.mark.slow
def test_a_study_that_is_resumed_keeps_its_evaluations(
    played: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [played / name / "evaluation.json" for name in METHODS]
    before = [path.stat().st_mtime_ns for path in files]
    page = (played / "compare.html").read_bytes()
    resume(played)
    captured = capsys.readouterr()
    assert "Evaluating" not in captured.err
    assert [path.stat().st_mtime_ns for path in files] == before
    assert (played / "compare.html").read_bytes() == page
    for method in ("mode=central", "strategy=gs_wgan", "strategy=parameter_gradient", "mode=ldp"):
        assert method in captured.out


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_four_methods_on_the_digits_in_one_command(tmp_path: Path) -> None:
    folder = start(
        compose_config(["experiment=compare_methods", "engine=local", "seed=1"]), tmp_path / "run"
    )
    accuracies = {
        name: run.evaluations["evaluation"]["accuracy"]
        for name, run in RecordedRun.of(folder).parts.items()
    }
    for name in ("dp_sinkhorn", "gs_wgan", "privatize_once"):
        assert min(accuracies[name].values()) > 0.75, name
    assert 0.2 < accuracies["parameter_gradient"]["logreg"] < accuracies["dp_sinkhorn"]["logreg"]
    assert (folder / "compare.html").stat().st_size < 3_000_000
