"""The Ray instance that hosts the cohorts, their places in it, and checks of its nodes.

A node is checked before it is used: its versions, its records, and its right to a key.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any

import fedsink
from fedsink.data.sources import load
from fedsink.data.spec import DataSpec
from fedsink.environment import ray_is_connected
from fedsink.errors import ClientError, ConfigError, DataError, PrivacyError
from fedsink.protocol.packing import PROTOCOL_VERSION

INLINE = 1 << 20
"""Bytes that a call may carry by itself: Ray's shared memory takes milliseconds each way, and is
for what is larger."""
INLINE_JOINED = 1 << 16
"""Bytes that a call may carry in a cluster that was joined, where Ray's own limit is 100 kB."""
_LONGEST_SOCKET = 107  # bytes of its path
_PATIENCE = 5.0  # seconds for a head node to take a connection


def start(address: str | None, num_cpus: int | None, debug: bool) -> Any:
    """Ray's module, connected: by its own user where he is, else by us.

    Without an address it is an instance of only this machine, of `num_cpus` cores or all, which
    ends with the process.
    """
    if ray_is_connected():
        return sys.modules["ray"]
    # Before the import: Ray reads these once.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    options: dict[str, Any] = {
        "num_cpus": num_cpus,
        "include_dashboard": False,
        "_system_config": {"max_direct_call_object_size": INLINE},
    }
    if address is not None:
        _refuse_silence(address)
        # A path: the driver of a submitted job (ray job submit) cannot copy a module.
        options = {"runtime_env": {"py_modules": [str(Path(fedsink.__file__).parent)]}}
    try:
        ray.init(
            # Without an address Ray would join whatever RAY_ADDRESS or a file of the machine names.
            address=address or "local",
            log_to_driver=debug,
            logging_level=logging.INFO if debug else logging.ERROR,
            configure_logging=debug,
            **options,
        )
    except (Exception, SystemExit) as error:  # Ray exits where it meets silence, TLS for example
        if address is None:
            raise ClientError(
                f"Ray could not be started on this machine ({first_line(error)}): start the run "
                "again when less runs beside it, or say engine=local."
            ) from error
        raise ConfigError(
            f"engine.address={address} cannot be joined ({first_line(error)}): run fedsink on a "
            "node of the cluster (ray start --address=…), with its versions of Ray and Python, and "
            "with TLS where it has TLS."
        ) from error
    return ray


def check_instance(address: str | None, num_cpus: float | None) -> None:
    """Refuses keys that the instance does not have that this process is connected to already."""
    if not ray_is_connected():
        if address is None:  # a new instance makes its sockets below the folder of temporary files
            name = "RAY_TMPDIR" if "RAY_TMPDIR" in os.environ else "TMPDIR"
            length = len(os.fsencode(os.environ.get(name, "/tmp")))
            below = f"/ray/session_2026-01-01_00-00-00_000000_{os.getpid()}/sockets/plasma_store"
            if length > (most := _LONGEST_SOCKET - len(below)):
                raise ConfigError(
                    f"{name} has {length} bytes, and Ray's sockets lie too deep below a folder of "
                    f"more than {most}: set RAY_TMPDIR to a shorter one, such as /tmp, or say "
                    "engine=local."
                )
        return
    ray = sys.modules["ray"]
    leave = "leave it out, or call ray.shutdown() first"
    if ray.util.client.ray.is_connected():
        raise ConfigError(
            "This process is a client of Ray (ray://…), and engine=ray runs on a node of the "
            "cluster: start it there, or call ray.disconnect() first."
        )
    if num_cpus is not None:
        raise ConfigError(
            f"engine.num_cpus={num_cpus:g} is for an instance of Ray that fedsink starts, and this "
            f"process is connected to one already: {leave}."
        )
    here = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", here):
        raise ConfigError(
            f"engine.address={address} is another Ray than that of {here}, which this process is "
            f"connected to already: {leave}."
        )


def _refuse_silence(address: str) -> None:
    """Refuses an address where nobody listens: Ray would try for minutes, then end the process."""
    from ray._private.services import canonicalize_bootstrap_address

    try:
        resolved = canonicalize_bootstrap_address(address)
        if resolved is None:
            raise OSError("no cluster runs on this machine")
        host, _, port = resolved.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"engine.address={address} leads to no Ray cluster ({first_line(error)}): start one "
            "with ray start --head, or leave engine.address out."
        ) from error


