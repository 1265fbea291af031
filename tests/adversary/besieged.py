"""A node under attack: its public description, its private records, its state on the disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from torch import Tensor

from fedsink.clients.app import client_app
from fedsink.clients.node import open_node
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.ledger.account_report import report
from fedsink.clients.owner.ledger.database import Database, problems
from fedsink.clients.owner.policy_file import read_policy
from fedsink.clients.records.shard import Shard
from fedsink.data.spec import DataSpec

from ..support.policies import MECHANISMS, limits, policy
from ..support.tiny import CLASSES, NOMINAL, RECORDS, points_of, with_secret_key
from .honest import CRITICS, Kind

Place = tuple[str, str, int]
"""An adjacency, a run and a round."""


def many(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """61 records of three classes, stored class by class."""
    records, labels = points_of(RECORDS)
    if len(shape) == 1:
        return records, labels
    return torch.rand(RECORDS, *shape, generator=torch.Generator().manual_seed(5)) ** 2, labels


def few(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Two records of the last class, at opposite ends of a record's domain."""
    low, high = (-128.0, 128.0) if len(shape) == 1 else (0.0, 1.0)
    records = torch.stack([torch.full(shape, low), torch.full(shape, high)])
    return records, torch.full((2,), CLASSES - 1)


HOLDINGS: dict[str, Callable[[tuple[int, ...]], tuple[Tensor, Tensor]]] = {"many": many, "few": few}


class BesiegedNode:
    """One node with its state on disk, and every byte that has left the node.

    Its noise is "fast" or "secure" under an owner's policy, or "keyed": a simulation's node with a
    secret key and a ledger, whose settings hold no policy. `owner` has further arguments of the
    policy, instead of the usual ones, or further settings of a keyed node.
    """

    def __init__(
        self,
        folder: Path,
        shape: tuple[int, ...],
        holding: str,  # a key of `HOLDINGS`, or of those of another siege
        noise: str,
        epsilon: float,
        operators: Mapping[str, str] | None = None,
        owner: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder, self.noise = folder / holding, noise
        self.spec = DataSpec(f"besieged-{holding}", shape, ("a", "b", "c"), NOMINAL)
        self._epsilon, self._operators, self._owner = epsilon, operators, dict(owner or {})
        self.begin()

    def begin(self) -> None:
        """A node that has answered nothing yet."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        if self.noise != "keyed":
            (self.folder / "policy.toml").write_text(self._policy())
        self.left: dict[Place, bytes] = {}
        self.restart()

    def restart(self) -> None:
        """Returns this node in a new process, once `close_nodes` has ended the old one."""
        if self.noise == "keyed":
            settings = with_secret_key(NodeSettings(self.spec, None, 3), self.folder)
            self.settings = replace(settings, **self._owner)
        else:
            self.settings = NodeSettings.from_policy(
                read_policy(self.folder / "policy.toml"), clients=3
            )

    def ask(self, kind: Kind, content: RecordDict) -> Message:
        """The reply of the real handlers."""
        context = Context(1, 1, {"partition-id": 0, "num-partitions": 3}, RecordDict(), {})
        return client_app(self.settings)(
            Message(content, dst_node_id=1, message_type=kind), context
        )

    @property
    def shard(self) -> Shard:
        """Records of the node."""
        return open_node(self.settings, 0).shard

    @contextmanager
    def reader(self) -> Iterator[Database | None]:
        """A second connection to the node's ledger, which sees only committed charges."""
        assert self.settings.ledger is not None
        database = None
        if self.settings.ledger.exists():
            database = Database(self.settings.ledger, writable=False)
        try:
            yield database
        finally:
            if database is not None:
                database.close()

    def claims(self) -> dict[Place, bool]:
        """Every place that is charged, and whether its reply may have left."""
        with self.reader() as database:
            rows = [] if database is None else database.rows(
                "SELECT adjacency, name, round, released FROM claims"
                " JOIN runs ON run = runs.id JOIN accounts ON account = accounts.id"
            )  # fmt: skip
        return {(adjacency, run, round): bool(out) for adjacency, run, round, out in rows}

    def check_ledger(self) -> None:
        """The ledger is sound, and no account is overspent."""
        with self.reader() as database:
            if database is None:
                return
            assert problems(database) == []
            for account in report(database):
                if account.epsilon is None:  # no ceiling: one plan is admitted
                    assert len(account.runs) <= 1
                    continue
                assert account.spent_epsilon is not None
                assert account.spent_epsilon >= 0.0
                assert account.spent_epsilon <= account.epsilon * (1 + 1e-9)
                assert account.spent_delta is not None
                assert account.spent_delta >= 0.0
                assert account.spent_delta <= (account.delta or 0.0) * (1 + 1e-9)

    def _policy(self) -> str:
        usual: dict[str, Any] = {
            "budget": {
                "add-remove": limits(self._epsilon),
                "replace-one": limits(self._epsilon, 1e-5),
            },
            "mechanisms": (*MECHANISMS, "parameter_gradient", "gaussian", "critic"),
            "allow": {
                "maximum_critics": CRITICS,
                "maximum_critic_width": 8,
                "maximum_critic_steps": 6,
            },
            "data": {"name": self.spec.name, "shape": list(self.spec.shape)},
        }
        for name, value in self._owner.items():
            usual[name] = {**usual[name], **value} if name in ("allow", "data") else value
        return policy(backend=self.noise, operators=self._operators, **usual)
