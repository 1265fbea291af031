"""`fedsink deploy` without a network: its checks, and its reading of Flower's answers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsink.commands.cli import main

ROOT = Path(__file__).resolve().parent.parent.parent
KEYS = ("clients=2", "rounds=20", "eps=5")

# Stands for the flwr command: a SuperLink cannot be had in seconds (tests/deploy has a real one).
# The command reads the run configuration that it is given and then does what OUTCOME says.
_FLWR = """#!{python}
import json, os, sys, time, tomllib
from pathlib import Path
from fedsink.deployment.results import frames
asked = sys.argv[1:]
with open(os.environ["ASKED"], "a") as file:
    file.write(json.dumps(asked) + "\\n")
if asked[0] == "list":
    status = "pending" if os.environ["OUTCOME"] == "pending" else "finished:failed"
    print(json.dumps({{"runs": [{{"status": status}}]}}))
if asked[0] == "run":
    if os.environ["OUTCOME"] == "unreachable":
        sys.exit("\\x1b[91mConnection refused\\x1b[0m")
    config = tomllib.loads(Path(asked[asked.index("-c") + 1]).read_text())
    Path(os.environ["SUBMITTED"]).write_text(json.dumps(config))
    print("Successfully started run 4711", flush=True)
    print("INFO: noise of Flower's own\\nDP-Sinkhorn  round 20/20  loss 1", flush=True)
    outcome, results = os.environ["OUTCOME"], None
    if outcome in ("finished", "torn"):
        files = {{"metrics.json": b"x" * 100_000, "config.yaml": b"{{report: {{html: false}}}}"}}
        results = files
    if outcome == "failed":
        told = {{"message": "client 1 refused the request.", "exit_code": 1}}
        results = {{"failed.json": json.dumps(told).encode()}}
    if results is not None:
        for frame in list(frames(results))[: 1 if outcome == "torn" else None]:
            print(frame, flush=True)
    if outcome in ("running", "pending"):
        time.sleep(60)
"""


@pytest.fixture
def flwr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the command above in place of Flower's. Returns the file that records its arguments."""
    command = tmp_path / "bin" / "flwr"
    command.parent.mkdir()
    command.write_text(_FLWR.format(python=sys.executable))
    command.chmod(0o755)
    monkeypatch.setattr("fedsink.deployment.submission._flwr", lambda: str(command))
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    monkeypatch.setenv("SUBMITTED", str(tmp_path / "submitted"))
    return tmp_path / "asked"


def run(command: str, *keys: str, app: Path = ROOT / "deploy") -> int:
    with pytest.raises(SystemExit) as ended:
        main([command, f"app={app}", "superlink=lab", *keys])
    return int(str(ended.value.code))


def deploy(*keys: str) -> int:
    return run("deploy", *keys)


def submitted(flwr: Path) -> dict[str, str]:
    content: dict[str, str] = json.loads(flwr.with_name("submitted").read_text())
    return content


def asked(flwr: Path) -> list[list[str]]:
    return [json.loads(line) for line in flwr.read_text().splitlines()]


