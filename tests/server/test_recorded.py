from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsink.errors import CheckpointError
from fedsink.server.folder import RecordedRun, RunFolder, cautions, store_config


@pytest.fixture
def begun(tmp_path: Path) -> RunFolder:
    """The folder of a run that has begun and got no further."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    store_config(folder, {"mode": "central"})
    return folder


def test_a_run_that_has_just_begun_has_nothing_to_say_yet(begun: RunFolder) -> None:
    run = RecordedRun.of(begun.path)
    assert run.config == {"mode": "central"}
    assert not run.finished
    assert (run.privacy, run.result, run.failure) == (None, None, None)
    assert (run.rounds, run.pictures, run.evaluations) == ((), {}, {})


def test_everything_that_a_run_leaves_is_read(begun: RunFolder) -> None:
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
def test_a_line_that_is_not_whole_yet_is_left_out(begun: RunFolder, torn: str) -> None:
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
def test_a_damaged_file_is_named(
    begun: RunFolder, name: str, read: Callable[[RecordedRun], Any], content: str
) -> None:
    (begun.path / name).write_bytes(content.encode("latin-1") + b"\n")
    with pytest.raises(CheckpointError, match=rf"{name} is damaged.*restore the file"):
        read(RecordedRun.of(begun.path))


def test_damage_in_one_file_hides_no_other(begun: RunFolder) -> None:
    begun.privacy.write_text("{")
    begun.write(begun.metrics, {"rounds": 2})
    assert RecordedRun.of(begun.path).result == {"rounds": 2}


def test_a_study_of_an_earlier_version_is_refused(begun: RunFolder) -> None:
    store_config(begun, {"study": {"name": "debugging"}, "plan": {"runs": {"a": {}, "b": {}}}})
    with pytest.raises(CheckpointError, match="holds a study of an earlier version: name the fold"):
        _ = RecordedRun.of(begun.path).config
    store_config(begun, {"mode": "central", "study": None})
    assert RecordedRun.of(begun.path).config == {"mode": "central"}


def test_links_are_not_followed(begun: RunFolder) -> None:
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


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "privacy.json").write_text(json.dumps({}))
    with pytest.raises(CheckpointError, match="holds no fedsink run"):
        RecordedRun.of(tmp_path)


def test_the_home_folder_has_its_usual_name(
    begun: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_a_promise_that_reads_better_than_it_is_has_a_caution(
    privacy: dict[str, Any], config: dict[str, Any], told: list[str]
) -> None:
    found = cautions(privacy, {"data": {"nominal_records": 1437}, **config})
    assert len(found) == len(told)
    assert all(words in line for words, line in zip(told, found, strict=True))
