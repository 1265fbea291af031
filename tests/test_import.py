"""The import of fedsink, and nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fedsink


def test_it_is_light() -> None:
    code = (
        "import sys, fedsink\n"
        "assert 'simulate' in dir(fedsink)\n"
        "heavy = {'torch', 'hydra', 'omegaconf', 'numpy', 'flwr', 'ray', 'fedsink.api'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"


def test_it_lists_no_internals() -> None:
    names = [name for name in dir(fedsink) if not name.startswith("__")]
    assert names == ["Run", "load", "resume", "simulate"]


def test_every_name_is_there_and_others_are_not() -> None:
    for name in fedsink.__all__:
        assert getattr(fedsink, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'simulat'"):
        _ = fedsink.simulat  # type: ignore[attr-defined]