def share_of_core(cores: int, cohorts: int) -> float:
    """The part of a CPU core that each cohort asks for: a whole one, a half, a third, ...

    Parts of whole cores fit on nodes of any size. Cohorts that ask for whole cores would wait for
    ever where there are fewer cores.
    """
    parts = -(-cohorts // max(1, cores))
    # Ray counts in ten-thousandths, and three times a third must not exceed a core.
    return max(1, 10_000 // parts) / 10_000


def room(gpus: float, share: float) -> int:
    """Number of cohorts that fit on a node, each with its share of one GPU, or whole GPUs."""
    if share > 1:
        return int(gpus / share)
    return int(gpus) * int(1 / share + 1e-9)


class CohortPlaces:
    """A place for each cohort on the nodes of a Ray instance, spread over them.

    Cohorts of a lost node wait until there is room elsewhere. They ask Ray one by one: a placement
    group that lacks room for a lost bundle keeps Ray's head busy (Ray's pull request 65007), and
    no new node can join. There is at most one for each client; without `cohorts`, one per CPU core.
    """

    def __init__(self, ray: Any, clients: int, cohorts: int | None, num_gpus: float) -> None:
        self._ray = ray
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cores = sum(int(resources.get("CPU", 0)) for resources in nodes)
        self.count = min(clients, cohorts or max(1, cores))
        self.resources = {"CPU": share_of_core(cores, self.count)}
        if num_gpus > 0:
            self.resources["GPU"] = num_gpus
            gpus = [resources.get("GPU", 0.0) for resources in nodes]
            if self.count > sum(room(of_node, num_gpus) for of_node in gpus):
                # Ray would wait for ever for a GPU to appear.
                raise ConfigError(
                    f"{self.count} cohorts of engine.num_gpus={num_gpus:g} do not fit on "
                    f"{sum(gpus):g} GPUs: lower engine.num_gpus or engine.actors."
                )

    def options(self) -> dict[str, Any]:
        return {
            "num_cpus": self.resources["CPU"],
            "num_gpus": self.resources.get("GPU", 0.0),
            "scheduling_strategy": "SPREAD",
        }

    def shortage(self) -> str:
        """The resources that each cohort asks for, and those that are free, in words."""
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        available = self._ray.available_resources()
        asked = " and ".join(f"{amount:g} {name}" for name, amount in self.resources.items())
        free = " and ".join(f"{available.get(name, 0.0):g} {name}" for name in self.resources)
        return f"each asks for {asked}, and on {len(nodes)} live nodes {free} are free"


def first_line(error: BaseException) -> str:
    """The first line of an error's text, as part of a sentence."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


# Things that a client looks up by name, and that a package may have to bring to every node.
_GROUPS = ("answers", "data_sources", "generators", "local_mechanisms")


def node_in_words(ray: Any, id: str) -> str:
    """A node by the name of its machine and the start of its id."""
    names = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes()}
    return f"The node {names.get(id, 'unknown')} ({id[:8]})"


def versions() -> dict[str, str]:
    """Versions of fedsink, its protocol, torch, and packages that add to the clients' work.

    A torch for another device (2.9.0+cu128, 2.9.0+cpu) is the same version.
    """
    stated = {"fedsink": fedsink.__version__, "fedsink's protocol": str(PROTOCOL_VERSION)}
    try:
        stated["torch"] = version("torch").partition("+")[0]
    except PackageNotFoundError:  # built in place
        import torch

        stated["torch"] = str(torch.__version__).partition("+")[0]
    for group in _GROUPS:
        for entry in entry_points(group=f"fedsink.{group}"):
            if entry.dist is not None:
                stated[entry.dist.name] = entry.dist.version
    return stated


def refuse_versions(node: str, here: Mapping[str, str], there: Mapping[str, str]) -> None:
    """Refuses a node, named in words, that has other `versions` than the driver."""
    for package, expected in here.items():
        if (found := there.get(package)) != expected:
            raise ClientError(
                f"{node} of the Ray cluster has {package} {found or 'none'}, and the driver has "
                f"{expected}: install the same version on both."
            )


def refuse_unencrypted(here: str, nodes: Collection[str]) -> None:
    """Refuses to send a secret from the node `here` to others of the `nodes` in the clear."""
    encrypted = os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")
    others = set(nodes) - {here}
    if others and not encrypted:
        raise PrivacyError(
            f"The run's secret noise key would travel unencrypted to {len(others)} other nodes of "
            "the Ray cluster: give seed=, or use a cluster with TLS (RAY_USE_TLS=1, "
            "docs/cluster.md)."
        )


class NodeRecords:
    """The records of a run, the same at every node: read by each, or put into Ray's memory once.

    If they are `sent`, Ray's memory holds them for all processes of a node without a copy for each;
    else every process reads them itself, and its digest is compared with that of this process.
    """

    def __init__(self, ray: Any, spec: DataSpec, *, sent: bool) -> None:
        self._spec = spec
        data = load(spec)
        self._digest = "" if sent else data.digest()
        self._put: Any = ray.put(data.arrays()) if sent else None

    def call(self, actor: Any) -> Any:
        """Has an actor read or take the records; returns its answer's reference for `check`."""
        if self._put is not None:
            return actor.hold.remote(self._spec, self._put)
        return actor.digest.remote(self._spec)

    def check(self, answers: Mapping[str, str]) -> None:
        """Refuses nodes that read other records, by their answers to `call`."""
        for node, digest in answers.items():
            if self._put is None and digest != self._digest:
                raise DataError(
                    f"{node} of the Ray cluster must read what the driver reads for data.name="
                    f"{self._spec.name} (SHA-256 {self._digest[:12]}), but reads {digest[:400]}: "
                    "copy the files to the same data.root, or set engine.data=object_store."
                )
