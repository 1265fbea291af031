from __future__ import annotations

import contextlib
import io
import itertools
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from fedsink.reporting.progress import Progress

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(total, seconds, *, stream=None, start_round=0, stop=None, **columns):
    """Runs `total` rounds of `seconds` each. Returns the lines printed."""
    stream = io.StringIO() if stream is None else stream
    clock = Clock()
    with Progress(total, "central", start_round=start_round, stream=stream, clock=clock) as bar:
        for number in range(start_round + 1, (stop or total) + 1):
            clock.now += seconds
            bar.update(number, **columns)
    return stream.getvalue().splitlines()


def rounds(lines):
    return [int(re.search(r"round (\d+)/", line)[1]) for line in lines]


def test_a_line_holds_round_columns_rate_and_time_left():
    lines = run(4, 2.0, loss=0.123456, ε=3.0, note="warm")
    assert lines[0] == "central  round 1/4  loss 0.1235  ε 3  note warm"
    assert lines[-1].endswith("round 4/4  loss 0.1235  ε 3  note warm  0 s left  0.5 rounds/s")


def test_the_first_round_is_not_in_the_rate():
    """It took 100 s, all others take 1 s."""
    stream, clock = Terminal(), Clock()
    with Progress(50, "central", stream=stream, clock=clock) as bar:
        for number in range(1, 11):
            clock.now += 100.0 if number == 1 else 1.0
            bar.update(number)
    shown = re.findall(r"round (\d+)/50([^\r\n\x1b]*)", stream.getvalue())
    times = {int(number): rest.strip() for number, rest in shown}
    assert times[1] == ""
    assert times[3] == "47 s left  1 rounds/s"
    assert times[10] == "40 s left  1 rounds/s"


def test_rounds_of_hours_have_a_rate():
    assert run(3, 7200.0)[1] == "central  round 2/3  2 h 0 min left  0.000139 rounds/s"


def test_a_quick_run_prints_a_tenth_at_a_time():
    assert rounds(run(1000, 0.001)) == [1, *range(101, 1000, 100), 1000]


def test_a_slow_run_prints_every_five_seconds_or_so():
    printed = rounds(run(10_000, 1.0, stop=60))
    assert printed == [1, *range(6, 60, 5), 60]


def test_a_long_run_keeps_a_short_log():
    printed = rounds(run(36_000, 1.0))
    assert len(printed) < 180
    assert printed[0] == 1
    assert printed[-1] == 36_000
    gaps = [b - a for a, b in itertools.pairwise(printed)]
    assert all(gap <= max(6, 0.06 * at) for gap, at in zip(gaps, printed[1:], strict=True))


def test_the_last_state_is_shown_even_when_the_run_is_cut_short():
    stream = io.StringIO()

    def interrupted():
        with Progress(100, "ldp", stream=stream) as bar:
            for number in (1, 2, 3):
                bar.update(number)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert rounds(stream.getvalue().splitlines()) == [1, 3]


def test_a_run_of_one_round_prints_one_line():
    assert rounds(run(1, 1.0)) == [1]


def test_nothing_is_printed_when_nothing_was_left_to_do():
    assert run(10, 1.0, start_round=10) == []


def test_a_resumed_run_counts_only_its_own_rounds():
    lines = run(100, 4.0, start_round=90)
    assert lines[0] == "central  round 91/100"
    assert lines[1] == "central  round 93/100  28 s left  0.25 rounds/s"


def test_writes_to_standard_error_by_default(capsys):
    with Progress(1, "central") as bar:
        bar.update(1)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "round 1/1" in captured.err


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


class BrokenTerminal(Broken):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Broken(), BrokenTerminal()])
def test_a_lost_stream_does_not_stop_the_run(stream, capsys):
    before = sys.stdout, sys.stderr
    with Progress(10, "central", stream=stream) as bar:
        for number in range(1, 11):
            bar.update(number)
    assert (sys.stdout, sys.stderr) == before
    print("runs/folder")
    assert capsys.readouterr().out == "runs/folder\n"


