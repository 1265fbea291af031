"""A study as its user meets it: stopped, killed, continued, refused."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedsink.errors import CheckpointError, ClientError, ConfigError
from fedsink.server.finished import open_run
from fedsink.server.folder import RunFolder
from fedsink.server.loop import InterruptedRunError
from fedsink.simulation.run_settings import RunIdentity
from fedsink.simulation.simulated_run import configure, resume, start
from fedsink.simulation.studies import debugging

from .conftest import small

_SAME = ("debug.json", "debug.txt", "debug.png", *(
    f"{name}/generator.safetensors" for name in ("clean", "suspects")
))  # fmt: skip


def assert_same(folder: Path, played: Path) -> None:
    for name in _SAME:
        assert (folder / name).read_bytes() == (played / name).read_bytes(), name


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], Path]:
    """Ctrl-C in a round of one of the study's runs; it is not planned a second time."""

    def play(name: str, round: int) -> Path:
        log = RunFolder.log

        def interrupted(self: RunFolder, record: dict[str, Any]) -> None:
            log(self, record)
            if (self.path.name, record["round"]) == (name, round):
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(RunFolder, "log", interrupted)
        with pytest.raises(InterruptedRunError) as stop:
            start(small(), tmp_path / "run")
        monkeypatch.setattr(RunFolder, "log", log)
        monkeypatch.delattr(debugging, "train_cnn")
        number = 1 + (name == "suspects")
        assert str(stop.value) == (
            f"Stopped in the run {name}, {number} of 2. Continue with: fedsink simulate "
            f"resume={tmp_path / 'run'}"
        )
        return tmp_path / "run"

    return play


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clean", "suspects"])
def test_a_stopped_study_continues_to_the_same_end(
    stopped: Callable[[str, int], Path],
    played: Path,
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = stopped(name, 2)
    assert not (folder / "debug.json").exists()
    assert RunFolder(folder / "clean").finished == (name == "suspects")
    kept = RunFolder(folder / "clean").metrics
    before = kept.stat().st_mtime_ns if name == "suspects" else None
    capsys.readouterr()
    assert resume(folder) == folder
    assert capsys.readouterr().out == (folder / "debug.txt").read_text()
    assert before in (None, kept.stat().st_mtime_ns)  # a finished run is not touched
    assert_same(folder, played)


@pytest.mark.slow
def test_a_run_that_was_stopped_may_be_resumed_by_itself_first(
    stopped: Callable[[str, int], Path], played: Path
) -> None:
    folder = stopped("clean", 3)
    assert resume(folder / "clean") == folder / "clean"
    resume(folder)
    assert_same(folder, played)


@pytest.mark.slow
def test_a_kill_before_a_run_began_costs_that_run_alone(
    stopped: Callable[[str, int], Path], played: Path
) -> None:
    folder = stopped("suspects", 1)
    (folder / "suspects" / "config.yaml").unlink()  # written last of what a run begins with
    resume(folder)
    assert_same(folder, played)


@pytest.mark.medium
def test_a_finished_study_that_is_resumed_reports_again(
    played: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {name: (played / name).read_bytes() for name in _SAME}
    resume(played)
    assert capsys.readouterr().out == (played / "debug.txt").read_text()
    assert before == {name: (played / name).read_bytes() for name in _SAME}


def test_two_processes_never_resume_one_study(played: Path) -> None:
    taken = pytest.raises(ClientError, match=r"Another process runs in .*: wait for its end")
    with RunFolder(played).held(), taken:
        resume(played)


@pytest.mark.slow
def test_secret_keys_are_of_each_run_and_gone_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = start(small("seed=null", "rounds=1"), tmp_path / "run")
    runs = [open_run(str(folder / name)).config["run"] for name in ("clean", "suspects")]
    assert runs[0]["key_file"] != runs[1]["key_file"]
    assert not any(Path(run["key_file"]).exists() for run in runs)
    assert [path for path in (tmp_path / "state").rglob("*") if path.is_file()] == []


@pytest.mark.medium
def test_a_study_s_folder_is_no_run_s(played: Path) -> None:
    with pytest.raises(CheckpointError, match="holds a study of the runs clean and suspects: name"):
        open_run(str(played))
    with pytest.raises(ConfigError, match=r"is not an empty folder: give another \(hydra"):
        start(small(), played)
    with pytest.raises(ConfigError, match="A study is several runs: only `start` takes"):
        configure(small(), played, RunIdentity.fresh(0))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("study=debugging",), "study is null or a table with a name, .*, not 'debugging'"),
        (("study.name=x",), r"study\.name='x' is unknown; choose one of compare, debugging"),
        (("+study.threshold=1",), r"Unknown key study\.threshold; there are clean, suspect"),
        (("~study.clean",), r"The configuration lacks study\.clean"),
        (("eps=0",), "eps must be a finite number > 0"),
    ],
)
def test_a_study_that_does_not_exist_is_refused_and_leaves_nothing(
    tmp_path: Path, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(Exception, match=message) as refusal:
        start(small(*overrides), tmp_path / "run")
    assert refusal.type.__module__ == "fedsink.errors"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "damage",
    [
        {"plan": None},
        {"plan": {"runs": {}, "x": 1}},
        {"study": {}},
        {"plan": {"runs": {"../kept": {}}}},
        {"plan": {"runs": {"..": {}}}},
    ],
)
def test_a_damaged_study_is_refused(played: Path, tmp_path: Path, damage: dict[str, Any]) -> None:
    stored = {**yaml.safe_load((played / "config.yaml").read_text()), **damage}
    folder = tmp_path / "received"
    folder.mkdir()
    (tmp_path / "kept").mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(stored))
    with pytest.raises(CheckpointError, match=r"config\.yaml is not a study's configuration: "):
        resume(folder)
    assert (tmp_path / "kept").is_dir()  # a run that had not begun would be cleared away
