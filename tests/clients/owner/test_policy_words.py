"""A word of a policy that changes between two messages of one run changes nothing or refuses."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message, RecordDict

from fedsink.clients.answers.registry import ANSWERS
from fedsink.clients.node import Node, close_nodes
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.ledger.database import Database
from fedsink.clients.owner.policy_file import WORDS, read_policy
from fedsink.clients.owner.rollback import Receipts
from fedsink.data.maps import PointBall
from fedsink.errors import ConfigError
from fedsink.protocol.aggregation import UNMASK, has_trip
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.failure_codes import MALFORMED, REFUSED, RUN_TAKEN
from fedsink.protocol.privatize_once import LocalPlan, PrivatizeRequest
from fedsink.protocol.signing import ChargeStatement, shown_key, sign
from fedsink.server.masked_grid import MaskedGrid
from fedsink.simulation.grid import client_of, node_of

from ...support.consortium import KIND, Consortium, shared
from ...support.policies import MECHANISMS, limits
from ...support.tiny import SIZE

Make = Callable[..., GradientRequest]
OPERATOR, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
UPLOAD = "train.privatize_once"
KINDS = ("own", "share", "masked", "upload")
OUTCOMES: dict[bytes | int, str] = {REFUSED: "refused", MALFORMED: "malformed", RUN_TAKEN: "taken"}
APP = {
    "job": "update", "rounds": 1, "delta": 1e-6, "clip_bound": 1.0, "noise_multiplier": 9.0,
    "share": 1, "layers": True, "metric_noise_multiplier": 9.0, "metrics": {"loss": [0.0, 1.0]},
    "client": "quickstart:app", "config": {},
}  # fmt: skip
CHANGES: list[tuple[str, Any, str]] = [
    ("data.lineage", "another", "refused refused = refused"),  # a masked vector is stored itself
    ("data.on_change", "refuse", "= = = ="),
    ("data.root", "elsewhere", "= = = ="),
    ("data.name", "digits", "malformed malformed = malformed"),
    ("data.shape", [SIZE + 1], "malformed malformed malformed malformed"),
    ("data.classes", ["a", "b"], "malformed malformed malformed malformed"),
    ("data.nominal_records", 10**6, "= = = ="),
    ("data.download", True, "= = = ="),
    ("data.range", [0, 4095], "= = = ="),
    ("state.state_days", 30, "= = = ="),
    ("noise.backend", "secure", "= = = ="),
    ("budget.add-remove.epsilon", 0.5, "= = = ="),  # the plan is admitted and paid for
    ("budget.add-remove.delta", 0.01, "= = = ="),
    ("budget.add-remove.order", 8.0, "invalid invalid invalid invalid"),  # of former versions
    ("budget.add-remove", None, "refused refused refused ="),
    ("budget.replace-one.epsilon", 0.5, "= = = ="),
    ("budget.user", {"epsilon": 1.0, "delta": 0.0}, "= = = ="),
    ("budget.client", {"epsilon": 1.0, "delta": 0.0}, "= = = ="),
    ("allow.mechanisms", ["laplace"], "refused refused refused refused"),
    ("allow.generators", ["mlp"], "= = = ="),
    ("allow.labels", ["a"], "refused refused refused refused"),
    ("allow.minimum_noise_multiplier", 0.6, "= = = ="),
    ("allow.minimum_noise_multiplier", 1.1, "refused refused refused ="),
    ("allow.minimum_clip_bound", 0.6, "refused refused refused ="),
    ("allow.maximum_clip_bound", 0.4, "refused refused refused ="),
    ("allow.maximum_rounds", 49, "refused refused refused ="),
    ("allow.maximum_rate", 0.5, "refused refused refused ="),
    ("allow.capacity", "required", "refused refused refused ="),
    ("allow.maximum_images", 5, "refused refused refused ="),
    ("allow.maximum_parameters", 5, "invalid invalid invalid invalid"),  # of an answer of a package
    ("allow.maximum_critics", 5, "= = = ="),
    ("allow.maximum_critic_width", 5, "= = = ="),
    ("allow.maximum_critic_steps", 5, "= = = ="),
    ("allow.secure_aggregation", "refused", "= refused refused ="),
    ("allow.secure_aggregation", "untrusted", "= taken taken ="),
    ("allow.secure_aggregation", "masked", "= refused = ="),
    ("allow.secure_aggregation", "trusted", "= = taken ="),
    ("aggregation.minimum_cohort", 4, "= = taken ="),
    ("aggregation.threshold", 0.7, "= = taken ="),
    ("aggregation.tolerate_dropouts", 0, "= = taken ="),
    ("aggregation.peers", "others.toml", "= = = ="),
    ("operators.keys.other", shown_key(OTHER.public_key().public_bytes_raw()), "= = = ="),
    ("operators", None, "= = = ="),
    ("app", APP, "invalid invalid invalid invalid"),  # servers of Flower sign no request
]  # fmt: skip
"""Word, new value, and what it does to a reply of each of `KINDS`: the same bytes, or a refusal."""


def dumped(table: dict[str, Any], name: str = "") -> str:
    values = "".join(f"{k} = {json.dumps(v)}\n" for k, v in table.items() if type(v) is not dict)
    inner = (dumped(v, f"{name}.{k}".lstrip(".")) for k, v in table.items() if type(v) is dict)
    return (f"[{name}]\n{values}" if name else "") + "".join(inner)


class Run:
    """A run whose node 0 has answered one request, and is asked for it again."""

    def __init__(self, folder: Path, kind: str, make_request: Make) -> None:
        self.nodes = nodes = Consortium(
            folder,
            aggregation={"tolerate_dropouts": 1},
            allow={"secure_aggregation": "trusted" if kind == "share" else "masked"},
            mechanisms=MECHANISMS,
            budget={"add-remove": limits(1e6), "replace-one": limits(1e6, 0.0)},
            operators={"lab": shown_key(OPERATOR.public_key().public_bytes_raw())},
        )
        nodes.way = self.way
        peers = nodes.folders[0] / "peers.toml"
        peers.with_name("others.toml").write_text(peers.read_text())
        self.file = nodes.folders[0] / "policy.toml"
        self.text = self.file.read_text()
        self.kind = kind
        request = make_request(clip="record")
        if kind in ("share", "masked"):
            request = shared(request, 3)
        content = request.to_record()
        if kind == "upload":
            plan = LocalPlan("laplace", PointBall("l1", 1.0, SIZE), 1.0, 0.0, 0.5, 3)
            content = PrivatizeRequest(plan, 0, 20, "unnamed").to_record()
        self.asked = Message(
            content, dst_node_id=node_of(0), message_type=UPLOAD if kind == "upload" else KIND
        )
        if kind == "masked":
            MaskedGrid(nodes, "unnamed").send_and_receive(nodes.exchange(request))
        self.first = self.again()
        assert isinstance(self.first, bytes)

    def way(self, message: Message) -> Message | None:
        """Signs a message for its node; a sum is not unmasked, which would end the session."""
        kind, client = message.metadata.message_type, client_of(message.metadata.dst_node_id)
        if kind == f"query.{UNMASK}":
            return None
        if client == 0 and kind == KIND and has_trip(message.content):
            self.asked = message
        content = RecordDict(dict(message.content))
        sign(content, kind, Receipts(self.nodes.folders[client] / "state", "ward").name, OPERATOR)
        message.content = content
        return message

    def again(self) -> bytes | int:
        """Returns the bytes of the reply to the request of before, or the refusal's code."""
        [reply] = self.nodes.execute([self.asked])
        if reply.has_error():
            return reply.error.code
        arrays = [a.data for r in reply.content.array_records.values() for a in r.values()]
        said = [repr(sorted(r.items())) for r in reply.content.config_records.values()]
        return b"".join(arrays) + "".join(said).encode()

    def charges(self) -> list[tuple[Any, ...]]:
        """Returns everything that node 0 has been charged."""
        path = self.nodes.folders[0] / "state" / "ledger.sqlite"
        database = Database(path, writable=False)
        try:
            return database.rows(
                "SELECT plan, runs.epsilon, runs.delta, rounds FROM runs"
                " JOIN accounts ON account = accounts.id WHERE lineage='ward'"
            )
        finally:
            database.close()

    def under(self, word: str, value: Any) -> str:
        """Returns the outcome of `again` while one word of node 0's policy has another value."""
        policy = tomllib.loads(self.text)
        *tables, last = word.split(".")
        inner = policy
        for name in tables:
            inner = inner.setdefault(name, {})
        if value is None:
            del inner[last]
        else:
            inner[last] = value
        self.file.write_text(dumped(policy))
        try:
            reply = self.again()
        except ConfigError:
            return "invalid"
        finally:
            self.file.write_text(self.text)
        return "=" if reply == self.first else OUTCOMES.get(reply, f"other: {reply!r}")


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_word_changes_nothing_or_refuses(
    tmp_path: Path, make_request: Make, kind: str
) -> None:
    run = Run(tmp_path, kind, make_request)
    before, wrong = run.charges(), []
    for word, value, outcomes in CHANGES:
        outcome = run.under(word, value)
        expected = outcomes.split()[KINDS.index(kind)]
        if outcome != expected or run.charges() != before:
            wrong.append((word, value, expected, outcome))
    assert wrong == []
    assert run.again() == run.first  # nothing stays of a change that is taken back


