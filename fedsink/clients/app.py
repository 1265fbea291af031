"""The Flower `ClientApp` of every engine and of real devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsink.clients.answers.registry import ANSWERS
from fedsink.clients.node import Node, open_node
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.policy_file import read_policy
from fedsink.errors import ConfigError, ReleaseRefusedError
from fedsink.protocol.aggregation import TRIPS
from fedsink.protocol.failure_codes import failure_code
from fedsink.protocol.signing import (
    asked_run,
    give,
    give_statement,
    identity_record,
    shown_receipts,
)

Handler = Callable[[Node, str, RecordDict], RecordDict]
"""The reply of a node to a message's type and content."""


def client_app(settings: NodeSettings) -> ClientApp:
    """Returns a `ClientApp` that answers for the virtual client named by `partition-id`.

    It answers `query.identity` (which client is this?), the queries of secure aggregation, and
    every type of `ANSWERS`.

    Guarantees:
        An error's text never leaves the client: the server learns only a code.
    """
    return _answering(lambda context: settings)


def owners_settings(context: Context) -> NodeSettings:
    """Returns a real node's settings: from its owner's policy file, which `--node-config` names.

    `node_config` comes from the owner, who started the SuperNode with it: `policy` (a path),
    `partition-id` (this node's number), `num-partitions` (number of nodes that take part) and
    `device` (default "cpu"). `run_config` comes from the run's submitter, and is not read.

    Raises:
        ConfigError: the node was started without a policy, or with one that contains a mistake.
        PrivacyError: its state folder cannot be made, or secure noise needs OpenDP.
    """
    policy = context.node_config.get("policy")
    if not isinstance(policy, str) or not policy:
        raise ConfigError(
            'This node was started without a policy: add policy="/path/to/policy.toml" to its '
            "--node-config."
        )
    nodes = _number("num-partitions", context.node_config.get("num-partitions"))
    device = str(context.node_config.get("device", "cpu"))
    return NodeSettings.from_policy(read_policy(Path(policy)), clients=nodes, device=device)


def _answering(settings_of: Callable[[Context], NodeSettings]) -> ClientApp:
    app = ClientApp()

    def answer(handler: Handler) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            client = context.node_config.get("partition-id")
            try:
                settings = settings_of(context)
                torch.set_num_threads(settings.threads)
                node = open_node(settings, _number("partition-id", client))
                try:
                    reply = handler(node, message.metadata.message_type, message.content)
                except ReleaseRefusedError as refusal:
                    node.note_refusal(refusal)
                    raise
            except Exception as error:
                return Message(Error(failure_code(error, client)), reply_to=message)
            return Message(reply, reply_to=message)

        return handle

    app.query("identity")(answer(_identity))
    for trip in TRIPS:
        app.query(trip)(answer(Node.aggregate))
    for name in ANSWERS:
        app.train(name)(answer(Node.answer))
    return app


def _number(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, not {value!r}.")
    return value


def _identity(node: Node, message_type: str, content: RecordDict) -> RecordDict:
    record = identity_record(node.client)
    if (receipt := node.receipt(shown_receipts(content))) is not None:
        give(record, receipt)
        run = asked_run(content)
        if run is not None and (signed := node.statement(run)) is not None:
            give_statement(record, signed)
    return record


app = _answering(owners_settings)
"""The `ClientApp` of a deployment, named by deploy/pyproject.toml."""
