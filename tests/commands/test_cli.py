"""The command line itself: its output, its imports, its completion in the shell."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedsink import __version__
from fedsink.commands import ALONE, COMMANDS, NEEDS
from fedsink.commands.cli import main, usage
from fedsink.errors import CheckpointError, ClientError, ConfigError, FedsinkError
from fedsink.server.loop import InterruptedRunError

from .conftest import FEDSINK, Command, run_many


def _main(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code


def test_help_and_version(fedsink: Command, tmp_path: Path) -> None:
    shown = fedsink("--help", cwd=tmp_path)
    assert shown.code == 0
    assert all(f"  {name} " in shown.out for name in COMMANDS)
    assert fedsink("--version", cwd=tmp_path).out == f"fedsink {__version__}\n"


@pytest.mark.parametrize(
    ("absent", "start"),
    [(("hydra", "matplotlib"), "node"), (("hydra", "matplotlib", "flwr"), "account")],
)
def test_help_marks_what_fedsink_core_lacks(
    monkeypatch: pytest.MonkeyPatch, absent: tuple[str, ...], start: str
) -> None:
    assert "\n *" not in usage()
    monkeypatch.setattr(
        "fedsink.commands.cli.find_spec", lambda name: None if name in absent else name
    )
    marked = [name for name in COMMANDS if f"\n *{name} " in usage()]
    assert marked == [name for name in COMMANDS if NEEDS.get(name) in absent]
    assert "\n *needs more than fedsink-core, which is installed here, and says what\n" in usage()
    started = [line for line in usage().splitlines() if line.startswith(("Start", "Completion"))]
    assert started == [f"Start with:  fedsink {start} --help"]


def test_no_command_is_help_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert _main() == 2
    assert "Usage: fedsink COMMAND" in capsys.readouterr().out


_WORDS = {
    "simulate": ("Examples:", "mode: central, ldp", "fedsink simulate mode=ldp mechanism=laplace"),
    "deploy": ("data.clients_file, seed",),
    "account": ("  fedsink account rate=", "  fedsink account mechanism="),
    "audit": ("Example: fedsink audit mode=central",),
    "compare": ("run=[A,B,…]", "out=compare.html", "run=FOLDER"),
    "report": ("Usage: fedsink report run=DIR",),
}


@pytest.mark.medium
def test_every_command_explains_itself(tmp_path: Path) -> None:
    bare = [command for command in COMMANDS if command not in ALONE]
    lines = [*([command, "--help"] for command in COMMANDS), *([command] for command in bare)]
    outcomes = run_many([(tmp_path, line) for line in lines])
    helped = dict(zip(COMMANDS, outcomes, strict=False))
    assert outcomes[len(COMMANDS) :] == [helped[command] for command in bare]
    for command, outcome in helped.items():
        assert (outcome.code, outcome.err, outcome.left) == (0, "", ())
        assert max(map(len, outcome.out.splitlines())) <= 100
        for word in (f"fedsink {command}", *_WORDS.get(command, ())):
            assert word in outcome.out


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["nothing"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys\nfrom fedsink.commands.cli import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'hydra', 'flwr', 'ray', 'numpy', 'omegaconf'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8", "utf-16"])
@pytest.mark.parametrize(
    "arguments", [["--help"], ["account", "--help"], ["ε"], ["verify", "run=ε"]]
)
def test_an_encoding_without_greek_is_no_defect(arguments: list[str], encoding: str) -> None:
    """What the stream cannot say is replaced, in what is printed and in errors."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding, "strict") for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        code = _main(*arguments)
        out, err = (_read(stream) for stream in streams)
    assert code == (0 if "--help" in arguments else 2)
    assert "defect" not in err
    mark = "ε" if encoding.startswith("utf") else "?"
    assert mark in (out if "--help" in arguments[1:] else err + mark * (code == 0))


def _read(stream: io.TextIOWrapper) -> str:
    stream.flush()
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode(stream.encoding)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("bad"), 2),
        (CheckpointError("bad"), 2),
        (FedsinkError("bad"), 2),
        (ClientError("bad"), 1),
        (InterruptedRunError("Stopped.", "more"), 130),
        (OSError(28, "No space left on device", "/x"), 1),
        (RuntimeError("odd"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(
    error: BaseException,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(*arguments: object, **more: object) -> int:
        raise error

    monkeypatch.setattr("fedsink.commands.account.run", fails)
    assert _main("account", "x") == code
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert "fedsink: " in err
    if isinstance(error, OSError):
        assert err == "fedsink: /x: No space left on device.\n"
    if isinstance(error, RuntimeError):
        assert "RuntimeError: odd" in err
        assert "--debug" in err
    if not isinstance(error, KeyboardInterrupt):
        with pytest.raises(type(error)):
            main(["account", "x", "--debug"])


@pytest.mark.quick("arguments0-")
@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [
        (["--help"], ""),
        (["--help"], "1"),
        (["account", "rate=0.2", "sigma=1.9", "rounds=3"], ""),
        pytest.param(["account", "rate=0.2", "sigma=1.9", "rounds=3"], "1", marks=pytest.mark.slow),
        pytest.param(["simulate", "--help"], "", marks=pytest.mark.slow),
        (["simulate", "--cfg", "job"], ""),
        (["--shell-completion", "install=bash"], "1"),
    ],
)
def test_a_reader_that_leaves_ends_a_command_quietly(
    arguments: list[str], unbuffered: str, tmp_path: Path
) -> None:
    """`fedsink … | head -0` exits with 128 + SIGPIPE and prints nothing."""
    process = subprocess.Popen(
        [str(FEDSINK), *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (141, b"")


@pytest.mark.slow
def test_errors_go_quietly_where_nobody_reads_them(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    for arguments in (["nothing"], ["account", "x"]):
        done = subprocess.run([str(FEDSINK), *arguments], stderr=writing, timeout=120)
        assert done.returncode == 141
    os.close(writing)


def test_another_broken_pipe_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A process that died under us is no reader of ours."""

    def fails(*arguments: object, **more: object) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("fedsink.commands.account.run", fails)
    assert _main("account", "x") == 1
    assert capfd.readouterr().err == "fedsink: Broken pipe.\n"


def _completions(folder: Path, *lines: str) -> list[list[str]]:
    """Completions that bash offers for each line, through the script of `install=bash`."""
    script = f"""
        PATH={FEDSINK.parent}:$PATH
        eval "$(fedsink --shell-completion install=bash)"
        for COMP_LINE in "$@"; do
            COMPREPLY=()
            COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=($COMP_LINE)
            COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
            hydra_bash_completion
            echo "${{COMPREPLY[@]}}"
        done
    """
    done = subprocess.run(
        ["bash", "-c", script, "bash", *lines],
        cwd=folder, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.medium
def test_bash_completes_commands_groups_and_choices(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    commands, groups, choices, nothing, words, certify = _completions(
        tmp_path / "here",
        "fedsink s", "fedsink simulate mo", "fedsink simulate mode=", "fedsink sample r",
        "fedsink ledger e", "fedsink node c",
    )  # fmt: skip
    assert commands == ["simulate", "suggest", "sample"]
    assert groups == ["mode="]
    assert {word.rpartition("=")[2] for word in choices} == {"central", "ldp"}
    assert nothing == []
    assert words == ["export"]
    assert certify == ["certify"]
