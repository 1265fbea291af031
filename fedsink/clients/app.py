"""The Flower `ClientApp`: the same under every engine and on real devices."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable

import torch
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsink.clients.journal import ReleaseRefusedError
from fedsink.clients.node import Node, open_node
from fedsink.clients.settings import NodeSettings
from fedsink.protocol import GradientRequest, PrivatizeRequest
from fedsink.protocol.errors import FAILED, MALFORMED, REFUSED
from fedsink.protocol.records import digest

log = logging.getLogger("fedsink.clients")

Handler = Callable[[Node, RecordDict], RecordDict]


def client_app(settings: NodeSettings) -> ClientApp:
    """A `ClientApp` that answers for the virtual client named by `partition-id`.

    It answers `query.identity` (which client is this?), `train.gradient` (central mode) and
    `train.privatize` (local mode).

    Guarantees:
        An error's text never leaves the client: the server learns a code.
    """
    app = ClientApp()

    def answer(handler: Handler) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            client = context.node_config.get("partition-id")
            try:
                torch.set_num_threads(settings.threads)
                reply = handler(open_node(settings, _number(client)), message.content)
            except ReleaseRefusedError as refusal:
                log.warning("%s", refusal)
                return Message(Error(REFUSED), reply_to=message)
            except (ValueError, TypeError) as error:
                log.warning("client %s cannot answer: %s", client, error)
                return Message(Error(MALFORMED), reply_to=message)
            except Exception:
                log.exception("client %s failed", client)
                return Message(Error(FAILED), reply_to=message)
            return Message(reply, reply_to=message)

        return handle

    app.query("identity")(answer(_identity))
    app.train("gradient")(answer(_gradient))
    app.train("privatize")(answer(_privatize))
    return app


def _number(partition_id: object) -> int:
    if isinstance(partition_id, bool) or not isinstance(partition_id, int):
        raise ValueError(f"partition-id must be a whole number, not {partition_id!r}.")
    return partition_id


def _identity(node: Node, content: RecordDict) -> RecordDict:
    return RecordDict({"identity": ConfigRecord({"client": node.client})})


def _gradient(node: Node, content: RecordDict) -> RecordDict:
    request = GradientRequest.from_record(content)
    return node.gradient(request, digest(content)).to_record()


def _privatize(node: Node, content: RecordDict) -> RecordDict:
    request = PrivatizeRequest.from_record(content)
    # The release is a function of the plan alone; which chunk of it is asked for is not.
    plan = json.dumps(request.plan.to_dict(), sort_keys=True).encode()
    return node.privatized(request, hashlib.sha256(plan).digest()).to_record()
