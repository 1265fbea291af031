"""A dataset is two files, a reader and one YAML, whatever its shape."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsink.clients.node import close_nodes
from fedsink.conf.acting import compose_config
from fedsink.data import sources
from fedsink.simulation.simulated_run import start

READER = """
import torch

def read(spec, split):
    random = torch.Generator().manual_seed(0 if split == "train" else 1)
    labels = torch.arange(120) % len(spec.classes)
    return torch.rand(120, *spec.shape, generator=random), labels
"""
PICTURES = """
name: fresh
shape: {}
classes: [a, b, c]
nominal_records: 120
"""
POINTS = (
    """
defaults:
  - override /records@_global_.records: points
"""
    + PICTURES
)
SMALL = (
    "clients=3", "rounds=2", "engine=local", "seed=0", "report.pictures=0", "report.html=false",
)  # fmt: skip


@pytest.fixture
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The dataset "fresh", a module beside the other readers, and nothing left of it afterwards."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "readers").mkdir()
    (tmp_path / "readers" / "fresh.py").write_text(READER)
    monkeypatch.setattr(sources, "__path__", [*sources.__path__, str(tmp_path / "readers")])
    monkeypatch.setitem(sources.SOURCES, "fresh", sources.own_sources()["fresh"])
    yield
    close_nodes()
    sources.forget()
    del sys.modules["fedsink.data.sources.fresh"]


def _start(yaml: str, folder: Path, *overrides: str) -> dict[str, object]:
    (folder / "conf" / "data").mkdir(parents=True)
    (folder / "conf" / "data" / "fresh.yaml").write_text(yaml)
    where = f"hydra.searchpath=[file://{folder / 'conf'}]"
    run = start(compose_config([where, "data=fresh", *SMALL, *overrides]), folder / "run")
    assert json.loads((run / "metrics.json").read_text())["rounds"] == 2
    privacy: dict[str, object] = json.loads((run / "privacy.json").read_text())
    return privacy


@pytest.mark.medium
@pytest.mark.quick("-?3, 5, 7?-*")
@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("mode", ["central", "ldp", "ldp mechanism=gaussian"])
@pytest.mark.parametrize(
    ("yaml", "shape"),
    [
        (PICTURES, "[1, 8, 8]"),
        (PICTURES, "[3, 5, 7]"),
        (PICTURES, "[1, 30, 20]"),
        (POINTS, "[6]"),
        (POINTS, "[1]"),
    ],
    ids=lambda value: "" if "name" in value else value,
)
def test_a_reader_and_one_yaml_are_a_dataset(
    yaml: str, shape: str, mode: str, tmp_path: Path
) -> None:
    privacy = _start(yaml.format(shape), tmp_path, *f"mode={mode}".split())
    assert privacy["model"] == mode.split()[0]
    assert float(str(privacy["epsilon"])) <= 35.0


@pytest.mark.medium
@pytest.mark.quick("record")
@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("clip", ["record", "batch"])
def test_both_clips_have_a_default(clip: str, tmp_path: Path) -> None:
    assert _start(PICTURES.format("[1, 6, 9]"), tmp_path, f"clip={clip}")["clip"] == clip


def test_every_file_of_the_readers_that_reads_is_a_source() -> None:
    assert sorted(sources.own_sources()) == [
        "celeba", "digits", "fashion_mnist", "femnist", "glyphs", "half_circle", "image_folder",
        "mnist", "npz", "shapes",
    ]  # fmt: skip