def test_a_masked_sum_is_no_way_to_single_replies_that_are_not_paid_for(
    tmp_path: Path, make_request: Make
) -> None:
    run = Run(tmp_path, "masked", make_request)
    content = shared(make_request(clip="record"), 3).to_record()
    for rule, code in (("trusted", RUN_TAKEN), ("masked", REFUSED)):
        run.file.write_text(run.text.replace('"masked"', f'"{rule}"'))
        message = Message(content, dst_node_id=node_of(0), message_type=KIND, group_id="1")
        [reply] = run.nodes.execute([message])
        assert reply.error.code == code
    assert run.again() == run.first


def test_a_statement_tells_the_rule_that_was_charged(tmp_path: Path, make_request: Make) -> None:
    """Also when the owner's rule has changed since: it is the rule that the price depends on."""
    for kind, rule in (("share", "trusted"), ("own", "untrusted")):
        run = Run(tmp_path / kind, kind, make_request)
        close_nodes()
        run.file.write_text(re.sub(r"secure_aggregation = .*", 'secure_aggregation = "untrusted"',
                                   run.text))  # fmt: skip
        node = Node(NodeSettings.from_policy(read_policy(run.file), clients=3), 0)
        stated = node.statement("unnamed")
        assert stated is not None
        said, _ = ChargeStatement.verified(stated)
        assert (len(said.charges), said.aggregation) == (1, rule)


def test_every_word_is_changed() -> None:
    """All but the state's folder, the node's whole memory, what names keys, and the format."""
    tables = {"data", "state", "noise", "budget", "allow", "operators", "aggregation"}
    changed = {part for word, value, _ in CHANGES for part in (*word.split("."), *_keys(value))}
    words = {*WORDS, *(key for name in ANSWERS.own for key in ANSWERS[name].limits)}
    assert words - changed - tables == {"folder", "authority", "certificate", "format"}


def _keys(value: Any) -> list[str]:
    return list(value) if isinstance(value, dict) else []
