"""Methods as objects of a program: a generator, what protects the records, the papers' symbols.

Values that are left out follow the rule (docs/rule.md), from public facts, as the commands' do.

>>> from fedsink.data.spec import DataSpec
>>> from fedsink.privacy import PrivacyPlan, RecordClip
>>> plan = PrivacyPlan.solve(rate=0.5, clip=RecordClip(1.0), delta=1e-5, sigma=2.0, rounds=10)
>>> facts = DataSpec("arrays", (1, 8, 8), ("0", "1"), nominal_records=400)
>>> settings = DPSinkhorn("dct_mlp", plan, lam=2.0).settings(facts, clients=4, run="demo")
>>> settings.objective.lam, settings.rows, settings.nominal_records
(2.0, 5, 100.0)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from fedsink.data.maps import Map
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError
from fedsink.models import GENERATORS, Generator
from fedsink.models.critics import CriticTraining
from fedsink.privacy import (
    LOCAL_MECHANISMS,
    LOCAL_NOISE,
    CentralPlan,
    CriticClip,
    NoiseShare,
    PrivacyPlan,
)
from fedsink.privacy.clips import ClipOfRecords
from fedsink.protocol.dp_sinkhorn import Objective
from fedsink.protocol.gs_wgan import Critics
from fedsink.strategies.base.central_strategy import check_capacity
from fedsink.strategies.base.round_strategy import StrategySettings
from fedsink.strategies.base.trainer import OptimizerSettings
from fedsink.strategies.dp_sinkhorn.self_term import SelfTermSettings
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhornSettings
from fedsink.strategies.gs_wgan import GSWGANSettings
from fedsink.strategies.privatize_once import (
    LOCAL_OPTIONS,
    LocalOptions,
    PrivatizeOnceSettings,
    local_plan,
)
from fedsink.strategies.rule import POINTS, Sizes
from fedsink.transport import NATIVE
from fedsink.values import checks, strictly

Table = Mapping[str, Any]

_BY_RULE = {
    "conv": ("latent_dim", "radius"),
    "dct_mlp": ("latent_dim", "hidden", "radius", "per_class_first_layer"),
    "mlp": ("latent_dim", "hidden", "batch_norm", "output"),
}
"""Options of generators that the rule gives."""


@dataclass(frozen=True)
class Method(ABC):
    """A method that `fedsink.Federation` fits; one of your own derives from this class.

    Args:
        generator: the name of a generator, with options by the rule; a mapping of its name and
            options, ``{"name": "dct_mlp", "radius": 7}``; or a generator, of which the architecture
            counts: a run draws its own initial weights, since those that private records have
            trained would spend their ε again, unseen (`start=` counts it).
    """

    generator: str | Table | Generator

    @abstractmethod
    def settings(self, data: DataSpec, clients: int, run: str) -> StrategySettings:
        """Returns the settings of a run.

        Args:
            data: public facts: shape, classes (one, where records have no labels), nominal records.
            clients: K.
            run: public name of the run, stated in every request.

        Raises:
            FedsinkError: a value is out of range or does not go with another.
        """

    @abstractmethod
    def rule(self, data: DataSpec, clients: int) -> Table:
        """Returns what is taken for values that are left out."""

    def architecture(self, data: DataSpec, clients: int) -> tuple[str, dict[str, Any]]:
        """Returns the generator's name and options."""
        given = self.generator
        if isinstance(given, Generator):
            sizes = (given.shape, given.classes), (data.shape, len(data.classes))
            if sizes[0] != sizes[1]:
                raise ConfigError(
                    f"generator makes {given.classes} classes of the shape {list(given.shape)}, "
                    f"and the records have {len(data.classes)} of {list(data.shape)}: build it for "
                    "these."
                )
            if GENERATORS.find(given.name) is not type(given):
                raise ConfigError(
                    f"generator={given.name} is not the one that fedsink knows by this name: set "
                    f"fedsink.models.GENERATORS[{given.name!r}] = {type(given).__name__}, so that "
                    "it can be built again from the run's folder."
                )
            return given.name, dict(given.options)
        if isinstance(given, str):
            rule = self.rule(data, clients)
            return given, {name: rule[name] for name in _BY_RULE.get(given, ()) if name in rule}
        if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
            raise ConfigError(
                f"generator is a name, a mapping with one, or a generator, not {given!r}."
            )
        return given["name"], {key: value for key, value in given.items() if key != "name"}

    def _completed(self, rule: Table, *names: str) -> dict[str, Any]:
        """Returns fields by name, those that are None by the rule."""
        own = {name: getattr(self, name) for name in names}
        return {name: rule[name] if value is None else value for name, value in own.items()}


