"""The Ray instance that hosts the cohorts, and their places in it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsink.errors import ConfigError

INLINE = 1 << 20
"""Bytes that a call may carry by itself: Ray's shared memory takes milliseconds each way, and is
for what is larger."""
INLINE_JOINED = 1 << 16
"""Bytes that a call may carry in a cluster that was joined, where Ray's own limit is 100 kB."""
_PATIENCE = 5.0  # seconds for a head node to take a connection


def start(address: str | None, num_cpus: int | None, debug: bool) -> Any:
    """Ray's module, connected.

    Args:
        address: None for an instance of only this machine, which ends with the process; "auto"
            or "host:port" for a cluster that runs already.
        num_cpus: CPU cores of an instance of this machine; None means all.
        debug: show the logs of Ray and the actors.

    Raises:
        ConfigError: there is no such cluster, or this machine is none of its nodes.
    """
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
        import fedsink

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
            ignore_reinit_error=True,
            **options,
        )
    except (Exception, SystemExit) as error:  # Ray exits where it meets silence, TLS for example
        if address is None:
            raise
        raise ConfigError(
            f"engine.address={address} cannot be joined ({first_line(error)}): run fedsink on a "
            "node of the cluster (ray start --address=…), with its versions of Ray and Python, and "
            "with TLS where it has TLS."
        ) from error
    return ray


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

    Ray replaces the places of a lost node as soon as there is room elsewhere.

    Args:
        ray: the module, connected.
        clients: number of clients.
        cohorts: number of places, at most one for each client; None: one per CPU core.
        num_gpus: fraction of a GPU for each cohort.

    Raises:
        ConfigError: the nodes lack the GPUs that the cohorts ask for.
    """

    def __init__(self, ray: Any, clients: int, cohorts: int | None, num_gpus: float) -> None:
        self._ray = ray
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cores = sum(int(resources.get("CPU", 0)) for resources in nodes)
        self.count = min(clients, cohorts or max(1, cores))
        if num_gpus > 0:
            self._check_gpus(nodes, num_gpus)
        self.resources = {"CPU": share_of_core(cores, self.count)}
        if num_gpus > 0:
            self.resources["GPU"] = num_gpus
        self._group = ray.util.placement_group([self.resources] * self.count, strategy="SPREAD")

    def _check_gpus(self, nodes: Sequence[Mapping[str, float]], share: float) -> None:
        gpus = [resources.get("GPU", 0.0) for resources in nodes]
        if self.count > sum(room(of_node, share) for of_node in gpus):
            # Ray would wait for ever for a GPU to appear.
            raise ConfigError(
                f"{self.count} cohorts of engine.num_gpus={share:g} do not fit on "
                f"{sum(gpus):g} GPUs: lower engine.num_gpus or engine.actors."
            )

    def options(self, place: int) -> dict[str, Any]:
        """Ray's options that put an actor at a place."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return {
            "num_cpus": self.resources["CPU"],
            "num_gpus": self.resources.get("GPU", 0.0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=place
            ),
        }

    def shortage(self) -> str:
        """The resources that each cohort asks for, and those that are free, in words."""
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        available = self._ray.available_resources()
        free = {name: available.get(name, 0.0) for name in self.resources}
        return (
            f"each asks for {_words(self.resources)}, and on {len(nodes)} live nodes "
            f"{_words(free)} are free"
        )

    def close(self) -> None:
        """Gives the places back."""
        self._ray.util.remove_placement_group(self._group)


def _words(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items())


def first_line(error: BaseException) -> str:
    """The first line of an error's text, as part of a sentence."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
