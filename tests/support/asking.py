"""A node's replies to single messages, as tensors."""

from __future__ import annotations

from collections.abc import Sequence

from fedsink_papers.parameter_gradient.answer import ParameterGradientAnswer
from fedsink_papers.parameter_gradient.request import ParameterRequest
from torch import Tensor

from fedsink.clients.answers.dp_sinkhorn import DPSinkhornAnswer
from fedsink.clients.answers.privatize_once import PrivatizeOnceAnswer
from fedsink.clients.node import Node
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.privatize_once import PrivatizeReply, PrivatizeRequest


def gradients(node: Node, requests: Sequence[GradientRequest], digest: bytes) -> list[Tensor]:
    """The gradients of several rounds."""
    reply = node.reply(DPSinkhornAnswer(requests), digest)
    return [reply[str(request.round)] for request in requests]


def gradient(node: Node, request: GradientRequest, digest: bytes) -> Tensor:
    """The gradient of one round."""
    return gradients(node, [request], digest)[0]


def weights_gradient(node: Node, request: ParameterRequest, digest: bytes) -> Tensor:
    """The gradient of a generator's weights."""
    return node.reply(ParameterGradientAnswer([request]), digest)[str(request.gradient.round)]


def privatized(node: Node, request: PrivatizeRequest, digest: bytes) -> PrivatizeReply:
    """Returns one chunk of the privatized records."""
    answer = PrivatizeOnceAnswer([request])
    return PrivatizeReply.from_record(answer.record(node.reply(answer, digest)))
