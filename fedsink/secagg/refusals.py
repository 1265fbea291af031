"""Reasons why a client leaves a message of secure aggregation, and why a server gives one up.

The server learns a refusal's code only (`fedsink.protocol.failure_codes`).
"""

from __future__ import annotations

from fedsink.errors import ClientError, ReleaseRefusedError


class AggregationError(ReleaseRefusedError):
    """A client does not continue a message of secure aggregation."""


class MalformedTripError(AggregationError, ValueError):
    """The bytes of a trip are no message of secure aggregation."""


class RosterError(AggregationError):
    """A roster leaves this client out, changes its keys, or names a client or a key twice."""


class UntrustedPeerError(AggregationError):
    """A key of the roster is none that the owner trusts, or has not signed for this message."""


class CohortError(AggregationError):
    """A sum over fewer clients than the owner, or the message, demands."""


class WeakThresholdError(AggregationError):
    """Fewer shares than is safe would give a secret."""


class WeakKeyError(AggregationError):
    """A public key is of small order, or encoded in a second way: others know its secrets."""


class SecretSharesError(AggregationError):
    """Forwarded shares are not those that the roster's clients encrypted for this client."""


class SurvivorsError(AggregationError):
    """A set of survivors leaves this client out, or names a client that sent no shares."""


class UnsignedSurvivorsError(AggregationError):
    """Too few clients have signed the same roster, sharers and survivors."""


class SumError(AggregationError):
    """A sum of other replies, or over other clients, than the request asks for."""


class AnsweredError(AggregationError):
    """A client has answered this trip already, for other content, or its answer is wiped."""


class OutOfTurnError(AggregationError):
    """A trip is asked before the one that comes before it."""


class VoidMessageError(ClientError):
    """Too few clients are left to unmask a message; its sum is lost."""

    def __init__(self, trip: str, clients: int, needed: int) -> None:
        super().__init__(
            f"The message is void: {clients} clients answered in the trip {trip!r}, and {needed} "
            "are needed. What clients have charged stays, and no step is taken."
        )
        self.trip, self.clients, self.needed = trip, clients, needed


class WrongShareError(VoidMessageError):
    """Shares of a secret were given that do not fit together, or not the client's public key."""

    def __init__(self, owner: int) -> None:
        ClientError.__init__(
            self,
            f"The message is void: the shares of a secret of client {owner} do not fit together, "
            "or not its key: this client, or one around it, gave wrong ones. What clients have "
            "charged stays, and no step is taken.",
        )
        self.trip, self.clients, self.needed = "unmask", 0, 0
