"""What a process of a cluster must run to answer as the others do."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, entry_points, version

import fedsink
from fedsink.errors import ClientError
from fedsink.protocol.packing import PROTOCOL_VERSION

# What a client may look up by name, and so what a package may have to bring to every node.
_GROUPS = ("answers", "data_sources", "generators", "local_mechanisms")


def versions() -> dict[str, str]:
    """The versions of fedsink, its protocol, torch, and packages that add to what clients do.

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


def refuse_others(node: str, here: Mapping[str, str], there: Mapping[str, str]) -> None:
    """Refuse a node that does not run what the driver runs.

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
