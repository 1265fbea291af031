"""What every node computes from: the driver's records, wherever they are read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
import torch

from fedsink.data.labelled import LabelledData
from fedsink.data.sources import give, load
from fedsink.data.spec import DataSpec
from fedsink.errors import DataError
from fedsink.simulation.ray.records import Records
from fedsink.simulation.simulate import start

from ..conftest import Compose
from .nodes import Nodes

DIGITS = DataSpec("digits", (1, 8, 8), tuple("0123456789"), 1437)


def test_a_digest_changes_with_every_bit_and_with_the_users() -> None:
    values, labels = torch.zeros(4, 2, dtype=torch.uint8), torch.arange(4)
    other = values.clone()
    other[3, 1] = 1
    digests = {
        LabelledData(values, labels).digest(),
        LabelledData(other, labels).digest(),
        LabelledData(values.reshape(4, 2, 1), labels).digest(),
        LabelledData(values, labels.flip(0)).digest(),
        LabelledData(values, labels, labels).digest(),
        LabelledData(values, labels, None, labels).digest(),
    }
    assert len(digests) == 6
    assert LabelledData(values.clone(), labels.clone()).digest() in digests


def test_records_travel_as_arrays_with_all_that_they_have() -> None:
    labels = torch.arange(4)
    for users in (None, labels + 1):
        data = LabelledData(torch.zeros(4, 2), labels, users, labels + 2)
        assert LabelledData.of_arrays(data.arrays()).digest() == data.digest()


def test_given_records_are_loaded_and_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = DataSpec("no such source", (2,), ("a",), 4)
    monkeypatch.setattr("fedsink.data.sources._GIVEN", {})
    data = LabelledData(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))
    give(spec, "train", data)
    assert load(spec) is data


def test_a_node_that_reads_other_records_or_none_is_refused() -> None:
    records = Records(ray, DIGITS, sent=False)
    records.check({"N": load(DIGITS).digest()})
    for other in ("ab" * 32, "none (the files are missing)"):
        with pytest.raises(DataError, match=r"^N of the Ray cluster must read .*, but reads "):
            records.check({"N": other})


@pytest.fixture
def homes(tmp_path: Path, tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Two machines' home folders with MNIST, of which the second has one other label."""
    folders = [tmp_path / "here", tmp_path / "there"]
    for folder in folders:
        shutil.copytree(tiny_data / "MNIST", folder / "data" / "MNIST")
    labels = folders[1] / "data" / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    content = bytearray(labels.read_bytes())
    content[-1] ^= 1
    labels.write_bytes(content)
    monkeypatch.setenv("HOME", str(folders[0]))
    load.cache_clear()
    yield folders
    load.cache_clear()


@pytest.mark.slow
def test_a_node_with_another_copy_of_the_data_is_refused_and_can_be_sent_the_records(
    composed: Compose, tmp_path: Path, homes: list[Path]
) -> None:
    few = ("seed=1", "data=mnist", "data.root='~/data'", "data.nominal_records=200", "rounds=2",
           "clients=2", "report.pictures=0", "report.html=false",
           "strategy.schedule=joint")  # fmt: skip
    expected = start(composed(*few, "engine=local"), tmp_path / "local")
    nodes = Nodes(tmp_path)
    try:
        nodes.add(HOME=str(homes[1]))
        cluster = (*few, "engine=ray", f"engine.address={nodes.address}")
        with pytest.raises(DataError, match=r"must read what the driver reads for .*=mnist"):
            start(composed(*cluster, small=False), tmp_path / "run")
        sent = composed(*cluster, "engine.data=object_store", small=False)
        found = start(sent, tmp_path / "sent")
    finally:
        nodes.close()
    name = "generator.safetensors"
    assert (found / name).read_bytes() == (expected / name).read_bytes()