@dataclass(frozen=True)
class CentralMethod(Method):
    """A method whose clients answer every round with a clipped and noised sum.

    Args:
        plan: a `PrivacyPlan`, or an `UnprotectedPlan` for ceilings on public data.
        accountant: the accountant of the reported ε.
        share: divides the noise among clients whose replies are only seen as a sum.
        view: public coordinates of the gradient, as {"name": "dct", "radius": 7}; None: the rule's.
        optimizer: values of `OptimizerSettings` that replace the method's, as {"lr": 1e-3}.
        quorum: clients that must answer: a number, a fraction, or None for all that are asked.
    """

    plan: CentralPlan
    _: KW_ONLY
    accountant: str = "pld"
    share: NoiseShare = LOCAL_NOISE
    view: Table | None = None
    optimizer: Table = field(default_factory=dict)
    quorum: float | None = None

    def rule(self, data: DataSpec, clients: int) -> Table:
        plan = self.plan
        if not isinstance(plan, CentralPlan):
            raise ConfigError(
                f"plan is a PrivacyPlan, as PrivacyPlan.solve makes it, not {plan!r}."
            )
        if len(data.shape) == 1:
            return POINTS["central"]
        eps = plan.epsilon(self.accountant) if isinstance(plan, PrivacyPlan) else math.inf
        delta = plan.delta if isinstance(plan, PrivacyPlan) else 0.0
        sizes = Sizes(data.shape, len(data.classes), data.nominal_records, clients, eps, delta)
        return {"per_class_first_layer": True, **sizes.central()}

    def _common(self, rule: Table, data: DataSpec, clients: int, run: str) -> dict[str, Any]:
        by_rule = {"name": "dct", "radius": rule["radius"]} if "radius" in rule else rule["view"]
        check_capacity(self.plan.capacity, data.nominal_records)
        return {
            "plan": self.plan,
            "view": {"shape": list(data.shape), **(by_rule if self.view is None else self.view)},
            "clients": clients,
            "accountant": self.accountant,
            "run": run,
            "share": self.share,
            "quorum": self.quorum,
        }


