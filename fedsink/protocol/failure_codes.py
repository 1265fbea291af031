"""Codes a client answers with when it cannot answer. The reason stays on the client."""

from __future__ import annotations

import logging

from fedsink.errors import (
    BadSignatureError,
    DailyLimitError,
    ProtocolVersionError,
    ReleaseRefusedError,
    RolledBackError,
    RunTakenError,
    UnknownOperatorError,
    UnsignedRequestError,
)
from fedsink.secagg.refusals import REFUSALS

log = logging.getLogger("fedsink.clients")

REFUSED = 1001
MALFORMED = 1002
FAILED = 1003
UNUSABLE = 1004
OTHER_VERSION = 1005
ROLLED_BACK = 1011
UNSIGNED = 1012
UNKNOWN_OPERATOR = 1013
BAD_SIGNATURE = 1014
TOO_MANY_RUNS = 1015
RUN_TAKEN = 1016

MEANING = {
    REFUSED: "refused the request",
    MALFORMED: "could not use the request or its data",
    FAILED: "failed",
    OTHER_VERSION: "speaks another version of the protocol",
    ROLLED_BACK: "refuses everything, because its ledger is older than a receipt of its own",
    UNSIGNED: "answers requests of named operators alone, and this one is not signed",
    UNKNOWN_OPERATOR: "does not know the operator who signed the request",
    BAD_SIGNATURE: "was sent another request than the one that was signed for it",
    TOO_MANY_RUNS: "admits no new run today, by its owner's limit",
    RUN_TAKEN: "knows this run's name for another plan, privacy unit or version of its data",
    UNUSABLE: "answered with something else than finite values of the shape asked for",
    **{refusal.code: refusal.meaning for refusal in REFUSALS},
}


_REFUSALS: dict[type[Exception], int] = {
    RolledBackError: ROLLED_BACK,
    UnsignedRequestError: UNSIGNED,
    UnknownOperatorError: UNKNOWN_OPERATOR,
    BadSignatureError: BAD_SIGNATURE,
    DailyLimitError: TOO_MANY_RUNS,
    RunTakenError: RUN_TAKEN,
    **{refusal: refusal.code for refusal in REFUSALS},
}
"""Refusals that say nothing of the data, and that the server can do something about."""


def failure_code(error: Exception, client: object) -> int:
    """Logs why a client cannot answer, and returns the code; the server learns only the code."""
    if isinstance(error, ReleaseRefusedError):
        log.warning("%s", error)
        return _REFUSALS.get(type(error), REFUSED)
    if isinstance(error, ProtocolVersionError):
        log.warning("client %s cannot answer: %s", client, error)
        return OTHER_VERSION
    if isinstance(error, ValueError | TypeError):
        log.warning("client %s cannot answer: %s", client, error)
        return MALFORMED
    log.error("client %s failed", client, exc_info=error)
    return FAILED
