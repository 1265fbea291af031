"""The Flower `ClientApp`: the same under every engine and on real devices."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsink.clients.node import Node, open_node
from fedsink.clients.settings import NodeSettings
from fedsink.errors import ConfigError, ReleaseRefusedError
from fedsink.protocol import PrivatizeRequest
from fedsink.protocol.errors import FAILED, MALFORMED, REFUSED
from fedsink.protocol.gradient import pack_replies, unpack_requests
from fedsink.protocol.parameters import ParameterRequest
from fedsink.protocol.privatize import asked_mechanism
from fedsink.protocol.records import digest, pack

log = logging.getLogger("fedsink.clients")

Handler = Callable[[Node, RecordDict, str], RecordDict]
"""The reply of a node to a message's content and type."""


def client_app(settings: NodeSettings) -> ClientApp:
    """A `ClientApp` that answers for the virtual client named by `partition-id`.

    It answers `query.identity` (which client is this?), `train.gradient` and `train.parameters`
    (central mode) and `train.privatize` (local mode).

    Guarantees:
        An error's text never leaves the client: the server learns a code.
    """
    return _answering(lambda context: settings)


def owners_settings(context: Context) -> NodeSettings:
    """A real node's settings: from its owner's policy file, which `--node-config` names.

    `node_config` is what the owner started the SuperNode with: `policy` (a path), `partition-id`
    (this node's number), `num-partitions` (how many nodes take part) and `device` ("cpu" where it
    is left out). `run_config`, which comes from whoever submitted the run, is not read at all.

    Raises:
        ConfigError: the node was started without a policy, or with one that contains a mistake.
        PrivacyError: its noise key cannot be made or used.
    """
    policy = context.node_config.get("policy")
    if not isinstance(policy, str) or not policy:
        raise ConfigError(
            'This node was started without a policy: add policy="/path/to/policy.toml" to its '
            "--node-config."
        )
    nodes = _number("num-partitions", context.node_config.get("num-partitions"))
    device = str(context.node_config.get("device", "cpu"))
    return NodeSettings.from_policy(Path(policy), clients=nodes, device=device)


def _answering(settings_of: Callable[[Context], NodeSettings]) -> ClientApp:
    app = ClientApp()

    def answer(handler: Handler) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            client = context.node_config.get("partition-id")
            try:
                settings = settings_of(context)
                torch.set_num_threads(settings.threads)
                node = open_node(settings, _number("partition-id", client))
                reply = handler(node, message.content, message.metadata.message_type)
            except Exception as error:
                return Message(Error(failure_code(error, client)), reply_to=message)
            return Message(reply, reply_to=message)

        return handle

    app.query("identity")(answer(_identity))
    app.train("gradient")(answer(_gradient))
    app.train("parameters")(answer(_parameters))
    app.train("privatize")(answer(_privatize))
    return app


def failure_code(error: Exception, client: object) -> int:
    """Log why a client cannot answer, and return the code that is all the server learns."""
    if isinstance(error, ReleaseRefusedError):
        log.warning("%s", error)
        return REFUSED
    if isinstance(error, ValueError | TypeError):
        log.warning("client %s cannot answer: %s", client, error)
        return MALFORMED
    log.error("client %s failed", client, exc_info=error)
    return FAILED


def _number(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, not {value!r}.")
    return value


def _identity(node: Node, content: RecordDict, message_type: str) -> RecordDict:
    return RecordDict({"identity": ConfigRecord({"client": node.client})})


def _gradient(node: Node, content: RecordDict, message_type: str) -> RecordDict:
    requests = unpack_requests(content)
    return pack_replies(node.gradients(requests, digest(message_type, content)))


def _parameters(node: Node, content: RecordDict, message_type: str) -> RecordDict:
    request = ParameterRequest.from_record(content)
    return node.parameter_gradient(request, digest(message_type, content)).to_record()


def _privatize(node: Node, content: RecordDict, message_type: str) -> RecordDict:
    # Before the plan is read: its mechanism may be an installed package's.
    node.check_mechanism(asked_mechanism(content))
    request = PrivatizeRequest.from_record(content)
    # The release is a function of the plan alone; which chunk of it is asked for is not.
    plan = digest(message_type, pack({"plan": request.plan.to_dict()}, {}))
    return node.privatized(request, plan).to_record()


app = _answering(owners_settings)
"""The `ClientApp` of a deployment, named by deploy/pyproject.toml."""
