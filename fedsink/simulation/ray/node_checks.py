"""Checks of a cluster's nodes, before they are used: versions, records, and the right to a key."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

import fedsink
from fedsink.data.sources import load
from fedsink.data.spec import DataSpec
from fedsink.errors import ClientError, DataError, PrivacyError
from fedsink.protocol.packing import PROTOCOL_VERSION

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
    """Refuses a node that has other versions than the driver.

    Args:
        node: in words.
        here: `versions` of the driver.
        there: `versions` of a process of the node.

    Raises:
        ClientError: it lacks a package, or has it in another version.
    """
    for package, expected in here.items():
        found = there.get(package)
        if found != expected:
            stated = "none" if found is None else found
            raise ClientError(
                f"{node} of the Ray cluster has {package} {stated}, and the driver has "
                f"{expected}: install the same version on both."
            )


def refuse_unencrypted(here: str, nodes: Collection[str]) -> None:
    """Refuses to send a secret to other nodes in the clear.

    Args:
        here: the id of the driver's node.
        nodes: the ids of the nodes that the secret would be sent to.

    Raises:
        PrivacyError: some of them are other nodes, and Ray does not encrypt.
    """
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

    Args:
        ray: the module, connected.
        spec: of the records.
        sent: this process reads them, and Ray's memory holds them for all processes of a node
            without a copy for each; else every process reads them itself, and its digest is
            compared with that of this process.

    Raises:
        DataError: they cannot be read here.
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
        """Refuses nodes that read other records.

        Args:
            answers: to `call`, by node in words.

        Raises:
            DataError: a node has others, or none.
        """
        for node, digest in answers.items():
            if self._put is None and digest != self._digest:
                raise DataError(
                    f"{node} of the Ray cluster must read what the driver reads for data.name="
                    f"{self._spec.name} (SHA-256 {self._digest[:12]}), but reads {digest[:400]}: "
                    "copy the files to the same data.root, or set engine.data=object_store."
                )