@dataclass(frozen=True)
class DPSinkhorn(CentralMethod):
    """DP-Sinkhorn (Cao et al. 2021, Algorithm 1): noised gradients of a Sinkhorn divergence.

    Clients compute ∂/∂X of W_λ between generated images X and a secret sample of their records,
    clip it as the plan says, and add the plan's noise; the server steps the generator.

    Args (the others are those of every method):
        lam: λ, entropic regularisation in units of the cost c_m(x, y) = ‖x−y‖₂² + m‖x−y‖₁ of
            pixels in [0, 1]; the blur of GeomLoss is √λ for m = 0.
        rows: n, generated images per class and round.
        history: H, remembered batches of the self term.
        cost: "mixed" for c_m, or "l1".
        m: weight of the L1 term, with `BatchClip`.
        label_weight: α_c, scale of the one-hot label where a round mixes classes.
        solver: "converged", or "annealed" as published.
        backend: "native", "geomloss" or "keops".
        self_term: "history", or "semi_debiased" (Definition 4.3, with `BatchClip`).
        p: debiasing fraction of Definition 4.3.
        tether: k: a row at over k times the usual squared distance is drawn back; None: none.
        uses_per_message: U, rounds of the plan that one exchange of messages holds.
    """

    lam: float | None = None
    rows: int | None = None
    history: int | None = None
    cost: str = "mixed"
    m: float = 0.0
    label_weight: float = 15.0
    solver: str = "converged"
    backend: str = NATIVE
    self_term: str = "history"
    p: float = 0.2
    tether: float | None = None
    uses_per_message: int = 1

    def settings(self, data: DataSpec, clients: int, run: str) -> DPSinkhornSettings:
        rule, classes = self.rule(data, clients), len(data.classes)
        ClipOfRecords.expect(self.plan.clip)
        of_clip: Table = rule.get(self.plan.clip.name, {})
        values = self._completed(of_clip or rule["record"], "lam", "rows", "history")
        lr = (of_clip or rule["record"])["lr"]
        adam = {"lr": lr, "ema": rule.get("ema", 0.998), **self.optimizer}
        return DPSinkhornSettings(
            objective=Objective(
                lam=values["lam"],
                classes=classes,
                m=self.m,
                label_weight=self.label_weight if classes > 1 else 0.0,
                solver=self.solver,
                cost=self.cost,
                backend=self.backend,
            ),
            self_term=SelfTermSettings(self.self_term, values["history"], self.p, self.tether),
            rows=values["rows"],
            optimizer=strictly(OptimizerSettings, adam, "optimizer"),
            nominal_records=data.nominal_records / clients,
            uses_per_message=self.uses_per_message,
            **self._common(rule, data, clients, run),
        )


@dataclass(frozen=True)
class GSWGAN(CentralMethod):
    """GS-WGAN (Chen, Orekondy, Fritz 2020, Algorithm 2): noised gradients of clients' critics.

    Its plan has a `CriticClip`, which says among how many critics a client deals its records.

    Args (the others are those of every method):
        rows: n, generated images whose gradient a round asks for.
        fakes: f, further ones that the critics train against.
        critic: values of the critics that replace the method's: `kind`, `hidden`, `scale`, and
            those of `CriticTraining`, as {"steps": 5}.
    """

    rows: int | None = None
    fakes: int | None = None
    critic: Table = field(default_factory=dict)

    def settings(self, data: DataSpec, clients: int, run: str) -> GSWGANSettings:
        rule, clip = self.rule(data, clients), self.plan.clip
        if not isinstance(clip, CriticClip):
            raise ConfigError(
                f"GSWGAN clips the gradients of critics: give its plan clip=CriticClip(1.0, "
                f"critics=…), not {type(clip).__name__}."
            )
        # Of points, else of pictures.
        of_rule = rule.get("critic", _CRITIC)
        values = self._completed(of_rule, "rows", "fakes")
        options = {name: of_rule[name] for name in ("hidden", "scale", "steps", "warm", "batch")}
        options |= dict(self.critic)
        shown = {name: options.pop(name) for name in ("kind", "hidden", "scale") if name in options}
        adam = {
            "lr": of_rule["lr"], "betas": (0.5, 0.99), "warmup": 10, "ema": 0.95, **self.optimizer,
        }  # fmt: skip
        training = strictly(CriticTraining, {**options, "critics": clip.critics}, "critic")
        return GSWGANSettings(
            critics=Critics(training, len(data.classes), **shown),
            rows=values["rows"],
            fakes=values["fakes"],
            optimizer=strictly(OptimizerSettings, adam, "optimizer"),
            **self._common(rule, data, clients, run),
        )


_CRITIC = {
    "rows": 40, "fakes": 80, "hidden": 32, "scale": 10.0, "steps": 4, "warm": 40, "batch": 12,
    "lr": 1.5e-3,
}  # fmt: skip


