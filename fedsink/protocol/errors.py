"""Codes a client answers with when it cannot answer. The reason stays on the client."""

from __future__ import annotations

import logging

from fedsink.errors import ProtocolVersionError, ReleaseRefusedError

log = logging.getLogger("fedsink.clients")

REFUSED = 1001
MALFORMED = 1002
FAILED = 1003
UNUSABLE = 1004
OTHER_VERSION = 1005

MEANING = {
    REFUSED: "refused the request",
    MALFORMED: "could not use the request or its data",
    FAILED: "failed",
    OTHER_VERSION: "speaks another version of the protocol",
    UNUSABLE: "answered with something else than finite values of the shape asked for",
}


def failure_code(error: Exception, client: object) -> int:
    """Log why a client cannot answer, and return the code that is all the server learns."""
    if isinstance(error, ReleaseRefusedError):
        log.warning("%s", error)
        return REFUSED
    if isinstance(error, ProtocolVersionError):
        log.warning("client %s cannot answer: %s", client, error)
        return OTHER_VERSION
    if isinstance(error, ValueError | TypeError):
        log.warning("client %s cannot answer: %s", client, error)
        return MALFORMED
    log.error("client %s failed", client, exc_info=error)
    return FAILED
