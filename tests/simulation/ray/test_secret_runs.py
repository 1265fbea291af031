"""Runs without a seed on a cluster: the way of the key, and the charges."""

from __future__ import annotations

import os
import pickle
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray.util import get_node_ip_address

from fedsink.clients.node_settings import NodeSettings
from fedsink.errors import PrivacyError
from fedsink.privacy import SecretKey
from fedsink.server.folder import RunFolder
from fedsink.server.running import run_server
from fedsink.simulation.grid import SimulationGrid
from fedsink.simulation.ray.cluster import refuse_unencrypted
from fedsink.simulation.ray.ray_grid import Actor, DriverAdmission, RayGrid, cohort_of
from fedsink.simulation.simulated_run import start
from fedsink.simulation.virtual_clients import fedsink_apps

from ..conftest import Compose, Configure, weights, write_policy
from .nodes import Nodes

ROOT = Path(__file__).resolve().parents[3]


def test_no_file_of_this_disk_is_named_to_other_machines(
    configured: Configure, tmp_path: Path
) -> None:
    key_file = tmp_path / "key"
    key = SecretKey.create(key_file, "run")
    node = replace(configured().node, key_file=key_file, ledger=tmp_path / "run.sqlite")
    lent = DriverAdmission(node).settings
    assert lent.lent == key
    assert (lent.key_file, lent.ledger, lent.policy) == (None, None, None)


@pytest.mark.medium
@pytest.mark.parametrize("kept", ["noise=secure", "policy="])
def test_what_must_be_stored_here_is_not_answered_elsewhere(
    configured: Configure, tmp_path: Path, kept: str
) -> None:
    override = f"policy={write_policy(tmp_path)}" if kept == "policy=" else kept
    for refused in (
        lambda: DriverAdmission(configured("engine=local", override).node),
        lambda: configured("engine=ray", "engine.address=auto", override),  # before any folder
    ):
        with pytest.raises(PrivacyError, match=f"^{kept} keeps its replies on this machine's disk"):
            refused()


class _Cohort:
    """Stands for the cohorts of a cluster: one in this process, which looks at the ledger first."""

    def __init__(self, node: NodeSettings, lent: NodeSettings) -> None:
        self._node = node
        self._actor = Actor(debug=False)
        self._actor.host(lambda: cohort_of(fedsink_apps, lent))
        self.methods: list[str] = []
        self.committed: list[int] = []

    def __len__(self) -> int:
        return 1

    def ask(self, method: str, shared: Any, work: Sequence[Any], *more: Any) -> list[Any]:
        if method == "keep":
            return [None]
        with sqlite3.connect(str(self._node.ledger)) as ledger:
            claims = ledger.execute("SELECT count(*) FROM claims").fetchone()
        self.methods.append(method)
        self.committed.append(claims[0])
        return [getattr(self._actor, method)(pickle.dumps(shared), work[0], *more)]


@pytest.mark.medium
@pytest.mark.parametrize("method", ["add_up", "answer"])
def test_every_charge_is_committed_before_a_cohort_is_asked(
    configured: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Holds for a round that is asked as a whole, and for messages one by one."""
    clients, rounds = 3, 2
    settings = configured(f"clients={clients}", f"rounds={rounds}", "strategy.schedule=joint")
    SecretKey.create(tmp_path / "key", "run")
    node = replace(settings.node, key_file=tmp_path / "key", ledger=tmp_path / "run.sqlite")
    grid = RayGrid.__new__(RayGrid)
    batched = None if method == "answer" else fedsink_apps(node).batched
    SimulationGrid.__init__(grid, clients, batched=batched)
    grid._admission = DriverAdmission(node)
    cohort: Any = _Cohort(node, grid._admission.settings)
    grid.cohorts = cohort
    run_server(grid, settings.server, RunFolder(tmp_path / "run"))
    assert cohort.methods == [method] * rounds
    each = clients if method == "answer" else 1  # of a charge: of one client, or of all
    assert cohort.committed == [each * round for round in range(1, 1 + rounds)]


@pytest.mark.parametrize("tls", [None, "0", "1", "true"])
def test_a_key_goes_to_other_nodes_over_tls_alone(
    monkeypatch: pytest.MonkeyPatch, tls: str | None
) -> None:
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    if tls is not None:
        monkeypatch.setenv("RAY_USE_TLS", tls)
    refuse_unencrypted("a", ["a", "a"])
    if tls in ("1", "true"):
        refuse_unencrypted("a", ["a", "b"])
        return
    with pytest.raises(
        PrivacyError, match=r"unencrypted to 2 other nodes .* give seed=, or use a cluster with TLS"
    ):
        refuse_unencrypted("a", ["a", "b", "b", "c"])


@pytest.mark.slow
def test_without_tls_no_other_node_is_sent_the_key(
    composed: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    nodes = Nodes(tmp_path)
    try:
        nodes.add()
        config = composed("engine=ray", f"engine.address={nodes.address}", small=False)
        with pytest.raises(PrivacyError, match="would travel unencrypted to 1 other nodes"):
            start(config, tmp_path / "run")
    finally:
        nodes.close()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_ten_kills_on_a_cluster_with_tls_leave_the_bytes_and_charge_nobody_twice(
    tmp_path: Path,
) -> None:
    environment = {**os.environ, **_certified(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("besieged.py"), tmp_path],
        env=environment, capture_output=True, text=True, timeout=1400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    killed = done.stdout.count("killed an actor"), done.stdout.count("killed a node")
    assert sum(killed) == 10
    assert min(killed) >= 2
    assert weights(tmp_path / "local" / "run") == weights(tmp_path / "cluster" / "run")
    for name in ("local", "cluster"):
        with sqlite3.connect(tmp_path / name / "run.sqlite") as ledger:
            claims = ledger.execute("SELECT count(*), count(DISTINCT digest) FROM claims")
            assert claims.fetchone() == (40, 40)  # a round is one charge for all six clients


def _certified(folder: Path) -> dict[str, str]:
    """Environment that Ray reads for TLS, with a self-signed certificate."""
    key, certificate = folder / "tls.key", folder / "tls.crt"
    names = f"DNS:localhost,IP:127.0.0.1,IP:{get_node_ip_address()}"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=ray", "-addext", f"subjectAltName={names}",
         "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(certificate),
        "RAY_TLS_SERVER_KEY": str(key),
        "RAY_TLS_CA_CERT": str(certificate),
    }
