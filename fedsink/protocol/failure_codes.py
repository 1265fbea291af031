"""Codes a client answers with when it cannot answer. The reason stays on the client."""

from __future__ import annotations

import logging

from fedsink.errors import (
    BadSignatureError,
    ProtocolVersionError,
    ReleaseRefusedError,
    RolledBackError,
    RunTakenError,
    UnknownOperatorError,
    UnsignedRequestError,
)
from fedsink.secagg.refusals import (
    AnsweredError,
    CohortError,
    MalformedTripError,
    OutOfTurnError,
    RosterError,
    SecretSharesError,
    SumError,
    SurvivorsError,
    UnsignedSurvivorsError,
    UntrustedPeerError,
    WeakKeyError,
    WeakThresholdError,
)

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
RUN_TAKEN = 1016
ROSTER_REFUSED = 1017
SHARES_REFUSED = 1018
SURVIVORS_REFUSED = 1019
SUMMED_ALREADY = 1020
UNTRUSTED_PEER = 1021
SMALL_COHORT = 1022
WEAK_THRESHOLD = 1023
WEAK_KEY = 1024
UNSIGNED_SURVIVORS = 1025
OUT_OF_TURN = 1026
MALFORMED_TRIP = 1027
SUM_REFUSED = 1028

MEANING = {
    REFUSED: "refused the request",
    MALFORMED: "could not use the request or its data",
    FAILED: "failed",
    OTHER_VERSION: "speaks another version of the protocol",
    ROLLED_BACK: "refuses everything, because its ledger is older than one of its receipts",
    UNSIGNED: "answers only requests of named operators, and this one is not signed",
    UNKNOWN_OPERATOR: "does not know the operator who signed the request",
    BAD_SIGNATURE: "was sent another request than the one that was signed for it",
    RUN_TAKEN: "knows this run's name for another plan, privacy unit, data or words of its policy",
    ROSTER_REFUSED: "was sent a roster that changes its keys, or names a stranger or a key twice",
    SHARES_REFUSED: "was sent shares that its peers did not encrypt for it in this message",
    SURVIVORS_REFUSED: "was sent survivors that leave it out, or that did not share",
    SUMMED_ALREADY: "has answered this step of the sum, for other content or until it forgot it",
    UNTRUSTED_PEER: "was sent a roster with a key that its owner does not trust",
    SMALL_COHORT: "adds its data to no sum over so few clients",
    WEAK_THRESHOLD: "shares no secret that so few clients could put together",
    WEAK_KEY: "was sent a weak key",
    UNSIGNED_SURVIVORS: "was not shown enough signatures of the survivors that it signed",
    OUT_OF_TURN: "was asked the steps of a sum in another order",
    MALFORMED_TRIP: "was sent bytes that are no step of a sum",
    SUM_REFUSED: "was sent a sum of other replies, over other clients, or with too little noise",
    UNUSABLE: "answered with something else than finite values of the shape asked for",
}


_REFUSALS: dict[type[Exception], int] = {
    RolledBackError: ROLLED_BACK,
    UnsignedRequestError: UNSIGNED,
    UnknownOperatorError: UNKNOWN_OPERATOR,
    BadSignatureError: BAD_SIGNATURE,
    RunTakenError: RUN_TAKEN,
    RosterError: ROSTER_REFUSED,
    SecretSharesError: SHARES_REFUSED,
    SurvivorsError: SURVIVORS_REFUSED,
    AnsweredError: SUMMED_ALREADY,
    UntrustedPeerError: UNTRUSTED_PEER,
    CohortError: SMALL_COHORT,
    WeakThresholdError: WEAK_THRESHOLD,
    WeakKeyError: WEAK_KEY,
    UnsignedSurvivorsError: UNSIGNED_SURVIVORS,
    OutOfTurnError: OUT_OF_TURN,
    MalformedTripError: MALFORMED_TRIP,
    SumError: SUM_REFUSED,
}
"""Refusals that say nothing of the data, and that the server can do something about."""


def failure_code(error: Exception, client: object) -> int:
    """Logs why a client cannot answer, and returns the code; the server learns only the code."""
    if isinstance(error, ReleaseRefusedError):
        log.warning("%s", error)
        return _REFUSALS.get(type(error), REFUSED)
    if isinstance(error, ValueError | TypeError):
        log.warning("client %s cannot answer: %s", client, error)
        return OTHER_VERSION if isinstance(error, ProtocolVersionError) else MALFORMED
    log.error("client %s failed", client, exc_info=error)
    return FAILED
