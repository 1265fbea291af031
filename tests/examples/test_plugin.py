"""The example package, installed as a third party installs it, in new processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PLUGIN = Path(__file__).resolve().parents[2] / "examples" / "plugin"
SMALL = ("clients=2", "rounds=6", "seed=0", "report.pictures=0", "data=rings")

Fedsink = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of installed packages that holds only the example."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(folder)]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", *options, str(PLUGIN)]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def fedsink(site: Path, tmp_path: Path) -> Fedsink:
    """Runs `fedsink simulate` in an empty folder, with the example installed unless told."""

    def run(*arguments: str, installed: bool = True) -> subprocess.CompletedProcess[str]:
        paths = [str(site)] * installed + [os.environ.get("PYTHONPATH", "")]
        return subprocess.run(
            [sys.executable, "-m", "fedsink", "simulate", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@pytest.fixture
def finished(fedsink: Fedsink) -> Callable[..., Path]:
    """The folder of a small run on the rings."""

    def run(*overrides: str) -> Path:
        done = fedsink(*SMALL, *overrides)
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.splitlines()[-1])

    return run


def weights(folder: Path) -> bytes:
    return (folder / "generator.safetensors").read_bytes()


def test_its_strategy_and_its_data_source_run(finished: Callable[..., Path]) -> None:
    folder = finished("strategy=bounded_sinkhorn", "strategy.largest_norm=0.01")
    stated = json.loads((folder / "privacy.json").read_text())
    assert 0 < stated["epsilon"] <= 10
    assert json.loads((folder / "metrics.json").read_text())["rounds"] == 6
    shards = json.loads((folder / "partition.json").read_text())["clients"]
    assert [shard["labels"].keys() for shard in shards.values()] == [{"inner", "outer"}] * 2

    original = finished("strategy=dp_sinkhorn")
    assert json.loads((original / "privacy.json").read_text()) == stated
    assert weights(original) != weights(folder)
    assert weights(finished("strategy=bounded_sinkhorn", "strategy.largest_norm=1e9")) == weights(
        original
    )


def test_ray_finds_its_data_source_in_every_process(finished: Callable[..., Path]) -> None:
    ray = finished("strategy=bounded_sinkhorn", "engine=ray", "engine.actors=2")
    assert weights(ray) == weights(finished("strategy=bounded_sinkhorn"))


def test_it_is_offered_where_names_are_listed(fedsink: Fedsink) -> None:
    groups = fedsink("--help").stdout
    assert "bounded_sinkhorn" in groups
    assert "rings" in groups
    assert "half_circle, image_folder, mnist, rings, shapes." in fedsink("data=ringz").stderr
    near = fedsink(*SMALL, "data.name=ring").stderr
    assert near.endswith("Did you mean rings?\n")


def test_its_own_option_is_checked_in_one_sentence(fedsink: Fedsink) -> None:
    done = fedsink(*SMALL, "strategy=bounded_sinkhorn", "strategy.largest_norm=0")
    assert done.stderr == "fedsink: strategy.largest_norm must be a positive number, not 0.\n"
    assert done.returncode == 2


def test_without_it_both_names_are_unknown(fedsink: Fedsink) -> None:
    for group, name in (("data", "rings"), ("strategy", "bounded_sinkhorn")):
        done = fedsink(f"{group}={name}", installed=False)
        assert f"There is no {group}={name}: choose one of " in done.stderr
        assert done.returncode == 2
