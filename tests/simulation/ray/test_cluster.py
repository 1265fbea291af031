"""The Ray instance of a run, its nodes, and the resources that its cohorts ask for.

Nodes must have the driver's versions and its records.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import ray
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedsink
from fedsink.data.labelled import LabelledData
from fedsink.data.sources import forget, give, load
from fedsink.data.spec import DataSpec
from fedsink.errors import ClientError, ConfigError, DataError
from fedsink.protocol.packing import PROTOCOL_VERSION
from fedsink.simulation.ray.cluster import (
    NodeRecords,
    refuse_versions,
    room,
    share_of_core,
    start,
    versions,
)
from fedsink.simulation.simulated_run import start as start_run

from ..conftest import Compose, Configure
from .nodes import Nodes


@pytest.fixture
def deaf() -> Iterator[str]:
    """Address of this machine at which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def test_an_instance_that_cannot_start_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "file"))
    with pytest.raises(ClientError, match=r"Ray could not be started on this machine \(.+: start"):
        start(None, 1, debug=False)
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    ("cores", "cohorts", "share"),
    [(8, 8, 1.0), (8, 3, 1.0), (2, 4, 0.5), (1, 3, 0.3333), (4, 10, 0.3333), (0, 2, 0.5)],
)
def test_cohorts_share_the_cores(cores: int, cohorts: int, share: float) -> None:
    assert share_of_core(cores, cohorts) == share


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 500))
def test_the_shares_of_cores_fit_on_nodes_of_any_size(nodes: list[int], cohorts: int) -> None:
    share = round(10_000 * share_of_core(sum(nodes), cohorts))
    assert sum(10_000 * cores // share for cores in nodes) >= min(cohorts, 10_000 * sum(nodes))


@pytest.mark.parametrize(
    ("gpus", "share", "cohorts"),
    [(1, 0.25, 4), (2, 0.6, 2), (4, 2.0, 2), (3, 2.0, 1), (1, 0.1, 10), (0, 0.5, 0)],
)
def test_a_share_of_a_gpu_is_never_cut_in_two(gpus: float, share: float, cohorts: int) -> None:
    """Three times 0.6 is less than two GPUs, but the third cohort would wait for ever."""
    assert room(gpus, share) == cohorts


def test_an_address_where_no_cluster_is_is_refused_at_once(deaf: str) -> None:
    began = time.monotonic()
    with pytest.raises(
        ConfigError,
        match=rf"engine\.address={deaf} leads to no Ray cluster \(.*refused\): start one with ray "
        r"start --head, or leave engine\.address out",
    ):
        start(deaf, None, False)
    assert time.monotonic() - began < 10
    assert not ray.is_initialized()


@pytest.mark.medium
@pytest.mark.parametrize("name", ["TMPDIR", "RAY_TMPDIR"])
def test_a_folder_too_deep_for_sockets_is_refused_with_advice(
    name: str, configured: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ("seed=0", "clients=2", "report.html=false")
    monkeypatch.delenv("TMPDIR", raising=False)
    most = 46 - len(str(os.getpid()))
    for length, refused in ((most, False), (most + 1, True), (140, True)):
        monkeypatch.setenv(name, "/" + "é" * 9 + "a" * (length - 19))
        for engine in ("ray", "flower", "local"):
            if refused and engine != "local":
                told = (
                    rf"^{name} has {length} bytes, .* more than {most}: set RAY_TMPDIR to a shorter"
                )
                with pytest.raises(ConfigError, match=told):
                    configured(*keys, f"engine={engine}", small=False)
            else:
                configured(*keys, f"engine={engine}", small=False)


def test_auto_finds_what_ray_address_names_and_refuses_it_when_it_is_dead(
    deaf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", deaf)
    with pytest.raises(ConfigError, match=r"engine\.address=auto leads to no Ray cluster"):
        start("auto", None, False)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ("engine.address=ray://10.0.0.1:10001", "must be null, auto or host:port, not 'ray://"),
        ("engine.address=10.0.0.1", "must be null, auto or host:port, not '10.0.0.1'"),
        ("engine.address=7", "must be null, auto or host:port, not 7"),
        (
            "engine.address=auto engine.num_cpus=2",
            "num_cpus=2 is for a Ray instance of this machine, and those of engine.address=auto",
        ),
        ("engine.revive_seconds=0", "engine.revive_seconds must be"),
    ],
)
def test_a_key_of_the_cluster_that_cannot_be_meant_is_refused(
    configured: Configure, overrides: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        configured("seed=0", "engine=ray", *overrides.split(), small=False)


@pytest.mark.medium
def test_a_cluster_may_have_gpus_where_this_machine_has_none(
    configured: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    gpus = ("seed=0", "engine=ray", "engine.num_gpus=0.25")
    assert configured(*gpus, "engine.address=auto", small=False).node.device == "cuda"
    with pytest.raises(ConfigError, match="no CUDA device"):
        configured(*gpus, small=False)


@pytest.mark.medium
def test_what_clients_remember_stays_on_this_machine(configured: Configure) -> None:
    critics = ("seed=0", "engine=ray", "strategy=gs_wgan", "report.pictures=0", "report.html=false")
    assert configured(*critics, small=False).node.states is not None
    with pytest.raises(ConfigError, match=r"gs_wgan keeps on this machine's disk what its clients"):
        configured(*critics, "engine.address=auto", small=False)
    assert (
        configured("seed=0", "engine=ray", "engine.address=auto", small=False).node.states is None
    )


@pytest.mark.slow
def test_an_instance_of_its_own_is_what_no_address_means(
    deaf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holds whatever RAY_ADDRESS names, and whatever a dead Ray left on the machine."""
    monkeypatch.setenv("RAY_ADDRESS", deaf)
    start(None, 1, False)
    try:
        assert ray.cluster_resources()["CPU"] == 1
    finally:
        ray.shutdown()


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
    forget()
    yield folders
    forget()


@pytest.mark.slow
def test_a_node_with_another_copy_of_the_data_is_refused_and_can_be_sent_the_records(
    composed: Compose, tmp_path: Path, homes: list[Path]
) -> None:
    few = ("seed=1", "data=mnist", "data.root='~/data'", "data.nominal_records=200", "rounds=2",
           "clients=2", "report.pictures=0", "report.html=false",
           "strategy.schedule=joint")  # fmt: skip
    expected = start_run(composed(*few, "engine=local"), tmp_path / "local")
    nodes = Nodes(tmp_path)
    try:
        nodes.add(HOME=str(homes[1]))
        cluster = (*few, "engine=ray", f"engine.address={nodes.address}")
        with pytest.raises(DataError, match=r"must read what the driver reads for .*=mnist"):
            start_run(composed(*cluster, small=False), tmp_path / "run")
        sent = composed(*cluster, "engine.data=object_store", small=False)
        found = start_run(sent, tmp_path / "sent")
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
