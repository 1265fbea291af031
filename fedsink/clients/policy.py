"""What the owner of a node allows, whatever a message asks for."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from fedsink.clients.toml_table import REQUIRED, Table
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, PrivacyError, ReleaseRefusedError
from fedsink.privacy import LOCAL_MECHANISMS, CentralPlan, UnprotectedPlan
from fedsink.privacy.adjacency import ADD_REMOVE, ADJACENCIES, REPLACE_ONE
from fedsink.privacy.ledger import Budget
from fedsink.protocol import GradientRequest, PrivatizeRequest
from fedsink.protocol.parameters import ParameterRequest

CENTRAL = "clipped-gaussian"
PARAMETERS = "parameter-gradient"
LABELS = "randomized-response"
AGGREGATION = ("refused", "untrusted", "trusted")
MAXIMUM_ROUNDS = 100_000  # where a policy does not say
MAXIMUM_PARAMETERS = 10_000_000


def mechanisms() -> tuple[str, ...]:
    """Every name that a policy can allow; an installed mechanism is allowed by its name alone.

    Raises:
        ConfigError: an installed local mechanism has the name of something else.
    """
    if taken := {CENTRAL, PARAMETERS, LABELS} & set(LOCAL_MECHANISMS):
        raise ConfigError(
            f"An installed local mechanism is called {taken.pop()!r}, which a policy allows for "
            "something else: uninstall the package that adds it."
        )
    return (CENTRAL, PARAMETERS, *LOCAL_MECHANISMS, LABELS)


class PolicyRefusedError(ReleaseRefusedError):
    """The owner's policy forbids what the message asks for."""


@dataclass(frozen=True)
class Allowed:
    """The `[allow]` table.

    Attributes:
        mechanisms: names out of `mechanisms()`.
        minimum_noise_multiplier: least σ of a clipped Gaussian, noise std / sensitivity.
        maximum_clip_bound: largest Δ of a clipped Gaussian.
        maximum_images: most rows in one message of the central mode.
        minimum_clip_bound: least Δ of a clipped Gaussian.
        maximum_rounds: most rounds of a plan of the central mode; pricing takes the longer, the
            more there are.
        maximum_parameters: most weights of a generator whose gradient is asked for.
        maximum_rate: largest sampling rate q.
        labels: class indices that may be used; None: all.
        capacity: whether a plan must fix its batch capacity.
        secure_aggregation: whether a reply may hold a share of the noise, one of `AGGREGATION`.
            "refused": never. "untrusted": yes, judged and charged by the noise of this reply
            alone. "trusted": yes, judged and charged by the noise of the sum, because the owner
            vouches that nobody sees anything less.
    """

    mechanisms: tuple[str, ...]
    minimum_noise_multiplier: float = 0.0
    maximum_clip_bound: float = 0.0
    maximum_images: int = 0
    maximum_rate: float = 1.0
    minimum_clip_bound: float = 0.0
    maximum_rounds: int = MAXIMUM_ROUNDS
    maximum_parameters: int = MAXIMUM_PARAMETERS
    labels: frozenset[int] | None = None
    capacity: bool = False
    secure_aggregation: str = "refused"


