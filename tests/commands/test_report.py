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


@pytest.mark.slow
def test_the_page_is_written_updated_and_left_out(
    finished: tuple[Outcome, Path], tmp_path: Path
) -> None:
    page = tmp_path / "run" / "report.html"
    shutil.copytree(finished[1], page.parent)
    lines = [
        ["report", "run=run"],
        ["evaluate", "run=run", "n=200", "threads=1"],
        ["simulate", *SMALL, "hydra.run.dir=silent"],
        ["evaluate", "run=silent", "n=200", "threads=1"],
        ["report"],
        ["report", "run=nowhere"],
        ["simulate", *WITH_PAGE, "report.html=maybe", "hydra.run.dir=maybe"],
    ]
    done = run_many([(tmp_path, line) for line in lines])
    assert [outcome.code for outcome in done] == [0, 0, 0, 0, 2, 2, 2], done
    assert (done[0].err, done[0].out) == ("", f"{page}\n")
    text = page.read_text()
    assert "These figures are not private." in text
    assert "evaluation.json: suite=fast, 200 synthetic records" in text
    assert not (tmp_path / "silent" / "report.html").exists()
    assert "run= is missing" in done[4].err
    assert "holds no fedsink run" in done[5].err
    assert "report.html is true or false, not 'maybe'" in done[6].err
    page.unlink()
    resume(page.parent)
    assert page.exists()
