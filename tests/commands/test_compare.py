from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedsink.commands.compare import folders, run

from .conftest import Outcome, run_many

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def compared(
    finished: tuple[Outcome, Path], finished_ldp: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Outcome]:
    """Every command line of this module, by its name, played by one process in one folder."""
    folder = tmp_path_factory.mktemp("compared")
    shutil.copytree(finished[1], folder / "central")
    shutil.copytree(finished_ldp, folder / "with, comma")
    for number in ("0", "1"):
        shutil.copytree(finished[1], folder / "sweep" / number)
    (folder / "mine.html").write_text("mine")
    lines = {
        "list": ["compare", 'run=[central,"with, comma"]'],
        "out": ["compare", 'run=["with, comma", central]', "out=new/page.html"],
        "sweep": ["compare", "run=sweep"],
        "mine": ["compare", "run=sweep", "out=mine.html"],
        "one": ["compare", "run=central"],
        "twice": ["compare", "run=[central,./central]"],
        "missing": ["compare", "run=[central,nowhere]"],
        "no run": ["compare", "run=new"],
        "nothing": ["compare"],
        "empty": ["compare", "run="],
        "unknown": ["compare", "run=sweep", "outs=x.html"],
        "open": ["compare", "run=[central"],
    }
    outcomes = run_many([(folder, line) for line in lines.values()])
    return dict(zip(lines, outcomes, strict=True)) | {"folder": Outcome(0, str(folder), "")}


@pytest.fixture(scope="module")
def folder(compared: dict[str, Outcome]) -> Path:
    return Path(compared["folder"].out)


@pytest.mark.parametrize(
    ("name", "page"),
    [("list", "compare.html"), ("out", "new/page.html"), ("sweep", "sweep/compare.html")],
)
def test_a_table_is_printed_and_a_page_is_written(
    compared: dict[str, Outcome], folder: Path, name: str, page: str
) -> None:
    outcome = compared[name]
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.last == page
    assert outcome.out.startswith("method")
    assert '<h1 id="fedsink-comparison">' in (folder / page).read_text()


def test_runs_of_both_models_are_told_apart(compared: dict[str, Outcome]) -> None:
    out = " ".join(compared["list"].out.split())
    assert "central, per record" in out
    assert "ldp, per record" in out
    assert "These ε are 2 different promises" in out


def test_repetitions_in_a_sweep_are_said(compared: dict[str, Outcome]) -> None:
    assert "mode=central has several runs of seed 0" in " ".join(compared["sweep"].out.split())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine", "mine.html exists and is no page of fedsink compare: remove it, or give another"),
        ("one", "A comparison needs two runs or more, not "),
        ("twice", "central is named twice: name each run once."),
        ("missing", "nowhere is no folder: name one that holds a run."),
        ("no run", "new holds no fedsink run (no config.yaml, nor one in a folder within)"),
        ("nothing", "run= is missing; fedsink compare --help says what to give."),
        ("empty", "run= is missing; fedsink compare --help says what to give."),
        ("unknown", "Unknown key 'outs'. Did you mean out? Keys: run, out."),
        ("open", "run=[central: a list of folders is written [A,B]."),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    compared: dict[str, Outcome], folder: Path, name: str, message: str
) -> None:
    outcome = compared[name]
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert (folder / "mine.html").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []), ("[]", []), ("a", ["a"]), ("a,b", ["a,b"]), ("[a]", ["a"]),
        ("[a, b/c]", ["a", "b/c"]), ('["a,b",c]', ["a,b", "c"]),
        ("[2026-11-22,010]", ["2026-11-22", "010"]),
    ],
)  # fmt: skip
def test_lists_of_folders(text: str, names: list[str]) -> None:
    assert folders(text) == names


@pytest.mark.parametrize("text", ["[a,]", "[a", "[,]", '["",a]'])
def test_lists_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="list"):
        folders(text)


def test_no_control_character_of_a_received_run_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = SimpleNamespace(write=lambda path: None, text=lambda: "a\x1b[2J\nb")
    monkeypatch.setattr("fedsink.results.pages.compare_page.Comparison.of", lambda named: table)
    assert run([f"run={tmp_path}"]) == 0
    assert capsys.readouterr().out.startswith("a\\x1b[2J\nb\n")
