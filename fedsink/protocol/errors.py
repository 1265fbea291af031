"""Codes a client answers with when it cannot answer. The reason stays on the client."""

from __future__ import annotations

REFUSED = 1001
MALFORMED = 1002
FAILED = 1003
UNUSABLE = 1004

MEANING = {
    REFUSED: "refused the request",
    MALFORMED: "could not use the request or its data",
    FAILED: "failed",
    UNUSABLE: "answered with something else than finite values of the shape asked for",
}
