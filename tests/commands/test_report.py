from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedsink.simulation.simulated_run import resume

from .conftest import SMALL, WITH_PAGE, Outcome, run_many


@pytest.mark.medium
def test_a_run_leaves_its_page(finished: tuple[Outcome, Path]) -> None:
    text = (finished[1] / "report.html").read_text()
    assert "20 rounds" in text
    assert "Not measured yet" in text
    assert str(finished[1]) not in text


@pytest.fixture(scope="module")
def outcomes(
    finished: tuple[Outcome, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Outcome]]:
    folder = tmp_path_factory.mktemp("reports")
    shutil.copytree(finished[1], folder / "run")
    lines = [
        ["report", "run=run"],
        ["evaluate", "run=run", "n=200", "threads=1"],
        ["simulate", *SMALL, "hydra.run.dir=silent"],
        ["evaluate", "run=silent", "n=200", "threads=1"],
        ["report"],
        ["report", "run=nowhere"],
        ["report", "-h"],
        ["simulate", *WITH_PAGE, "report.html=maybe", "hydra.run.dir=maybe"],
    ]
    return folder, run_many([(folder, line) for line in lines])


@pytest.mark.slow
def test_the_command_writes_the_page_and_prints_where(outcomes: tuple[Path, list[Outcome]]) -> None:
    folder, (report, *_) = outcomes
    assert (report.code, report.err) == (0, "")
    assert report.out == f"{folder / 'run' / 'report.html'}\n"


@pytest.mark.slow
def test_an_evaluation_brings_the_page_up_to_date(outcomes: tuple[Path, list[Outcome]]) -> None:
    folder, (_, evaluated, *_) = outcomes
    assert evaluated.code == 0, evaluated.err
    text = (folder / "run" / "report.html").read_text()
    assert "These figures are not private." in text
    assert "evaluation.json: suite=fast, 200 synthetic records" in text


@pytest.mark.slow
def test_the_page_can_be_left_out(outcomes: tuple[Path, list[Outcome]]) -> None:
    folder, (_, _, simulated, evaluated, *_) = outcomes
    assert (simulated.code, evaluated.code) == (0, 0)
    assert not (folder / "silent" / "report.html").exists()


@pytest.mark.slow
def test_what_is_missing_or_wrong_is_said(outcomes: tuple[Path, list[Outcome]]) -> None:
    _, (*_, without, nowhere, helped, maybe) = outcomes
    assert without.code == nowhere.code == maybe.code == 2
    assert "run= is missing" in without.err
    assert "holds no fedsink run" in nowhere.err
    assert helped.out.startswith("Usage: fedsink report run=DIR")
    assert "report.html is true or false, not 'maybe'" in maybe.err


@pytest.mark.slow
def test_a_finished_run_gets_its_page_when_it_is_resumed(
    outcomes: tuple[Path, list[Outcome]],
) -> None:
    page = outcomes[0] / "run" / "report.html"
    page.unlink()
    resume(page.parent)
    assert page.exists()