@pytest.mark.medium
def test_a_finished_run_prints_its_folder_last(
    flwr: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUTCOME", "finished")
    folder = tmp_path / "run"
    assert deploy(*KEYS, f"folder={folder}", "name=trial") == 0
    out, err = capsys.readouterr()
    assert out == f"{folder}\n"
    promise, rest = err.split("\n", 1)
    assert re.fullmatch(
        r"ε = \S+, δ = 1e-05 per record; it counts on a secret, .* ε = \S+", promise
    )
    assert rest == "run trial\nDP-Sinkhorn  round 20/20  loss 1\n"  # and nothing of Flower's
    assert (folder / "metrics.json").read_bytes() == b"x" * 100_000
    assert (submitted(flwr)["name"], submitted(flwr)["action"]) == ("trial", "run")
    config = json.loads(submitted(flwr)["config"])
    assert (config["clients"], config["rounds"], config["eps"]) == (2, 20, 5)
    assert str(tmp_path) not in json.dumps(submitted(flwr))  # no path of the submitter's
    (words,) = asked(flwr)
    assert words[:3] == ["run", str(ROOT / "deploy"), "lab"]
    assert words[-1] == "--stream"


@pytest.mark.slow
def test_results_that_do_not_arrive_whole_leave_nothing(
    flwr: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUTCOME", "torn")
    assert deploy(*KEYS, f"folder={tmp_path / 'runs' / 'run'}", "name=trial") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "did not arrive whole (1 of 3 frames)" in err
    assert "fedsink fetch run=trial" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_run_is_fetched_by_its_name(
    flwr: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUTCOME", "finished")
    monkeypatch.chdir(tmp_path)
    assert run("fetch", "run=trial") == 0
    folder = tmp_path / "runs" / "trial"
    assert capsys.readouterr().out == f"{folder}\n"
    assert (folder / "metrics.json").is_file()
    assert submitted(flwr) == {"action": "fetch", "name": "trial", "config": "{}"}
    assert run("fetch", "run=trial") == 2
    assert "is not an empty folder: give another folder=" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["deploy", "fetch"])
@pytest.mark.parametrize("name", ["../trial", "/tmp/trial", "a b", "."])
def test_a_name_that_is_a_path_is_refused(
    flwr: Path, capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    assert run(command, f"{'name' if command == 'deploy' else 'run'}={name}") == 2
    assert "A run's name is 1 to 100 of" in capsys.readouterr().err
    assert not flwr.exists()


FAILURES = {
    "failed": ("\nfedsink: client 1 refused the request.\n",),  # flwr run itself exits with 0
    "unreachable": ("superlink=lab: Connection refused",),
    "silent": ("run 4711 ended without results (its status is finished:failed)", "log 4711 lab"),
    "torn": ("did not arrive whole (1 of 3 frames)", "fedsink fetch run=trial"),
}


@pytest.mark.medium
@pytest.mark.quick("failed", "unreachable")
@pytest.mark.parametrize("outcome", FAILURES)
def test_a_run_that_fails_is_exit_1_and_a_sentence_and_leaves_nothing(
    flwr: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    outcome: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("OUTCOME", outcome)
    assert deploy(*KEYS, f"folder={tmp_path / 'runs' / 'run'}", "name=trial") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "\x1b" not in err
    assert all(words in err for words in FAILURES[outcome])
    assert not (tmp_path / "runs").exists()


@pytest.mark.medium
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("eps=0",), "eps must be a finite number > 0, received 0."),
        (("epss=3",), "Unknown key 'epss'. Did you mean eps?"),
        (("seed=1",), "takes no seed=1: every node draws its own noise"),
        (("data.root=x",), "the server sees no data"),
        (("engine=ray",), "runs on real nodes: leave out engine=ray"),
        (("generator.hidden=x",), "dct_mlp needs whole sizes from 1 to"),
    ],
)
def test_bad_input_is_refused_before_anything_is_submitted(
    flwr: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    keys: tuple[str, ...], message: str,
) -> None:  # fmt: skip
    names = {key.partition("=")[0] for key in keys}
    rest = [key for key in KEYS if key.partition("=")[0] not in names]
    assert deploy(*rest, *keys, f"folder={tmp_path / 'run'}") == 2
    assert message in capsys.readouterr().err
    assert not flwr.exists()
    assert not (tmp_path / "run").exists()


def test_a_taken_folder_is_refused(
    flwr: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics.json").write_text("{}")
    for keys in (KEYS, ("resume=trial",)):
        assert deploy(*keys, f"folder={tmp_path}") == 2
        assert "is not an empty folder" in capsys.readouterr().err
    assert not flwr.exists()


def test_a_stopped_run_is_submitted_again_without_its_configuration(
    flwr: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUTCOME", "finished")
    assert deploy("resume=trial", f"folder={tmp_path / 'run'}") == 0
    assert submitted(flwr) == {"action": "resume", "name": "trial", "config": "{}"}
    assert deploy("resume=trial", "eps=3") == 2
    assert "the configuration that the server has stored: leave out eps=3" in (
        capsys.readouterr().err
    )


_INTERRUPTED = """
import sys
import fedsink.deployment.submission
from fedsink.commands.cli import main
flwr = sys.argv[-1]
fedsink.deployment.submission._PENDING = 0.1
fedsink.deployment.submission._flwr = lambda: flwr
main(sys.argv[1:-1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("outcome", ["running", "pending"])
def test_whoever_stops_the_command_stops_the_run_and_hears_why_it_waited(
    flwr: Path, tmp_path: Path, outcome: str, number: signal.Signals
) -> None:
    command = tmp_path / "bin" / "flwr"
    folder = tmp_path / "run"
    words = [
        "deploy",
        f"app={ROOT / 'deploy'}",
        "superlink=lab",
        *KEYS,
        f"folder={folder}",
        "name=trial",
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED, *words, str(command)],
        env={**os.environ, "OUTCOME": outcome, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not flwr.with_name("submitted").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    while ["list"] not in [words[:1] for words in asked(flwr)] and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "fedsink: run 4711 was stopped." in err
    assert "resume=trial" in err
    assert not folder.exists()
    assert asked(flwr)[-1] == ["stop", "4711", "lab"]
    assert ("run 4711 is pending since" in err) == (outcome == "pending")
    assert not list(tmp_path.glob("fedsink-deploy-*"))
