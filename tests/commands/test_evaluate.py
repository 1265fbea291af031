from __future__ import annotations

import io
import json
import shutil
import sys

import pytest

from fedsink.commands import evaluate as command
from fedsink.errors import ConfigError

from .conftest import SMALL, Finished, Played, run_many

pytestmark = pytest.mark.slow  # a process that evaluates fifteen times


@pytest.fixture(scope="module")
def evaluated(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("evaluated")
    shutil.copytree(finished[1], folder / "images")
    lines = [
        ["evaluate", "run=images", "n=200", "threads=1", "reference=true"],
        ["simulate", *SMALL, "data=half_circle", "mode=ldp", "hydra.run.dir=points"],
        ["evaluate", "run=points", "n=200"],
        ["simulate", *SMALL, "conditional=false", "hydra.run.dir=unconditional"],
        ["evaluate", "run=unconditional", "n=200"],
        ["evaluate", "run=images", "suite=paper", "n=40", "runs=2", "seed=3", "threads=1"],
        ["evaluate", "run=images", "suite=full", "n=20", "runs=1", "reference=false", "threads=1"],
        ["evaluate", "run=points", "suite=paper"],
        ["evaluate", "run=unconditional", "suite=paper"],
        ["evaluate", "run=images", "suite=quick"],
        ["evaluate", "run=images", "runs=2"],
        ["evaluate", "run=images", "n=200", "threads=1", "observation=false"],
        ["evaluate", "run=images", "suite=fast", "classifiers=published"],
        ["evaluate", "run=images", "suite=full", "classifiers=theirs"],
        [
            *("evaluate", "run=images", "suite=full", "classifiers=published", "n=40"),
            *("runs=1", "reference=false", "threads=1"),
        ],
        ["evaluate", "run=images", "inception=weights.pth"],
        ["evaluate", "run=images", "suite=full", "inception=weights.pth"],
        ["evaluate", "run=images", "suite=paper", "inception=weights.pth"],
        ["evaluate", "run=points", "inception=weights.pth"],
    ]
    return folder, run_many([(folder, line) for line in lines])


def test_accuracies_are_fractions_written_into_the_run_folder(evaluated: Played) -> None:
    outcome = evaluated[1][0]
    assert outcome.code == 0, outcome.err
    path = evaluated[0] / "images" / "evaluation.json"
    assert outcome.last == str(path)
    result = json.loads(path.read_text())
    for key in ("accuracy", "real_accuracy"):
        assert set(result[key]) == {"logreg", "mlp", "cnn"}
        assert all(0 <= value <= 1 for value in result[key].values())
    assert result["real_accuracy"]["logreg"] > 0.8
    assert result["real_accuracy"]["logreg"] > result["accuracy"]["logreg"]  # 20 rounds only
    assert (result["n"], result["test_images"]) == (200, 360)
    assert sum(result["label_histogram"]) == 200
    assert result["sliced_w2"] > 0


def test_the_table_is_on_standard_output_and_nothing_on_the_other(evaluated: Played) -> None:
    outcome = evaluated[1][0]
    for word in ("logreg", "mlp", "cnn", "sliced W2", "images per class", "real data"):
        assert word in outcome.out
    assert outcome.err == ""


def test_points_get_distances(evaluated: Played) -> None:
    folder, outcomes = evaluated
    assert outcomes[2].code == 0, outcomes[2].err
    result = json.loads((folder / "points" / "evaluation.json").read_text())
    assert result["w2"] >= result["sliced_w2"] > 0
    assert "accuracy" not in result


def test_an_unconditional_generator_has_no_accuracy(evaluated: Played) -> None:
    folder, outcomes = evaluated
    assert outcomes[4].code == 0, outcomes[4].err
    assert "no labels to train classifiers on" in outcomes[4].err
    result = json.loads((folder / "unconditional" / "evaluation.json").read_text())
    assert "accuracy" not in result
    assert result["sliced_w2"] > 0


def test_paper_has_its_own_file_with_seeds_spread_ceiling_and_floor(evaluated: Played) -> None:
    folder, outcomes = evaluated
    outcome = outcomes[5]
    assert outcome.code == 0, outcome.err
    path = folder / "images" / "evaluation-paper.json"
    assert outcome.last == str(path)
    result = json.loads(path.read_text())
    assert (result["suite"], result["n"], result["seeds"]) == ("paper", 40, [3, 4])
    assert (result["train_images"], result["test_images"]) == (1437, 360)
    cnn = result["figures"]["accuracy/cnn"]
    assert set(cnn) == {"synthetic", "real", "class_means"}
    assert all(len(column["values"]) == 2 and column["size"] == 40 for column in cnn.values())
    assert result["accuracy"]["cnn"] == cnn["synthetic"]["mean"]
    assert result["seconds"] > 0
    table = path.with_suffix(".txt").read_text()
    assert outcome.out == f"{table}{path}\n"
    assert "accuracy/nearest_class_mean" in table
    fast = json.loads((folder / "images" / "evaluation.json").read_text())
    assert fast["n"] == 200, "suite=fast keeps its file"


def test_the_generator_s_own_pictures_have_a_file_of_their_own(evaluated: Played) -> None:
    folder, outcomes = evaluated
    assert outcomes[11].code == 0, outcomes[11].err
    assert outcomes[11].last == str(folder / "images" / "evaluation-bare.json")
    bare, observed = (
        json.loads((folder / "images" / f"{name}.json").read_text())
        for name in ("evaluation-bare", "evaluation")
    )
    assert (bare["observation"], observed["observation"]) == (False, True)
    assert bare["label_histogram"] == observed["label_histogram"], "the same draws"
    assert bare["sliced_w2"] != observed["sliced_w2"]


def test_full_measures_the_pictures_too_and_says_what_it_left_out(evaluated: Played) -> None:
    folder, outcomes = evaluated
    outcome = outcomes[6]
    assert outcome.code == 0, outcome.err
    result = json.loads((folder / "images" / "evaluation-full.json").read_text())
    for name in ("accuracy/lda", "coverage", "memorisation/z", "classifier_frechet_distance"):
        assert set(result["figures"][name]) == {"synthetic"}
    assert "fid was left out: " in outcome.out
    assert outcome.err == ""


def test_the_published_classifiers_have_a_file_of_their_own(evaluated: Played) -> None:
    folder, outcomes = evaluated
    outcome = outcomes[14]
    assert outcome.code == 0, outcome.err
    assert outcome.last == str(folder / "images" / "evaluation-full-published.json")
    published, ours, fast = (
        json.loads((folder / "images" / f"{name}.json").read_text())
        for name in ("evaluation-full-published", "evaluation-full", "evaluation")
    )
    assert (published["classifiers"], ours["classifiers"], fast["classifiers"]) == (
        "published",
        "ours",
        "ours",
    )
    assert "accuracy/cnn was left out: LeNet needs images of at least 12×12 pixels" in outcome.out
    assert "accuracy/mlp" in published["figures"]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (12, "classifiers=published belongs to suite=full; received suite=fast."),
        (13, "classifiers='theirs' is unknown; choose one of dpimagebench, ours, published."),
        (7, "suite=paper is for images, and the run's data are points"),
        (8, "the generator is unconditional and draws no labels; choose suite=full"),
        (9, "suite='quick' is unknown; choose one of fast, full, paper."),
        (10, "suite=fast has one run: leave runs= out, or choose another suite."),
        (15, "weights.pth cannot be read (No such file or directory): name weights as"),
        (16, "weights.pth cannot be read (No such file or directory): name weights as"),
        (17, "suite=paper has accuracies only; inception= belongs to suite=fast and suite=full."),
        (18, "inception= is for FID of images, and the run's data are points."),
    ],
)
def test_refusals_are_one_line(evaluated: Played, index: int, message: str) -> None:
    outcome = evaluated[1][index]
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert not list(evaluated[0].glob("points/evaluation-*"))


