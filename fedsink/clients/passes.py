"""What a process may answer whose ledger is another process's: what was admitted there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fedsink.clients.ledger.charge import Charge
from fedsink.clients.ledger.places import Place
from fedsink.clients.releases import Admitted, release_key, reservation_name, use_digests
from fedsink.errors import ReleaseRefusedError


class Passes:
    """In the place of `Releases` at simulated clients on other machines than their ledger.

    Guarantees:
        - Nothing is answered whose charge has not been committed where the ledger is.
        - A pass is for one message under one reservation, and noise is drawn under the digests
          that were charged.
    """

    def __init__(self) -> None:
        self._digests: frozenset[bytes] = frozenset()

    def grant(self, digests: Iterable[bytes]) -> None:
        """Answer what has these digests, and nothing else any more.

        Args:
            digests: of all admitted uses, as `Admitted.digests` states them.
        """
        self._digests = frozenset(digests)

    def admit(
        self,
        run: str,
        charge: Charge,
        places: Sequence[Place],
        digest: bytes,
        content: Callable[[], bytes],
        method: str | None = None,
        operator: str | None = None,
    ) -> Admitted:
        """What `Releases.admit` gave where the ledger is; the arguments are its own.

        Raises:
            ReleaseRefusedError: it gave nothing for this message and these data.
        """
        reservation = reservation_name(run, charge, content())
        digests = use_digests(release_key(reservation, digest), len(places))
        if not self._digests.issuperset(digests):
            raise ReleaseRefusedError(
                f"No charge of the run {run} was committed for this message and these data."
            )
        return Admitted.unrecorded(digests)
