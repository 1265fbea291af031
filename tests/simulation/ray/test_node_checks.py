"""Nodes of a cluster must have the driver's versions and its records."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import ray
import torch

import fedsink
from fedsink.data.labelled import LabelledData
from fedsink.data.sources import give, load
from fedsink.data.spec import DataSpec
from fedsink.errors import ClientError, DataError
from fedsink.protocol.packing import PROTOCOL_VERSION
from fedsink.simulation.ray.node_checks import NodeRecords, refuse_versions, versions
from fedsink.simulation.simulated_run import start

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
    records = NodeRecords(ray, DIGITS, sent=False)
    records.check({"N": load(DIGITS).digest()})
    for other in ("ab" * 32, "none (the files are missing)"):
        with pytest.raises(DataError, match=r"^N of the Ray cluster must read .*, but reads "):
            records.check({"N": other})


@pytest.fixture
def homes(tmp_path: Path, tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Home folders of two machines with MNIST; the second differs in one label."""
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


def test_the_versions_of_fedsink_its_protocol_and_torch_are_stated() -> None:
    stated = versions()
    assert stated["fedsink"] == fedsink.__version__
    assert stated["fedsink's protocol"] == str(PROTOCOL_VERSION)
    assert version("torch").startswith(stated["torch"])
    assert "+" not in stated["torch"]


def test_a_package_that_adds_to_what_clients_do_is_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, group in (("answering", "answers"), ("strategic", "strategies")):
        installed = tmp_path / f"{name}-1.5.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text(f"Name: {name}\nVersion: 1.5\n")
        (installed / "entry_points.txt").write_text(f"[fedsink.{group}]\nx = {name}:X\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    stated = versions()
    assert stated["answering"] == "1.5"
    assert "strategic" not in stated  # only the driver has it


@pytest.mark.parametrize(
    ("there", "told"),
    [
        ({"torch": "2.8.0", "p": "1"}, r"^N .* has torch 2\.8\.0, and the driver has 2\.9\.0"),
        ({"torch": "2.9.0"}, r"^N of the Ray cluster has p none, and the driver has 1: install"),
    ],
)
def test_another_version_or_none_is_refused(there: dict[str, str], told: str) -> None:
    here = {"torch": "2.9.0", "p": "1"}
    refuse_versions("N", here, {**here, "more": "1"})
    with pytest.raises(ClientError, match=told):
        refuse_versions("N", here, there)
