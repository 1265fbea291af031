from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fedsink import __version__
from fedsink.errors import CheckpointError, ClientError, ConfigError
from fedsink.server.folder import (
    FORMAT,
    SUMS,
    RecordedRun,
    RunFolder,
    cautions,
    command_for,
    note_sums,
    read_sums,
    store_config,
    stored_config,
)


def test_a_fresh_folder_may_be_missing_or_empty(tmp_path):
    assert RunFolder.fresh(tmp_path / "new").path == tmp_path / "new"
    assert not (tmp_path / "new").exists()
    RunFolder.fresh(tmp_path)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_taken_place_is_refused(tmp_path, kind):
    (tmp_path / "config.yaml").write_text("a: 1")
    place = tmp_path if kind == "folder" else tmp_path / "config.yaml"
    with pytest.raises(
        ConfigError, match=r"is not an empty folder: give another \(hydra\.run\.dir="
    ):
        RunFolder.fresh(place)


def test_a_run_is_known_by_its_configuration(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no fedsink run \(no config\.yaml\)"):
        RecordedRun.of(tmp_path)
    (tmp_path / "config.yaml").write_text("a: 1")
    assert RunFolder.existing(tmp_path).path == tmp_path


def test_create_may_be_repeated(tmp_path):
    folder = RunFolder(tmp_path / "a" / "b")
    for _ in range(2):
        folder.create()
    assert folder.samples.is_dir()
    assert folder.checkpoint.is_dir()


def test_one_process_runs_in_a_folder(tmp_path):
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


def test_a_stored_configuration_is_read_as_it_was_written(tmp_path):
    folder = RunFolder(tmp_path)
    config = {"eps": 1e-5, "data": {"classes": ["1", "no", "x"], "root": "/a b/$HOME"}, "n": None}
    store_config(folder, config)
    assert stored_config(folder) == config


def test_a_configuration_is_written_and_read_as_hydra_does(tmp_path):
    """config.yaml of every version is one format, whether OmegaConf or fedsink wrote it."""
    words = ["y", "N", "yes", "1e5", "-.5E3", "1_0", "nan", "2020-01-01", "0x1F", "", "a: b", "ε\n"]
    again = ["é"]
    config = {
        "words": {word: word for word in words}, "numbers": [1e-5, 1e20, 3, math.inf, None, True],
        "long": "word " * 40, "empty": [{}, []], "twice": [again, again],
    }  # fmt: skip
    folder = RunFolder(tmp_path)
    store_config(folder, config)
    head = {"format": FORMAT, "fedsink": __version__}
    assert folder.config.read_text() == OmegaConf.to_yaml(OmegaConf.create(head | config))
    assert stored_config(folder) == config
    plain = "a: [1e-5, 1E6, 1_0e5, -2.5e3, 2020-01-01, 1:30, y, 017, .inf, 1e, e5]\n"
    folder.config.write_text(plain)
    assert stored_config(folder) == OmegaConf.to_container(OmegaConf.create(plain))


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\na: 2",
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
def test_a_received_configuration_shows_nothing_of_this_machine(tmp_path, text):
    folder = RunFolder(tmp_path)
    folder.config.write_text(text)
    with pytest.raises(
        CheckpointError, match=r"config\.yaml (cannot be read|is not a run's)"
    ) as no:
        stored_config(folder)
    assert str(Path.home()) not in str(no.value).replace(str(tmp_path), "")


def test_rounds_after_a_checkpoint_are_forgotten(tmp_path):
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


def test_a_run_has_ended_when_its_final_metrics_are_written(tmp_path):
    folder = RunFolder(tmp_path)
    assert not folder.finished
    folder.write(folder.metrics, {"rounds": 3})
    assert folder.finished
    assert json.loads(folder.metrics.read_text()) == {"rounds": 3}


@pytest.mark.parametrize(
    "name", ["run", "a run", "l'été", '"b"', "$HOME", "a,b", "[c]", "a\nb", "`d`", "#"]
)
def test_a_command_for_a_folder_is_pasted_as_it_is_printed(name):
    line = command_for("report", "run", Path("/runs") / name)
    told = subprocess.run(["bash", "-c", f"printf '%s|' {line}"], capture_output=True, text=True)
    program, *others = told.stdout.split("|")
    assert others == ["report", f"run=/runs/{name}", ""]
    assert Path(program).name == "fedsink"


def test_a_printed_command_works_in_a_fresh_shell(tmp_path, monkeypatch):
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


def test_sums_are_those_of_coreutils_and_others_stay(tmp_path):
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
def test_damaged_sums_are_refused(tmp_path, text):
    (tmp_path / SUMS).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CheckpointError, match=r"is no SHA-256 of one of privacy\.json"):
        read_sums(tmp_path)


@pytest.mark.parametrize(
    "name", ["samples", "checkpoint/state.safetensors", "metrics.jsonl", "start"]
)
def test_a_link_below_a_run_is_refused(tmp_path, name):
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


