"""`fedsink deploy` without a network: what it checks, and what it makes of Flower's answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsink.cli import main

ROOT = Path(__file__).resolve().parent.parent.parent
KEYS = ("clients=2", "rounds=20", "eps=5")

# Stands for the flwr command: a SuperLink cannot be had in seconds (tests/deploy has a real one).
# It reads the run configuration that it is given and then does what OUTCOME says.
_FLWR = """#!{python}
import json, os, sys, time, tomllib
from pathlib import Path
asked = sys.argv[1:]
with open(os.environ["ASKED"], "a") as file:
    file.write(json.dumps(asked) + "\\n")
if asked[0] == "list":
    print('{{"runs": [{{"status": "finished:failed"}}]}}')
if asked[0] == "run":
    if os.environ["OUTCOME"] == "unreachable":
        sys.exit("\\x1b[91mConnection refused\\x1b[0m")
    config = tomllib.loads(Path(asked[asked.index("-c") + 1]).read_text())
    folder = Path(config["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    print("Successfully started run 4711", flush=True)
    print("INFO: noise of Flower's own\\nDP-Sinkhorn  round 20/20  loss 1", flush=True)
    outcome = os.environ["OUTCOME"]
    if outcome == "finished":
        (folder / "metrics.json").write_text(json.dumps(config))
    if outcome == "failed":
        told = {{"message": "client 1 refused the request.", "exit_code": 1}}
        (folder / "failed.json").write_text(json.dumps(told))
    if outcome == "running":
        time.sleep(60)
"""


@pytest.fixture
def flwr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command above, found in place of Flower's; returns the file of what it was asked."""
    command = tmp_path / "bin" / "flwr"
    command.parent.mkdir()
    command.write_text(_FLWR.format(python=sys.executable))
    command.chmod(0o755)
    monkeypatch.setattr("fedsink.commands.flower._flwr", lambda: str(command))
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    return tmp_path / "asked"


def deploy(*keys: str, app: Path = ROOT / "deploy") -> int:
    with pytest.raises(SystemExit) as ended:
        main(["deploy", f"app={app}", "superlink=lab", *keys])
    return int(str(ended.value.code))


def asked(flwr: Path) -> list[list[str]]:
    return [json.loads(line) for line in flwr.read_text().splitlines()]


def test_a_finished_run_prints_its_folder_last(
    flwr: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUTCOME", "finished")
    folder = tmp_path / "run"
    assert deploy(*KEYS, f"folder={folder}") == 0
    out, err = capsys.readouterr()
    assert out == f"{folder}\n"
    assert err == "DP-Sinkhorn  round 20/20  loss 1\n"  # and nothing of Flower's
    submitted = json.loads((folder / "metrics.json").read_text())
    assert submitted["folder"] == str(folder)
    assert json.loads(submitted["overrides"]) == list(KEYS)
    assert submitted["resume"] is False
    (words,) = asked(flwr)
    assert words[:3] == ["run", str(ROOT / "deploy"), "lab"]
    assert words[-1] == "--stream"


def test_a_failed_run_exits_with_the_servers_sentence(
    flwr: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """flwr run itself exits with 0."""
    monkeypatch.setenv("OUTCOME", "failed")
    assert deploy(*KEYS, f"folder={tmp_path / 'run'}") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == "fedsink: client 1 refused the request."


def test_a_run_that_left_no_word_is_not_taken_for_a_success(
    flwr: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUTCOME", "silent")
    assert deploy(*KEYS, f"folder={tmp_path / 'run'}") == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert "run 4711 ended as finished:failed and left no word" in message
    assert "flwr log 4711 lab" in message


def test_a_superlink_that_cannot_be_reached_is_named(
    flwr: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUTCOME", "unreachable")
    assert deploy(*KEYS, f"folder={tmp_path / 'run'}") == 1
    message = capsys.readouterr().err
    assert "superlink=lab: Connection refused" in message
    assert "\x1b" not in message


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("eps=0",), "eps must be a finite number > 0, received 0."),
        (("epss=3",), "Unknown key 'epss'. Did you mean eps?"),
        (("seed=1",), "takes no seed=1: every node draws noise of its own"),
        (("data.root=x",), "the server sees no data"),
        (("engine=ray",), "runs on real nodes: leave out engine=ray"),
        (("generator.hidden=x",), "generator=dct_mlp cannot be built"),
    ],
)
def test_bad_input_is_refused_before_anything_is_submitted(
    flwr: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    keys: tuple[str, ...], message: str,
) -> None:  # fmt: skip
    assert deploy(*KEYS, *keys, f"folder={tmp_path / 'run'}") == 2
    assert message in capsys.readouterr().err
    assert not flwr.exists()
    assert not (tmp_path / "run").exists()


def test_a_taken_folder_and_a_finished_run_are_refused(
    flwr: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("config.yaml", "metrics.json"):
        (tmp_path / name).write_text("{}")
    assert deploy(*KEYS, f"folder={tmp_path}") == 2
    assert "is not an empty folder" in capsys.readouterr().err
    assert deploy(f"resume={tmp_path}") == 2
    assert "has ended: there is nothing to resume" in capsys.readouterr().err
    assert not flwr.exists()


def test_a_stopped_run_is_submitted_again_without_its_configuration(
    flwr: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUTCOME", "finished")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("mode: central\n")
    assert deploy(f"resume={folder}") == 0
    submitted = json.loads((folder / "metrics.json").read_text())
    assert (submitted["resume"], json.loads(submitted["overrides"])) == (True, [])


_INTERRUPTED = """
import sys
import fedsink.commands.flower
from fedsink.cli import main
flwr = sys.argv[-1]
fedsink.commands.flower._flwr = lambda: flwr
main(sys.argv[1:-1])
"""


def test_ctrl_c_stops_the_run_and_says_so(flwr: Path, tmp_path: Path) -> None:
    command = tmp_path / "bin" / "flwr"
    folder = tmp_path / "run"
    words = ["deploy", f"app={ROOT / 'deploy'}", "superlink=lab", *KEYS, f"folder={folder}"]
    process = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED, *words, str(command)],
        env={**os.environ, "OUTCOME": "running"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not folder.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "fedsink: run 4711 was stopped." in err
    assert f"resume={folder}" in err
    assert asked(flwr)[-1] == ["stop", "4711", "lab"]


def test_help_says_what_is_the_owners(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["deploy", "--help"])
    assert ended.value.code == 0
    assert "data.root, seed" in capsys.readouterr().out