@dataclass(frozen=True)
class EntropicLDP(LocalOptions, Method):
    """The entropic Sinkhorn GAN on locally privatized records (Reshetova, Chen, Özgür 2024).

    Every record is privatized once, before it leaves its client: Y = f(x) + noise, and its label by
    randomized response. The generator minimises W_{c,λ}(f(G(z)), Y), with the cost and λ that
    invert the mechanism (Theorem 1), without debiasing. Training steps cost no ε.

    Args:
        epsilon: ε > 0 of a record, image and label together.
        mechanism: "laplace" (pure ε) or "gaussian" (needs δ).
        delta: δ; None: 1e-4 for a mechanism that needs one.
        map: f, a `Map` or a mapping of its name and options; None: the rule's.
        label_epsilon: ε_l, the label's part of ε; None: the rule's.
        rounds: training steps.
        batch: b, privatized records in a step.
        finite_batch_factor: scales λ for minibatches; 1 is Theorem 1.
        loss: "matched" (Theorem 1), "debiased", or another of `fedsink.strategies.losses`.
        critic: options of a loss with a critic.
        cost, lam, unmatched: replace the matched cost and λ; the run is reported so.
        solver, max_iterations, tolerance, backend: those of the transport problem.
        chunk_size: records per upload message.
        optimizer: values of `OptimizerSettings` that replace the method's, as {"lr": 1e-3}.
        quorum: clients that must answer: a number, a fraction, or None for all.
    """

    epsilon: float
    mechanism: str = "laplace"
    _: KW_ONLY
    delta: float | None = None
    map: Map | Table | None = None
    label_epsilon: float | None = None
    rounds: int | None = None
    batch: int | None = None
    finite_batch_factor: float | None = None
    optimizer: Table = field(default_factory=dict)

    @property
    def _delta(self) -> float:
        needed = LOCAL_MECHANISMS.find(self.mechanism).needs_delta
        return (1e-4 if needed else 0.0) if self.delta is None else self.delta

    def rule(self, data: DataSpec, clients: int) -> Table:
        eps = checks.positive("epsilon", self.epsilon)
        norm = LOCAL_MECHANISMS.find(self.mechanism).norm
        if len(data.shape) == 1:
            return {**POINTS["ldp"], "map": {"name": "point_ball", "norm": norm}}
        sizes = Sizes(
            data.shape, len(data.classes), data.nominal_records, clients, eps, self._delta,
            self.mechanism,
        )  # fmt: skip
        rule = sizes.local()
        by_eps = {name: [rule[name]] for name in ("label_eps", "block", "finite_batch_factor")} | {
            "eps": [eps]
        }
        f: Table = {"name": "non_negative_direction", "pool": rule["pool"]}
        if norm == "l1":
            f = {"name": "dct_direction", "norm": "l1", "background": 0.65}
        return {**rule, "by_eps": by_eps, "map": f}

    def settings(self, data: DataSpec, clients: int, run: str) -> PrivatizeOnceSettings:
        rule = self.rule(data, clients)
        map_or_table = rule["map"] if self.map is None else self.map
        plan, factor = local_plan(
            rule,
            mechanism={"name": self.mechanism, "label_eps": self.label_epsilon},
            chosen_map=map_or_table.to_dict() if isinstance(map_or_table, Map) else map_or_table,
            shape=data.shape,
            classes=len(data.classes),
            eps=self.epsilon,
            sigma=None,
            delta=self._delta,
        )
        adam = {"lr": 2e-3, "betas": (0.5, 0.99), "warmup": 20, "ema": 0.99, **self.optimizer}
        return PrivatizeOnceSettings(
            plan=plan,
            optimizer=strictly(OptimizerSettings, adam, "optimizer"),
            clients=clients,
            run=run,
            **self._completed({**rule, "finite_batch_factor": factor}, *_OF_RULE),
            **{name: getattr(self, name) for name in LOCAL_OPTIONS},
        )


_OF_RULE = ("rounds", "batch", "finite_batch_factor")