@pytest.fixture
def begun(tmp_path: Path) -> RunFolder:
    """The folder of a run that has begun and got no further."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    store_config(folder, {"mode": "central"})
    return folder


def test_a_run_that_has_just_begun_has_nothing_to_say_yet(begun):
    run = RecordedRun.of(begun.path)
    assert run.config == {"mode": "central"}
    assert not run.finished
    assert (run.privacy, run.result, run.failure) == (None, None, None)
    assert (run.rounds, run.pictures, run.evaluations) == ((), {}, {})


def test_everything_that_a_run_leaves_is_read(begun):
    begun.write(begun.privacy, {"epsilon": 1.0})
    begun.write(begun.metrics, {"rounds": 2})
    begun.write(begun.failed, {"message": "Lost.", "exit_code": 1})
    for number in (1, 2):
        begun.log({"round": number, "loss": 0.5})
    begun.write(begun.path / "evaluation.json", {"n": 20})
    begun.write(begun.path / "evaluation-full-published.json", {"n": 30})
    for name in ("round-000010.png", "round-1000000.png", "round-000002.png", "other.png"):
        (begun.samples / name).touch()

    run = RecordedRun.of(str(begun.path))
    assert run.finished
    assert run.privacy == {"epsilon": 1.0}
    assert run.result == {"rounds": 2}
    assert run.failure == {"message": "Lost.", "exit_code": 1}
    assert [record["round"] for record in run.rounds] == [1, 2]
    assert run.evaluations == {"evaluation": {"n": 20}, "evaluation-full-published": {"n": 30}}
    assert list(run.pictures) == [2, 10, 1000000]
    assert run.pictures[10].name == "round-000010.png"


@pytest.mark.parametrize("torn", ['{"round": 3, "lo', '{"round": 3}'])
def test_a_line_that_is_not_whole_yet_is_left_out(begun, torn):
    begun.log({"round": 1})
    begun.log({"round": 2})
    with begun.metrics_lines.open("a") as file:
        file.write(torn)
    assert [record["round"] for record in RecordedRun.of(begun.path).rounds] == [1, 2]


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("privacy.json", lambda run: run.privacy),
        ("metrics.json", lambda run: run.result),
        ("failed.json", lambda run: run.failure),
        ("evaluation-paper.json", lambda run: run.evaluations),
        ("metrics.jsonl", lambda run: run.rounds),
    ],
)
@pytest.mark.parametrize("content", ["{", "[1]\n", "\xff\xfe\n", '{"a": 1}}\n', "[" * 100000])
def test_a_damaged_file_is_named(begun, name, read, content):
    (begun.path / name).write_bytes(content.encode("latin-1") + b"\n")
    with pytest.raises(CheckpointError, match=rf"{name} is damaged.*restore the file"):
        read(RecordedRun.of(begun.path))


def test_damage_in_one_file_hides_no_other(begun):
    begun.privacy.write_text("{")
    begun.write(begun.metrics, {"rounds": 2})
    assert RecordedRun.of(begun.path).result == {"rounds": 2}


def test_a_study_of_an_earlier_version_is_refused(begun):
    store_config(begun, {"study": {"name": "debugging"}, "plan": {"runs": {"a": {}, "b": {}}}})
    with pytest.raises(CheckpointError, match="holds a study of an earlier version: name the fold"):
        _ = RecordedRun.of(begun.path).config
    store_config(begun, {"mode": "central", "study": None})
    assert RecordedRun.of(begun.path).config == {"mode": "central"}


def test_links_are_not_followed(begun):
    secret = begun.path.parent / "secret"
    secret.write_text('{"epsilon": 1}')
    for path in (begun.privacy, begun.metrics, begun.metrics_lines, begun.path / "evaluation.json"):
        path.unlink(missing_ok=True)
        path.symlink_to(secret)
    (begun.samples / "round-000001.png").symlink_to(secret)
    run = RecordedRun.of(begun.path)
    assert (run.privacy, run.result, run.rounds) == (None, None, ())
    assert (run.pictures, run.evaluations) == ({}, {})
    begun.samples.rename(begun.path.parent / "elsewhere")
    (begun.path.parent / "elsewhere" / "round-000002.png").touch()
    begun.samples.symlink_to(begun.path.parent / "elsewhere")
    assert RecordedRun.of(begun.path).pictures == {}
    begun.config.rename(begun.path.parent / "config.yaml")
    begun.config.symlink_to(begun.path.parent / "config.yaml")
    with pytest.raises(CheckpointError, match="holds no fedsink run"):
        RecordedRun.of(begun.path)


def test_the_home_folder_has_its_usual_name(begun, monkeypatch):
    monkeypatch.setenv("HOME", str(begun.path.parent))
    assert RecordedRun.of("~/run").folder.path == begun.path.resolve()


@pytest.mark.parametrize(
    ("privacy", "config", "told"),
    [
        ({"epsilon": 9.995, "delta": 1e-5}, {"eps": 10.0}, []),
        ({"epsilon": 9.995, "delta": 6.9e-4}, {"eps": 10.0}, []),
        (
            {"epsilon": 9.995, "delta": 1 / 1437},
            {"eps": 10.0},
            ["no less than one record in 1,437"],
        ),
        ({"epsilon": 0.0, "delta": 0.9}, {"eps": 10.0}, ["no less than", "ε = 0 does not say"]),
        ({"epsilon": 0.0, "delta": 1e-5}, {"eps": None}, ["probability δ = 1e-05"]),
        ({"epsilon": 0.4, "delta": 1e-5}, {"eps": 1}, ["ε = 0.4 is far below eps=1, which"]),
        ({"epsilon": 0.6, "delta": 1e-5}, {"eps": 1}, []),
        ({"epsilon": 3.0, "delta": 0.0}, {"eps": 3.0}, []),
        ({"epsilon": 3.0, "delta": 1e-5}, {"eps": math.inf}, []),
        ({"epsilon": None, "delta": None}, {"eps": math.inf}, []),
        ({}, {}, []),
        ({"epsilon": "0", "delta": [1]}, {"eps": "x", "data": 3}, []),
    ],
)
def test_a_promise_that_reads_better_than_it_is_has_a_caution(privacy, config, told):
    found = cautions(privacy, {"data": {"nominal_records": 1437}, **config})
    assert len(found) == len(told)
    assert all(words in line for words, line in zip(told, found, strict=True))
