from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedsink.errors import CheckpointError, ClientError, ConfigError
from fedsink.server.folder import (
    SUMS,
    RunFolder,
    command_for,
    note_sums,
    read_sums,
    store_config,
    stored_config,
)


def test_a_fresh_folder_may_be_missing_or_empty(tmp_path: Path) -> None:
    assert RunFolder.fresh(tmp_path / "new").path == tmp_path / "new"
    assert not (tmp_path / "new").exists()
    RunFolder.fresh(tmp_path)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_taken_place_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "config.yaml").write_text("a: 1")
    place = tmp_path if kind == "folder" else tmp_path / "config.yaml"
    with pytest.raises(
        ConfigError, match=r"is not an empty folder: give another \(hydra\.run\.dir="
    ):
        RunFolder.fresh(place)


def test_a_run_is_known_by_its_configuration(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no fedsink run \(no config\.yaml\)"):
        RunFolder.existing(tmp_path)
    (tmp_path / "config.yaml").write_text("a: 1")
    assert RunFolder.existing(tmp_path).path == tmp_path


def test_create_may_be_repeated(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a" / "b")
    for _ in range(2):
        folder.create()
    assert folder.samples.is_dir()
    assert folder.checkpoint.is_dir()


def test_one_process_runs_in_a_folder(tmp_path: Path) -> None:
    folder, other = RunFolder(tmp_path / "a" / "run"), RunFolder(tmp_path / "a" / "run")
    with folder.claimed():
        for use in (other.held, other.claimed):
            with pytest.raises(ClientError, match=r"Another process runs in .*run: wait"), use():
                pass
        folder.create()
    with other.held():
        pass
    with pytest.raises(ConfigError, match="is not an empty folder"), other.claimed():
        pass
    assert folder.samples.is_dir()


def test_a_stored_configuration_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    config = {"eps": 1e-5, "data": {"classes": ["1", "no", "x"], "root": "/a b/$HOME"}, "n": None}
    store_config(folder, config)
    assert stored_config(folder) == config


@pytest.mark.parametrize(
    "text",
    [
        "a: ${oc.env:HOME}",
        "a: [{b: [x, '$\u007boc.env:HOME}']}]",
        'a: "\\x24{oc.env:HOME}"',
        "${oc.env:HOME}: 1",
        "a: x${b}\nb: 1",
        "a: &a [1, 2]\nb: *a",
        "a: &a {b: 1}\nc: {<<: *a}",
        "a: [" * 2000,
        "[1, 2]",
        "a: !!python/object/apply:os.getcwd []",
    ],
)
def test_a_received_configuration_shows_nothing_of_this_machine(tmp_path: Path, text: str) -> None:
    folder = RunFolder(tmp_path)
    folder.config.write_text(text)
    with pytest.raises(
        CheckpointError, match=r"config\.yaml (cannot be read|is not a run's)"
    ) as no:
        stored_config(folder)
    assert str(Path.home()) not in str(no.value).replace(str(tmp_path), "")


def test_rounds_after_a_checkpoint_are_forgotten(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.rewind(0)
    assert not folder.metrics_lines.exists()
    for number in range(1, 6):
        folder.log({"round": number})
    with folder.metrics_lines.open("a") as file:
        file.write('{"round": 6, "lo')  # torn by a kill
    folder.rewind(3)
    folder.log({"round": 4})
    lines = [json.loads(line) for line in folder.metrics_lines.read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4]


def test_a_run_has_ended_when_its_final_metrics_are_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert not folder.finished
    folder.write(folder.metrics, {"rounds": 3})
    assert folder.finished
    assert json.loads(folder.metrics.read_text()) == {"rounds": 3}


@pytest.mark.parametrize(
    "name", ["run", "a run", "l'été", '"b"', "$HOME", "a,b", "[c]", "a\nb", "`d`", "#"]
)
def test_a_command_for_a_folder_is_pasted_as_it_is_printed(name: str) -> None:
    line = command_for("report", "run", Path("/runs") / name)
    told = subprocess.run(["bash", "-c", f"printf '%s|' {line}"], capture_output=True, text=True)
    program, *others = told.stdout.split("|")
    assert others == ["report", f"run=/runs/{name}", ""]
    assert Path(program).name == "fedsink"


def test_a_printed_command_works_in_a_fresh_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "my env" / "bin" / "fedsink"
    for program in (own, tmp_path / "other" / "fedsink"):
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\necho fedsink is found\n")
        program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(own.with_name("python")))
    for path, plain in ((own.parent, True), (own.parent.parent, False), (program.parent, False)):
        monkeypatch.setenv("PATH", f"{path}:/usr/bin:/bin")
        line = command_for("report", "run", Path("/runs"))
        assert (line == "fedsink report run=/runs") == plain
        told = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
        assert told.stdout == "fedsink is found\n"
    own.unlink()  # `python -m fedsink`, from no environment's command
    assert command_for("report", "run", Path("/runs")) == "fedsink report run=/runs"


def test_sums_are_those_of_coreutils_and_others_stay(tmp_path: Path) -> None:
    (tmp_path / "privacy.json").write_text("{}")
    (tmp_path / "partition.json").write_text("never")
    note_sums(tmp_path)
    first = read_sums(tmp_path)
    assert list(first) == ["privacy.json"]
    (tmp_path / "report.html").write_text("page")
    (tmp_path / "privacy.json").write_text("changed")
    note_sums(tmp_path, ["report.html"])
    assert read_sums(tmp_path)["privacy.json"] == first["privacy.json"]
    check = ["sha256sum", "--check", SUMS]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["privacy.json: FAILED", "report.html: OK"]


@pytest.mark.parametrize(
    "text",
    [
        "no sum",
        f"{'0' * 64}  ../privacy.json",
        f"{'0' * 64}  partition.json",
        f"{'0' * 64}  privacy.json\n{'1' * 64}  privacy.json",
        "\udcff",
    ],
)
def test_damaged_sums_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / SUMS).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CheckpointError, match=r"is no SHA-256 of one of privacy\.json"):
        read_sums(tmp_path)


@pytest.mark.parametrize(
    "name", ["samples", "checkpoint/state.safetensors", "metrics.jsonl", "start"]
)
def test_a_link_below_a_run_is_refused(tmp_path: Path, name: str) -> None:
    """A received run that continues would write through it."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.refuse_links()
    place = folder.path / name
    if place.is_dir():
        place.rmdir()
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="is a link, and a run that continues writes"):
        folder.refuse_links()
