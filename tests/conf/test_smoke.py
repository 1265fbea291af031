"""Every named experiment with a smallest scale runs to its end at it, in seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsink.clients.node import close_nodes
from fedsink.conf.acting import compose_config, read_from_files
from fedsink.data import sources
from fedsink.simulation.simulated_run import start

from .conftest import NAMES, root, scales


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    close_nodes()
    sources.forget()


VARIANTS = (
    "fashion_curator_eps1", "fashion_curator_eps10", "mnist_conv_eps10", "mnist_curator_eps005",
    "mnist_curator_eps1", "mnist_eps02", "mnist_eps1_k1000", "mnist_nonprivate", "other_shapes",
    "shapes_from_shapes",
)  # fmt: skip
"""Experiments made of parts that other ones here have."""


@pytest.mark.medium
@pytest.mark.quick("parameter_gradient_mnist", "dp_sinkhorn_mnist_m1")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in VARIANTS else ())
        for name in NAMES
        if "smoke" in scales(name)
    ],
)
def test_it_runs_to_the_end(name: str, tiny_data: Path, tmp_path: Path) -> None:
    overrides = [f"experiment={name}", "scale=smoke", "engine=local", *root(name)]
    config = compose_config([*overrides, "report.pictures=0", "report.html=false"])
    if read_from_files(config["data"]["name"]):
        config["data"]["root"] = str(tiny_data)
        config["clients"] = min(config["clients"], 100)  # it holds few records
    folder = start(config, tmp_path / "run")
    assert json.loads((folder / "metrics.json").read_text())["rounds"] > 0
    assert (folder / "generator.safetensors").exists()
    assert (folder / "privacy.json").exists()