def test_a_terminal_gets_a_bar_and_its_cursor_back():
    stream = Terminal()
    run(20, 1.0, stream=stream, ε=2.5)
    output = stream.getvalue()
    assert output.count(HIDE) == output.count(SHOW) == 1
    assert output.index(HIDE) < output.index(SHOW)
    assert "round 20/20  ε 2.5" in output
    assert "5 s left" in output


def test_the_bar_starts_where_a_resumed_run_starts():
    """The resumed bar's first frame is already half full."""

    def first_frame(start_round):
        stream = Terminal()
        clock = Clock()
        with Progress(20, "central", start_round=start_round, stream=stream, clock=clock):
            pass
        return stream.getvalue()

    assert first_frame(10) != first_frame(0)


def test_the_bar_is_redrawn_ten_times_a_second_at_most():
    stream = Terminal()
    run(5000, 0.001, stream=stream)
    assert 40 <= stream.getvalue().count("round ") <= 60


def test_a_title_in_brackets_is_text(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with Progress(2, "[smoke]", stream=stream) as bar:
        bar.update(2)
    assert "[smoke]" in stream.getvalue()


@pytest.mark.medium
@pytest.mark.parametrize(
    ("width", "kept", "lost"),
    [
        (110, ("━", "13 min 20 s left  1 rounds/s"), ()),
        (78, ("ε ≤ 3.456", "13 min 20 s left  1 rounds/s"), ("━",)),
        (40, ("round 1200/2000  ε ≤ 3.456",), ("0.2346", "left", "━")),
        (26, ("round 1200/2000",), ("loss", "left", "━")),
    ],
)
def test_bar_and_end_of_the_line_give_way_on_a_narrow_terminal(width, kept, lost, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    stream = Terminal()
    run(2000, 1.0, stream=stream, stop=1200, **{"ε ≤": 3.456, "loss": 0.23456})
    frame = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue()).splitlines()[-1]
    frame = frame.rpartition("\r")[2].rstrip()
    assert len(frame) <= width
    for part in kept:
        assert part in frame
    for part in lost:
        assert part not in frame


def test_a_terminal_that_cannot_move_the_cursor_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    assert rounds(run(2, 1.0, stream=stream)) == [1, 2]
    assert "\x1b" not in stream.getvalue()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
def test_ctrl_c_on_a_real_terminal_restores_it_and_leaves_stdout_alone():
    import pty

    script = textwrap.dedent("""
        import time
        from fedsink.reporting.progress import Progress
        try:
            with Progress(1000, "central") as bar:
                for number in range(1, 200):
                    bar.update(number)
                    if number == 3:
                        print("ready", flush=True)
                    time.sleep(0.05)
        except KeyboardInterrupt:
            print("runs/folder")
    """)
    master, slave = pty.openpty()
    drawn: list[bytes] = []

    def drain() -> None:
        # Nobody reading would block the child as soon as the terminal's buffer is full.
        with contextlib.suppress(OSError):
            while part := os.read(master, 65536):
                drawn.append(part)

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        cwd=pathlib.Path(__file__).parents[2],
    )
    os.close(slave)
    try:
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    reader.join(timeout=10)
    os.close(master)
    shown = b"".join(drawn)
    assert first == b"ready\n"
    assert rest == b"runs/folder\n"
    assert process.returncode == 0
    assert shown.rindex(SHOW.encode()) > shown.rindex(HIDE.encode())
    assert b"/1000" in shown


@pytest.mark.slow
def test_importing_the_package_is_light():
    code = (
        "import sys, fedsink.reporting\n"
        "heavy = {'rich', 'PIL', 'matplotlib', 'sklearn', 'scipy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"


def test_a_standard_error_that_was_closed_before_the_program_began(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with Progress(2, "central") as progress:
        progress.update(1, loss=0.5)
        progress.update(2, loss=0.25)
