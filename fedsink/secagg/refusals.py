"""Reasons why a client leaves a message of secure aggregation, and why a server gives one up."""

from __future__ import annotations

from fedsink.errors import ClientError, ReleaseRefusedError


class AggregationError(ReleaseRefusedError):
    """A client does not continue a message of secure aggregation."""


class RosterError(AggregationError):
    """A roster of keys is not the one that the owner's rules allow."""


class SecretSharesError(AggregationError):
    """Forwarded shares are not those that the roster's clients encrypted for this client."""


class SurvivorsError(AggregationError):
    """A set of survivors is too small, is not signed by enough peers, or leaves this client out."""


class AnsweredError(AggregationError):
    """A client has answered this step of the message already, for other content."""


class VoidMessageError(ClientError):
    """Too few clients are left to unmask a message; its sum is lost.

    Args:
        trip: the step that ended it.
        clients: number of clients that answered.
        needed: number of clients that had to.
    """

    def __init__(self, trip: str, clients: int, needed: int) -> None:
        super().__init__(
            f"The message is void: {clients} clients answered in the trip {trip!r}, and {needed} "
            "are needed. Its charge stays, and no step is taken."
        )
        self.trip, self.clients, self.needed = trip, clients, needed