@dataclass(frozen=True)
class Policy:
    """The owner's file, read strictly; its ε ceilings are held by the ledger.

    Guarantees:
        - Only mechanisms, adjacencies and classes that the file names are answered.
        - The noise multiplier is at least the file's, and the clip bound lies between the file's;
          rate, rounds, and images and weights a message are at most the file's.
        - A share of the noise is refused unless the file allows it, and counts as the whole
          noise only where the file says that the aggregation is trusted.
        - A request is refused before any record is read.

    Attributes:
        path: the file.
        lineage: the owner's name of the data; budgets belong to it.
        data: which records, and their public description.
        on_change: ``"inherit"`` (default): changed data go on with every charge; ``"refuse"``.
        state: folder of ledger, stored replies and noise key.
        noise: ``"secure"`` or ``"fast"``.
        budgets: ceilings by adjacency.
        allowed: everything else.
    """

    path: Path
    lineage: str
    data: DataSpec
    on_change: str
    state: Path
    noise: str
    budgets: Mapping[str, Budget]
    allowed: Allowed

    @classmethod
    def load(cls, path: Path) -> Policy:
        """Read a policy file; relative paths in it start at its folder.

        Raises:
            ConfigError: it cannot be read, or a key is unknown, missing or of the wrong type.
        """
        path = path.absolute()
        try:
            with path.open("rb") as file:
                whole = Table(tomllib.load(file), path.name, "")
        except OSError as error:
            raise ConfigError(f"The policy {path} cannot be read: {error.strerror}.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"The policy {path} is no TOML file: {error}.") from None
        data, state, noise = (whole.table(name) for name in ("data", "state", "noise"))
        lineage = data.text("lineage")
        on_change = data.choice("on_change", ("inherit", "refuse"), "inherit")
        spec = _data_spec(data, path.parent)
        folder = path.parent / state.text("folder")
        backend = noise.choice("backend", ("secure", "fast"), REQUIRED)
        budgets = _budgets(whole.table("budget"))
        allowed = _allowed(whole.table("allow"), spec, budgets)
        for table in (data, state, noise, whole):
            table.finish()
        return cls(path, lineage, spec, on_change, folder, backend, budgets, allowed)

    @property
    def ledger(self) -> Path:
        """The node's ledger."""
        return self.state / "ledger.sqlite"

    @property
    def key_file(self) -> Path:
        """The node's secret noise key, where noise is "fast"."""
        return self.state / "noise.key"

    @property
    def trusts_aggregation(self) -> bool:
        """Whether a share of the noise is charged as the sum that it becomes part of."""
        return self.allowed.secure_aggregation == "trusted"

    def check_gradient(self, requests: Sequence[GradientRequest]) -> None:
        """Refuse a message of the central mode that the owner does not allow.

        Raises:
            PolicyRefusedError: naming the key that forbids it.
        """
        self._check_uses(requests, CENTRAL, sum(len(request.rows) for request in requests))

    def check_parameters(self, request: ParameterRequest) -> None:
        """Refuse a message that asks for the gradient of a generator's weights; see above.

        Raises:
            PolicyRefusedError: naming the key that forbids it.
        """
        self._check_uses([request.gradient], PARAMETERS, len(request.latents))
        if (weights := request.weights.numel()) > self.allowed.maximum_parameters:
            self._refuse("allow.maximum_parameters", f"the message holds {weights} weights")

    def _check_uses(self, requests: Sequence[GradientRequest], mechanism: str, images: int) -> None:
        self.check_mechanism(mechanism)
        if images > self.allowed.maximum_images:
            self._refuse("allow.maximum_images", f"the message holds {images} images")
        for request in requests:
            if request.share > 1 and self.allowed.secure_aggregation == "refused":
                self._refuse(
                    "allow.secure_aggregation",
                    f"the message asks for noise that {request.share} clients share",
                )
            self._check_plan(request.plan if self.trusts_aggregation else request.own_plan)
            labels = None if request.label is None else {request.label}
            self._check_labels(labels)

    def check_privatize(self, request: PrivatizeRequest) -> None:
        """Refuse a message of the local mode that the owner does not allow.

        Raises:
            PolicyRefusedError: naming the key that forbids it.
        """
        plan = request.plan
        self.check_mechanism(plan.mechanism)
        if plan.label_mechanism is not None:
            self.check_mechanism(LABELS)
        self._check_budget(REPLACE_ONE, plan.delta)
        self._check_labels(None)

    def _check_plan(self, plan: CentralPlan) -> None:
        allowed = self.allowed
        if isinstance(plan, UnprotectedPlan):
            self._refuse("allow.minimum_noise_multiplier", "the plan has no noise and no clip")
        self._check_budget(plan.adjacency, plan.delta)
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
        if plan.capacity is not None and plan.capacity > self.data.nominal_records:
            # It would hide nothing more, and cost the node memory and time.
            self._refuse("data.nominal_records", f"the plan has a capacity of {plan.capacity}")
        if plan.nominal_records is not None and plan.nominal_records < self.data.nominal_records:
            self._refuse(
                "data.nominal_records", f"the plan accounts for {plan.nominal_records} records"
            )

    def check_mechanism(self, name: str) -> None:
        """Refuse a mechanism that the file does not name.

        Raises:
            PolicyRefusedError: naming the key that forbids it.
        """
        if name not in self.allowed.mechanisms:
            self._refuse("allow.mechanisms", f"the message asks for {name}")

    def _check_budget(self, adjacency: str, delta: float) -> None:
        budget = self.budgets.get(adjacency)
        if budget is None:
            self._refuse(f"budget.{adjacency}", "there is no such budget")
        elif budget.admission == "reserve" and delta > budget.delta:
            self._refuse(f"budget.{adjacency}.delta", f"the plan has δ = {delta:g}")

    def _check_labels(self, labels: set[int] | None) -> None:
        """`labels` None: records of every class take part."""
        wanted = set(range(len(self.data.classes))) if labels is None else labels
        if self.allowed.labels is not None and not wanted <= self.allowed.labels:
            self._refuse("allow.labels", "the message uses a class that is not listed")

    def _refuse(self, key: str, what: str) -> NoReturn:
        raise PolicyRefusedError(f"The policy {self.path.name} refuses by {key}: {what}.")


def _data_spec(data: Table, folder: Path) -> DataSpec:
    root = data.text("root", None)
    try:
        return DataSpec(
            name=data.text("name"),
            shape=tuple(data.numbers("shape")),
            classes=tuple(data.texts("classes")),
            nominal_records=data.whole("nominal_records"),
            root=None if root is None else str(folder / Path(root).expanduser()),
            download=data.flag("download", False),
        )
    except ConfigError as error:
        raise error if data.file in str(error) else ConfigError(f"{data.file}: {error}") from None


def _budgets(tables: Table) -> dict[str, Budget]:
    budgets = {}
    for name in ADJACENCIES:
        if (table := tables.optional_table(name)) is None:
            continue
        epsilon, delta = table.number("epsilon"), table.number("delta")
        admission = table.text("admission", "reserve")
        order = table.number("order", None)
        try:
            budgets[name] = Budget(epsilon, delta, admission, order)
        except PrivacyError as error:
            table.fail(str(error))
        if admission == "rdp-filter" and name != ADD_REMOVE:
            table.fail(f"the filter is known for {ADD_REMOVE} only: use admission = 'reserve'.")
        table.finish()
    tables.finish()
    if not budgets:
        tables.fail(f"at least one of {', '.join(ADJACENCIES)} is needed.")
    return budgets


def _allowed(table: Table, data: DataSpec, budgets: dict[str, Budget]) -> Allowed:
    named = tuple(table.texts("mechanisms"))
    if unknown := sorted(set(named) - set(mechanisms())):
        table.fail(f"mechanisms: {unknown[0]!r} is none of {', '.join(mechanisms())}.")
    central = {CENTRAL, PARAMETERS}
    if set(named) - central and REPLACE_ONE not in budgets:
        table.fail(f"mechanisms of the local mode need a [budget.{REPLACE_ONE}].")
    # Limits of the central mode must be stated where it is allowed, and may be elsewhere.
    missing: Any = REQUIRED if central & set(named) else 0
    listed = table.texts("labels", None)
    if unknown := sorted(set(listed or ()) - set(data.classes)):
        table.fail(f"labels: {unknown[0]!r} is not in data.classes.")
    allowed = Allowed(
        mechanisms=named,
        minimum_noise_multiplier=table.number("minimum_noise_multiplier", missing),
        maximum_clip_bound=table.number("maximum_clip_bound", missing),
        maximum_images=table.whole("maximum_images", missing),
        maximum_rate=table.number("maximum_rate", 1.0),
        minimum_clip_bound=table.number("minimum_clip_bound", 0.0),
        maximum_rounds=table.whole("maximum_rounds", MAXIMUM_ROUNDS),
        maximum_parameters=table.whole("maximum_parameters", MAXIMUM_PARAMETERS),
        labels=None if listed is None else frozenset(map(data.classes.index, listed)),
        capacity=table.choice("capacity", ("required", "optional"), "optional") == "required",
        secure_aggregation=table.choice("secure_aggregation", AGGREGATION, AGGREGATION[0]),
    )
    table.finish()
    return allowed
