"""The errors that fedsink raises for its user: a sentence that says what to do, no traceback."""

from __future__ import annotations

from typing import ClassVar


class FedsinkError(Exception):
    """Base of every error that the user can fix; the command line prints it in one line."""

    exit_code: ClassVar[int] = 2

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that a notebook shows, without the frames of fedsink's functions."""
        return [f"{type(self).__name__}: {self}"]


class ConfigError(FedsinkError, ValueError):
    """A configuration value is unknown, out of range, or contradicts another."""


class DataError(FedsinkError, ValueError):
    """Private data cannot be found or read, or differs from its public description."""


class PrivacyError(FedsinkError, ValueError):
    """A privacy parameter is invalid, or the requested guarantee cannot be given."""


class ModelError(FedsinkError, ValueError):
    """A generator cannot be built or loaded."""


class BackendError(FedsinkError):
    """The chosen library for transport problems is missing, or cannot compile."""


class MissingPackageError(FedsinkError, ImportError):
    """A Python package that the call needs is not installed: fedsink has it, fedsink-core less."""


class CheckpointError(FedsinkError):
    """A run folder cannot be resumed: a file is missing, corrupt, or belongs to another run."""


class ClientError(FedsinkError):
    """Clients failed or refused, and the run cannot continue without them."""

    exit_code: ClassVar[int] = 1


class ProtocolVersionError(FedsinkError, ValueError):
    """The other side speaks another version of the protocol.

    Args:
        theirs: version of the other side; None where it states none, as before version 3.
        ours: version of this side.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, theirs: object, ours: int) -> None:
        named = "a version of the protocol before 3" if theirs is None else f"protocol {theirs!r}"
        super().__init__(
            f"The other side speaks {named[:60]}, this one {ours}: install one version of fedsink "
            "on both."
        )


class TransferError(FedsinkError):
    """Results did not arrive as they were sent; fetch them again."""

    exit_code: ClassVar[int] = 1


class ReleaseRefusedError(ClientError):
    """A client refuses to answer: its budget, its policy or an earlier answer forbids the reply.

    The text is for the node's owner; the server learns only a code.
    """


class RolledBackError(ReleaseRefusedError):
    """A node's ledger is older than the state that the node has shown to a server."""


class UnsignedRequestError(ReleaseRefusedError):
    """A node answers only named operators, and nobody has signed the request."""


class UnknownOperatorError(ReleaseRefusedError):
    """A request is signed with a key that the node's owner does not name."""


class BadSignatureError(ReleaseRefusedError):
    """A request differs from the one that its operator signed, or is for another node."""


class RunTakenError(ReleaseRefusedError):
    """A node knows the run's name for another plan, privacy unit, data or words of its policy."""


class BudgetError(ReleaseRefusedError):
    """The release would cost more than the owner's budget has left."""


class LedgerError(FedsinkError):
    """The ledger or a stored reply cannot be read or written; nothing is released without it."""

    exit_code: ClassVar[int] = 1
