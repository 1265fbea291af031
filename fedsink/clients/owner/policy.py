"""Limits that the owner of a node sets, whatever a message asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fedsink.clients.owner.ledger.charge import Budget
from fedsink.data.spec import DataSpec
from fedsink.errors import ReleaseRefusedError
from fedsink.models.generators import GENERATORS
from fedsink.secagg.parameters import NO_CERTIFICATE, Parameters, Rules
from fedsink.secagg.refusals import CohortError

if TYPE_CHECKING:
    from fedsink.privacy.plan import CentralPlan, PrivacyPlan


class PolicyRefusedError(ReleaseRefusedError):
    """The owner's policy forbids the request."""


@dataclass(frozen=True)
class AllowTable:
    """The `[allow]` table.

    Attributes:
        mechanisms: the words of the answers that may be given; see `answers_by_word`.
        generators: installed generators that a message may name; fedsink's own may always be.
        limits: the largest sizes of a message, by the keys that answers state (`Answer.limits`).
        minimum_noise_multiplier: least σ of a clipped Gaussian, noise std / sensitivity.
        minimum_clip_bound: least Δ of a clipped Gaussian.
        maximum_clip_bound: largest Δ of a clipped Gaussian.
        maximum_rounds: most rounds of a plan of the central mode; more rounds take longer to
            price.
        maximum_rate: largest sampling rate q.
        labels: class indices that may be used; None: all.
        capacity: a plan must fix its batch capacity.
        secure_aggregation: rule for replies with a part of the noise. "refused": never.
            "untrusted": allowed, judged and charged by only the noise of this reply. "masked":
            allowed only in a sum under masks (`Aggregation`), judged and charged by the noise of
            the sum. "trusted": the same without masks, because the owner vouches that nobody sees
            anything less.
    """

    mechanisms: tuple[str, ...]
    generators: tuple[str, ...]
    limits: Mapping[str, int]
    minimum_noise_multiplier: float
    minimum_clip_bound: float
    maximum_clip_bound: float
    maximum_rounds: int
    maximum_rate: float
    labels: frozenset[int] | None
    capacity: bool
    secure_aggregation: str


@dataclass(frozen=True)
class Aggregation(Rules):
    """The `[aggregation]` table: conditions of taking part in secure aggregation.

    Attributes:
        certificate: the certificate of this node's key, by the consortium's authority; zeros: none.
        tolerate_dropouts: most clients that a sum may be unmasked without; None: any number that
            leaves `minimum_cohort`.
    """

    certificate: bytes = NO_CERTIFICATE
    tolerate_dropouts: int | None = None

    def check(self, parameters: Parameters) -> None:
        """Refuses what `Rules` refuses, and a sum that may miss more clients than tolerated."""
        super().check(parameters)
        missing = len(parameters.clients) - parameters.least
        if self.tolerate_dropouts is not None and missing > self.tolerate_dropouts:
            raise CohortError(
                f"The message would unmask a sum that misses {missing} clients, and the policy's "
                f"[aggregation] tolerates {self.tolerate_dropouts}."
            )


@dataclass(frozen=True)
class AppTable:
    """The `[app]` table: what leaves of a Flower app that is not fedsink's (`fedsink.guard`).

    Attributes:
        client: "package.module:name" of the installed `ClientApp` that `fedsink node` runs, or "".
        config: the `run_config` that this app reads.
        rounds: T, the most messages of a job that are answered, of training and of evaluation each.
        delta: δ of one job, and again of the metrics of its training and of its evaluation.
        plan: T unsampled Gaussians on a client's update of the parameters; None: the app noises its
            training by records, and reserves what it costs.
        layers: each of an update's n arrays is clipped to Δ/√n, instead of all together to Δ.
        share: number of replies that a trusted sum holds at least; each has 1/share of the noise.
        metrics: [low, high] of the metrics that leave, by name.
        metrics_plan: T unsampled Gaussians on all of them, each scaled to [0, 1].
    """

    client: str
    config: Mapping[str, Any]
    rounds: int
    delta: float
    plan: PrivacyPlan | None
    layers: bool
    share: int
    metrics: Mapping[str, tuple[float, float]]
    metrics_plan: PrivacyPlan | None