def test_a_log_gets_a_line_after_a_while_and_a_terminal_each_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(command.time, "monotonic", lambda: now[0])
    for terminal in (False, True):
        monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
        monkeypatch.setattr(stream, "isatty", lambda terminal=terminal: terminal)
        now[0] = 0.0
        report = command._reporter()
        for second in range(0, 100, 5):
            now[0] = float(second)
            report(f"epoch {second}")
        if terminal:
            assert stream.getvalue().count("epoch ") == 20
            assert "\n" not in stream.getvalue()
        else:
            assert stream.getvalue() == "epoch 20\nepoch 40\nepoch 60\nepoch 80\n"


@pytest.mark.parametrize("answer", ["y", "Yes", "", "n", None])
def test_a_terminal_is_asked_before_hours_and_a_log_is_told(
    answer: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", typed := io.StringIO(f"{answer}\n"))
    if answer is not None:
        monkeypatch.setattr(typed, "isatty", lambda: True)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    if answer in ("", "n"):
        with pytest.raises(ConfigError, match="nothing was evaluated"):
            command._agree(230.4)
    else:
        command._agree(230.4)
    said = capsys.readouterr().err
    assert said.startswith("This takes about 230 hours of one core: fewer pictures (n=)")
    assert said.endswith("[y/N] ") == (answer is not None)
