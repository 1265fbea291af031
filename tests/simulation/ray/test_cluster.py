"""The Ray instance of a run, and the resources that its cohorts ask for."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st

from fedsink.errors import ConfigError
from fedsink.simulation.ray.cluster import room, share_of_core, start

from ..conftest import Configure


@pytest.fixture
def deaf() -> Iterator[str]:
    """Address of this machine at which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


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


def test_a_cluster_may_have_gpus_where_this_machine_has_none(
    configured: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    gpus = ("seed=0", "engine=ray", "engine.num_gpus=0.25")
    assert configured(*gpus, "engine.address=auto", small=False).node.device == "cuda"
    with pytest.raises(ConfigError, match="no CUDA device"):
        configured(*gpus, small=False)


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
