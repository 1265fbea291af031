"""What fedsink computed, wrote and refused when it was recorded, it does today."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from . import frozen

EPSILON, RUNS, FILES, ERRORS = map(frozen.read, ("epsilon", "runs", "files", "errors"))
PROMISES = frozen.read("promises")
RECORDED_ON = RUNS.pop("machine")
WITHOUT_A_RUN = ("account", "fetch", "ledger", "node", "operator")
"""Commands whose refusals take no run, and compose no configuration."""


def told(what: str, before: Any, now: Any, equal: Callable[[Any, Any], bool]) -> list[str]:
    """Returns a line for each value that has moved: which setting, frozen value, today's value."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [*before, *(key for key in now if key not in before)]
        lacking = "nothing"
        return [
            line
            for key in keys
            for line in told(
                f"{what}, {key}", before.get(key, lacking), now.get(key, lacking), equal
            )
        ]
    return [] if equal(before, now) else [f"{what}: {before} when frozen, {now} today"]


def same(before: Any, now: Any) -> bool:
    """Tells whether values are equal, numbers up to 1e-6 of them: account prints six digits."""
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return all(map(same, before, now))
    number = isinstance(before, float) and isinstance(now, float | int)
    return bool(now == pytest.approx(before, rel=1e-6) if number else before == now)


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(g, marks=() if g in ("local", "critics") else pytest.mark.medium)
        for g in EPSILON
    ],
)
def test_no_epsilon_has_moved(group: str, tmp_path: Path) -> None:
    """No ε may rise unexplained, nor may a σ fall or a rate or number of rounds rise."""
    today = {line: frozen.account(line, tmp_path) for line in EPSILON[group]}
    moved = told("fedsink account", EPSILON[group], today, same)
    assert not moved, "\n".join(moved)


def close(before: Any, now: Any, room: float) -> bool:
    """Fingerprints are equal: by their hash on the machine that recorded, elsewhere by their sums.

    PyTorch's kernels without AVX2 stay within 1e-6, but for weights of mode=ldp: where the gradient
    of a bias before a normalisation is nothing but rounding, Adam still takes its whole step, and
    5e-4 were seen. If every value is off by a share e of itself, sums move by at most e·√(n·Σx²).
    """
    count, total, squares, digest = before
    if frozen.machine() == RECORDED_ON:
        return bool(digest == now[3])
    return bool(
        count == now[0]
        and abs(total - now[1]) <= room * (count * squares) ** 0.5
        and abs(squares - now[2]) <= room * squares
    )


def compared(name: str, today: frozen.Frozen, parts: Sequence[str]) -> None:
    """Fails with a line for each value of a run that has moved."""
    what = f"fedsink {frozen.simulate_line(RUNS[name]['keys'])}"
    moved = told(what, frozen.scattered(PROMISES, name), today["promise"], same)
    for part in parts:
        room = 2e-3 if part == "generator" and "mode=ldp" in what else 1e-6
        if part in RUNS[name]:
            moved += told(
                f"{what}: {part}", RUNS[name][part], today[part], partial(close, room=room)
            )
    assert not moved, "\n".join(moved)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n == "record" else pytest.mark.medium) for n in RUNS],
)
def test_a_run_answers_learns_promises_and_leaves_the_same(name: str, tmp_path: Path) -> None:
    compared(name, frozen.run_of(RUNS[name]["keys"], tmp_path), ("replies", "generator"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["record", "gs_wgan", "ldp-laplace"])
def test_ray_changes_nothing(name: str, tmp_path: Path) -> None:
    keys = f"{RUNS[name]['keys']} engine=ray engine.actors=2"
    compared(name, frozen.run_of(keys, tmp_path), ("replies", "generator"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["record", "ldp-laplace"])
def test_flowers_own_simulation_changes_nothing(name: str, tmp_path: Path) -> None:
    """Its replies come one by one, where other engines have sums."""
    compared(name, frozen.run_of(f"{RUNS[name]['keys']} engine=flower", tmp_path), ("generator",))


@pytest.mark.medium
def test_the_commands_write_the_same_files(tmp_path: Path) -> None:
    today = frozen.written(list(FILES), frozen.prepare(tmp_path, with_run=False))
    moved = told("fedsink", FILES, today, same)
    assert not moved, "\n".join(moved)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(c, marks=() if c in WITHOUT_A_RUN else pytest.mark.medium)
        for c in sorted({line.split()[0] for line in ERRORS})
    ],
)
def test_wrong_input_is_refused_in_a_sentence_that_names_it(command: str, tmp_path: Path) -> None:
    frozen.prepare(tmp_path, with_run=command not in WITHOUT_A_RUN)
    found = []
    for line, (code, *words) in ERRORS.items():
        if line.split()[0] == command:
            now, faults = frozen.refused(line, words, tmp_path)
            found += told(f"fedsink {line}: exit code", code, now, same)
            found += [f"fedsink {line}: {fault}" for fault in faults]
    assert not found, "\n".join(found)
