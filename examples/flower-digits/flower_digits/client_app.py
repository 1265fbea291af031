"""A node: one of ten owners of scikit-learn's digits, under a policy that the owner may edit."""

import os
from pathlib import Path

from fedsink.clients.app import client_app
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.policy_file import read_policy
from fedsink.data.partition import Iid
from fedsink.files import write_once

NODES = 10
EMBEDDED = Path(__file__).with_name("policy.toml")


def owners_policy() -> Path:
    """Returns the policy of this machine: a copy of the app's, made at the first start.

    Ledger and noise key lie beside it, so they outlast the app's version and its folder.
    """
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    folder = Path(base) / "fedsink" / "flower-digits"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_once(folder / EMBEDDED.name, EMBEDDED.read_bytes())
    return folder / EMBEDDED.name


app = client_app(
    NodeSettings.from_policy(read_policy(owners_policy()), clients=NODES, partition=Iid())
)