@dataclass(frozen=True)
class Policy:
    """Limits in the owner's file; the ledger enforces its ε ceilings.

    Guarantees:
        - Only mechanisms, adjacencies and classes that the file names are answered.
        - An installed part of a package is imported only where the file names it.
        - The noise multiplier is at least the file's, and the clip bound lies between the file's;
          rate, rounds, and images and weights a message are at most the file's.
        - A plan for comparison with published work is refused, whatever the file says.
        - A part of the noise is refused unless the file allows it, and counts as the whole
          noise only under masks, or where the file says that the aggregation is trusted.
        - What these limits refuse is refused before any record is read.
        - Where the file names operators, no part of a request is parsed before an operator's
          signature is verified for this node.

    Attributes:
        path: the file.
        lineage: the owner's name of the data; budgets belong to it.
        data: names the records, with their public description.
        on_change: ``"inherit"`` (default): changed data keep every charge; ``"refuse"``.
        state: folder of ledger, stored replies, noise key and states.
        state_days: number of days that a state is kept after its run's last request; None: until
            the owner removes it.
        noise: ``"secure"`` or ``"fast"``.
        budgets: ceilings by adjacency.
        allowed: all other limits.
        operators: public keys of the operators whose requests are answered, by name; empty:
            requests need no signature.
        aggregation: conditions of secure aggregation; None: no part is taken in it.
        app: what leaves of a Flower app that is not fedsink's; None: there is none.
    """

    path: Path
    lineage: str
    data: DataSpec
    on_change: str
    state: Path
    state_days: float | None
    noise: str
    budgets: Mapping[str, Budget]
    allowed: AllowTable
    operators: Mapping[str, bytes]
    aggregation: Aggregation | None = None
    app: AppTable | None = None

    @property
    def ledger(self) -> Path:
        """The node's ledger."""
        return self.state / "ledger.sqlite"

    @property
    def key_file(self) -> Path:
        """The node's secret noise key, where noise is "fast"."""
        return self.state / "noise.key"

    @property
    def states(self) -> Path:
        """Folder of the states that answers keep between messages: as private as the data."""
        return self.state / "states"

    @property
    def sessions(self) -> Path:
        """Folder of the sessions of secure aggregation: as private as the data."""
        return self.state / "sessions"

    @property
    def trusts_aggregation(self) -> bool:
        """True if a part of the noise is charged as the noise of the sum it is part of."""
        return self.allowed.secure_aggregation in ("masked", "trusted")

    @property
    def price_words(self) -> dict[str, Any]:
        """The policy's words that the price of a reply with a part of the noise depends on.

        They are part of the reservation. Every other word either decides anew at each message, or
        is part of the reservation in another way: lineage and budget by the account, the records by
        their fingerprint.
        """
        words: dict[str, Any] = {"secure_aggregation": self.allowed.secure_aggregation}
        if words["secure_aggregation"] == "masked" and self.aggregation is not None:
            for name in ("minimum_cohort", "threshold", "tolerate_dropouts"):
                words[name] = getattr(self.aggregation, name)
        return words

    def check_mechanism(self, name: str) -> None:
        """Refuses a mechanism that the file does not name.

        Raises:
            PolicyRefusedError: names the key that forbids it; so do all checks here.
        """
        if name not in self.allowed.mechanisms:
            self._refuse("allow.mechanisms", f"the message asks for {name}")

    def check_generator(self, name: object) -> None:
        """Refuses a generator that is neither fedsink's own nor named by the file."""
        if name not in GENERATORS.own and name not in self.allowed.generators:
            self._refuse("allow.generators", f"the message asks for {name}")

    def check_limit(self, key: str, size: int, what: str) -> None:
        """Refuses a message that holds more of something than the limit of this key."""
        if size > self.allowed.limits[key]:
            self._refuse(f"allow.{key}", f"the message holds {size} {what}")

    def check_request(self, plan: CentralPlan, parts: int, label: int | None) -> None:
        """Refuses a round of a plan of the central mode.

        Args:
            plan: the one that the round belongs to.
            parts: number of clients that its noise is spread over.
            label: the class of the sampled records; None: records of every class.
        """
        if parts > 1 and self.allowed.secure_aggregation == "refused":
            self._refuse(
                "allow.secure_aggregation", f"the message asks for noise that {parts} clients share"
            )
        self._check_plan(plan if self.trusts_aggregation else plan.with_noise(1 / parts))
        self.check_labels(None if label is None else {label})

    def check_unmasked(self, parts: int) -> None:
        """Refuses a reply with a part of the noise that no mask hides, where masks are wanted."""
        if self.allowed.secure_aggregation == "masked":
            self._refuse(
                "allow.secure_aggregation",
                f"the message asks for noise that {parts} clients share, and for no masks",
            )

    def _check_plan(self, plan: CentralPlan) -> None:
        allowed = self.allowed
        if not plan.protected:
            self._refuse("allow.minimum_noise_multiplier", "the plan has no noise and no clip")
        if plan.published:
            self._refuse(
                "allow.mechanisms",
                f"clip={plan.clip.name} with the schedule {plan.schedule.name!r} is a published "
                "form for comparison, which only simulations answer",
            )
        if plan.clip.own:
            self._refuse(
                "allow.mechanisms",
                f"clip={plan.clip.name} is somebody's own, which only simulations answer",
            )
        self.check_budget(plan.adjacency, plan.delta)
        if plan.rounds > allowed.maximum_rounds:
            self._refuse("allow.maximum_rounds", f"T = {plan.rounds}")
        if plan.noise_multiplier < allowed.minimum_noise_multiplier:
            self._refuse("allow.minimum_noise_multiplier", f"σ = {plan.noise_multiplier:g}")
        if plan.clip.bound > allowed.maximum_clip_bound:
            self._refuse("allow.maximum_clip_bound", f"Δ = {plan.clip.bound:g}")
        if plan.clip.bound < allowed.minimum_clip_bound:
            self._refuse("allow.minimum_clip_bound", f"Δ = {plan.clip.bound:g}")
        if plan.rate > allowed.maximum_rate:
            self._refuse("allow.maximum_rate", f"q = {plan.rate:g}")
        if allowed.capacity and plan.capacity is None:
            self._refuse("allow.capacity", "the plan fixes no batch capacity")
        if plan.nominal_records is not None and plan.nominal_records < self.data.nominal_records:
            self._refuse(
                "data.nominal_records", f"the plan accounts for {plan.nominal_records} records"
            )

    def check_budget(self, adjacency: str, delta: float) -> None:
        """Refuses an adjacency without a budget, and a δ above its ceiling."""
        budget = self.budgets.get(adjacency)
        if budget is None:
            self._refuse(f"budget.{adjacency}", "there is no such budget")
        elif delta > budget.delta:
            self._refuse(f"budget.{adjacency}.delta", f"the plan has δ = {delta:g}")

    def check_labels(self, labels: set[int] | None) -> None:
        """Refuses classes that the file does not list; None: records of every class take part."""
        wanted = set(range(len(self.data.classes))) if labels is None else labels
        if self.allowed.labels is not None and not wanted <= self.allowed.labels:
            self._refuse("allow.labels", "the message uses a class that is not listed")

    def _refuse(self, key: str, what: str) -> NoReturn:
        raise PolicyRefusedError(f"The policy {self.path.name} refuses by {key}: {what}.")
