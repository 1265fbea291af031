"""Division of a round's noise: every client adds all of it, or a cohort adds it in parts.

>>> from fedsink.privacy.sampling import ClassSchedule
>>> share = NoiseShare("secure_aggregation", tolerate_dropouts=2)
>>> [share.parts(ClassSchedule(10), client, 105) for client in (0, 9)]
[9, 8]
"""

from __future__ import annotations

from dataclasses import dataclass

from fedsink.errors import PrivacyError
from fedsink.privacy.integer_gaussian import check_bits
from fedsink.privacy.plan import PrivacyPlan
from fedsink.privacy.sampling import Schedule

DRAWS = "auto", "clients", "sum"
SHARES = LOCAL, SECURE_AGGREGATION = "local", "secure_aggregation"
OWN_DRAWS = 100
"""As many clients draw noise of their own under draw="auto"; the sum of more is drawn once."""


@dataclass(frozen=True)
class NoiseShare:
    """Divides the noise N(0, (σS)² I) of one round among the m clients of a cohort.

    A cohort gets one request: all K clients under the joint schedule, those of one class under
    the class schedule, those of one turn under the turn schedule, and one client where clients are
    picked. Its size is public, and its replies are added up.

    - ``"local"``: each client adds N(0, (σS)² I); every reply is private by itself.
    - ``"secure_aggregation"``: each rounds its total to integers and adds a discrete Gaussian, so
      that any t′ = m − d of the m replies have a single curator's noise in their sum
      (`fedsink.privacy.integer_gaussian`, with the proof). One record changes one summand, its
      client samples it with probability q, and other clients sample on their own: what holds for
      one reply with the whole noise, a Poisson-subsampled Gaussian (q, σ), holds for the sum. It
      holds only where nobody sees less than the sum. Of a sum in which x of t′ parts are missing,
      because their clients reveal their noise, σ·√((t′ − x)/t′) is left; of a single reply σ/√t′.

    Guarantees:
        - Any t′ parts of a cohort carry the plan's noise.
        - A cohort of one adds the whole noise.

    Args:
        name: one of `SHARES`.
        tolerate_dropouts: d ≥ 0, number of a cohort's parts that may be missing before the sum has
            less noise than the plan.
        bits: b, from 16 to 60: sums are integers modulo 2^b.
        draw: "clients": a simulation draws every client's noise; "sum": it draws that of the
            replies' sum once, with the same law; "auto": the second where it can, for shared noise
            and for more than `OWN_DRAWS` clients.
        masked: replies are added up under masks (`fedsink.secagg`).

    Raises:
        PrivacyError: If a value is unknown or out of range; or d > 0 or masks under "local", or
            masks with draw="sum".
    """

    name: str = LOCAL
    tolerate_dropouts: int = 0
    bits: int = 32
    draw: str = "auto"
    masked: bool = False

    def __post_init__(self) -> None:
        if self.name not in SHARES:
            raise PrivacyError(f"noise.share is {' or '.join(SHARES)}, not {self.name!r}.")
        if self.draw not in DRAWS:
            raise PrivacyError(f"noise.draw is {', '.join(DRAWS)}, not {self.draw!r}.")
        check_bits(self.bits)
        allowed = self.tolerate_dropouts
        if isinstance(allowed, bool) or not isinstance(allowed, int) or allowed < 0:
            raise PrivacyError(
                f"noise.tolerate_dropouts must be a whole number of at least 0, not {allowed!r}."
            )
        if allowed and self.name == LOCAL:
            raise PrivacyError(
                f"noise.tolerate_dropouts={allowed} belongs to noise.share={SECURE_AGGREGATION}: "
                "with local noise no reply needs another."
            )
        if self.masked and self.name == LOCAL:
            raise PrivacyError(
                f"noise.masked=true belongs to noise.share={SECURE_AGGREGATION}: masks hide "
                "replies with a part of the noise."
            )
        if self.masked and self.draw == "sum":
            raise PrivacyError(
                "noise.draw=sum makes no client's reply, and masks hide replies: leave noise.draw "
                "out, or noise.masked=true."
            )

    def parts(self, schedule: Schedule, client: int, clients: int) -> int:
        """Returns t′, the number of clients that `client`'s cohort spreads its noise over."""
        if self.name == LOCAL:
            return 1
        return schedule.cohort(client, clients) - self.tolerate_dropouts

    def cohorts(self, schedule: Schedule, clients: int) -> list[int]:
        """Returns the different sizes m of the cohorts, increasing: one, or two where C ∤ K."""
        some = range(min(clients, schedule.cohorts))
        return sorted({schedule.cohort(client, clients) for client in some})

    def check(self, schedule: Schedule, clients: int) -> None:
        """Raises PrivacyError where d leaves a cohort without a client that adds noise."""
        smallest = self.cohorts(schedule, clients)[0]
        if self.tolerate_dropouts >= smallest:
            raise PrivacyError(
                f"noise.tolerate_dropouts={self.tolerate_dropouts} must be below the smallest "
                f"cohort, and {smallest} of clients={clients} "
                f"{'is' if smallest == 1 else 'are'} asked the same in a round."
            )

    def gains(self, schedule: Schedule, clients: int) -> bool:
        """True if any client adds less than the whole noise."""
        return any(self.parts(schedule, k, clients) > 1 for k in range(schedule.cohorts))

    def left(self, plan: PrivacyPlan, clients: int, colluders: int) -> PrivacyPlan:
        """Returns the plan with the noise that is left against server and x clients of a cohort.

        In the worst case d others have dropped out: of t′ parts t′ − x are left, in the cohort
        where that is least. One is always left: nobody else knows a client's own noise.
        """
        parts = [m - self.tolerate_dropouts for m in self.cohorts(plan.schedule, clients)]
        return plan.with_noise(min(max(1, t - colluders) / t for t in parts))


LOCAL_NOISE = NoiseShare()
