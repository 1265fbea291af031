"""The server's lines of GS-WGAN (Chen, Orekondy, Fritz 2020, Algorithms 1 and 2).

Algorithm 2 is the federated one: every client keeps a critic of its records. Algorithm 1 is a
curator with many critics; here it is one client that holds them all. In the paper's order:

| step | | computed by |
|---|---|---|
| 1 | draw latents z and labels, generate X = G_θ(z, labels) and fakes for the critics | `_rows` |
| 2 | each critic: n_dis steps of WGAN-GP on its records and the fakes | a client |
| 3 | each critic: ∂D/∂X, clipped to C; add noise of std 2Cσ to the sum over critics | a client |
| 4 | mean over the critics that were asked, and its sign for the generator | `learn` |
| 5 | backpropagate the gradient at X into θ, one step of the optimiser | `Trainer.step` |

Two departures from the paper keep the guarantee exact. A reply is clipped as a whole, not row by
row: all rows of a reply come from one critic, so that one record changes all of them at once
(`strategy.published` clips as published). And a client replies once, after its n_dis steps, where
Algorithm 2 as printed replies after each of them and accounts for one.

The client's half is `fedsink/clients/answers/gs_wgan.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from scipy.special import gammaln, logsumexp
from torch import Tensor

from fedsink.configuration import Configuration
from fedsink.data.views import view_from_dict
from fedsink.errors import ConfigError, PrivacyError
from fedsink.models import Generator
from fedsink.models.critics import CriticTraining
from fedsink.privacy import (
    LOCAL_NOISE,
    CriticClip,
    JointSchedule,
    PickSchedule,
    PrivacyPlan,
    RowClip,
    Stream,
    TurnSchedule,
)
from fedsink.privacy.adjacency import ADJACENCIES, describe
from fedsink.privacy.clips import ClipOfCritics
from fedsink.privacy.sampling import Schedule
from fedsink.protocol.gs_wgan import CriticRequest, Critics
from fedsink.strategies.base.central_statement import SampleOfRecords
from fedsink.strategies.base.central_strategy import (
    CentralSettings,
    CentralStrategy,
    central_plan,
)
from fedsink.values import checks, privacy_checks, strictly


class SampleOfCritics(SampleOfRecords):
    """Words for a mechanism that asks critics, each of which has its own part of the records."""

    learned: ClassVar[str] = "which critics were asked"

    def entries(self, plan: PrivacyPlan, accountant: str) -> dict[str, Any]:
        """Returns the condition that keeps the asked critics secret, and the ε left without it."""
        if plan.rate < 1.0:
            return {
                "capacity": None,
                "epsilon_unamplified": plan.epsilon_unamplified(accountant),
                "sample_secrecy": (
                    "In every round each critic is asked with the probability `rate`, by coins of "
                    "its client. All are trained, asked or not, so that no critic remembers who "
                    "was asked, and neither running time nor memory tells. Against somebody who "
                    "learns the coins, epsilon_unamplified is what is left."
                ),
            }
        return {
            "capacity": None,
            "epsilon_unamplified": plan.epsilon(accountant),
            "sample_secrecy": (
                "No sampling is assumed: everybody may know who answers in which round, on which "
                "records, and for how long."
            ),
        }

    def caveats(self, plan: PrivacyPlan) -> str:
        """Returns the sentence of `not_protected` that follows from a rate below 1."""
        if plan.rate == 1.0 or plan.adjacency == "client":
            return ""
        return (
            " Which critics are asked has to stay secret: a simulation does not hide it from "
            "whoever runs it."
        )


@dataclass(frozen=True, kw_only=True)
class GSWGANSettings(CentralSettings):
    """Everything about a GS-WGAN run; all of it is public.

    Attributes (the others are those of every method):
        critics: architecture and training of a client's critics.
        view: coordinates of the gradient, as `View.to_dict()`.
        rows: n, generated images of a round whose gradient is asked for.
        fakes: f, further generated images for the critics to train against.
    """

    name: ClassVar[str] = CriticRequest.name
    title: ClassVar[str] = "GS-WGAN"
    remembers: ClassVar[bool] = True
    sample: ClassVar[SampleOfRecords] = SampleOfCritics(
        "Gaussian on the sum of critics' gradients at the generated images, each clipped as a whole"
    )
    leaves: ClassVar[str] = "noised sums of critics' clipped gradients"

    critics: Critics
    view: dict[str, Any]
    rows: int
    fakes: int

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rows", "fakes"):
            checks.count(f"strategy.{name}", getattr(self, name))
        turns = self.plan.schedule.cohorts
        if turns > self.clients:
            raise ConfigError(
                f"strategy.turns={turns} leaves rounds in which none of clients={self.clients} is "
                "asked: choose at most as many turns as clients."
            )
        self.critics.architecture(view_from_dict(self.view))  # refused here, not in a client
        _ = self.integers  # and so are bits that are too few

    @classmethod
    def from_config(cls, config: Configuration, run: str) -> Self:
        table = config.strategy
        for key, clip in (
            ("strategy.default_clip", table["default_clip"]),
            ("clip", config.clip),
        ):
            if clip != "critic":
                raise ConfigError(
                    f"strategy={cls.name} clips the gradients of critics: leave out {key}={clip}."
                )
        published = checks.flag("strategy.published", table["published"])
        clip, schedule, sigma = (_published if published else _all_critics)(config)
        options = dict(table["critic"])
        kind, hidden, scale = (options.pop(name, None) for name in ("kind", "hidden", "scale"))
        training = strictly(CriticTraining, {**options, "critics": clip.critics}, "strategy.critic")
        return cls.read(
            config,
            run,
            plan=central_plan(config, clip, schedule, sigma),
            critics=Critics(training, len(config.classes), kind, hidden, scale),
        )

    @property
    def many_clients(self) -> float:
        return 100

    @property
    def reply_shape(self) -> tuple[int, ...]:
        """Shape of the gradient at the rows."""
        return self.rows, view_from_dict(self.view).dimension

    def statement(self, noise: str) -> dict[str, Any]:
        promise = super().statement(noise)
        if not self.plan.protected:
            return promise
        return promise | of_critics(self.plan, self.accountant) | published_claim(self.plan)

    def notice(self, privacy: Mapping[str, Any]) -> str | None:
        """Returns the ε proved of the published form, beside the ε claimed of it."""
        if "epsilon_published" not in privacy:
            return super().notice(privacy)
        return (
            f"strategy.published=true: ε = {privacy['epsilon']:.4g} is what can be proved; "
            f"{privacy['epsilon_published']:.4g} is {_CLAIM}."
        )


_Mechanism = tuple[ClipOfCritics, Schedule, float | None]


def _all_critics(config: Configuration) -> _Mechanism:
    """Clips each critic's gradient as a whole, and asks all clients or those whose turn it is."""
    table = config.strategy
    if table["row_sigma"] is not None:
        raise ConfigError(
            f"strategy.row_sigma={table['row_sigma']} is the noise of the published form: leave "
            "it out, or set strategy.published=true."
        )
    turns = table["turns"]
    schedule = JointSchedule() if turns is None else TurnSchedule(turns)
    return CriticClip(table["bound"], table["critics"]), schedule, None


def _published(config: Configuration) -> _Mechanism:
    """Clips each row by itself, and asks one client of one critic, picked in every round."""
    table, sigma = config.strategy, config.strategy["row_sigma"]
    mismatch = table["critic"]["mismatch"]
    for key, value, only, why in (
        ("strategy.critics", table["critics"], 1, "a client has one critic"),
        ("strategy.turns", table["turns"], None, "clients are picked at random"),
        ("noise.share", config.noise.share, LOCAL_NOISE.name, "one client a round answers"),
        ("policy", config.policy, None, "a node under a policy never answers it"),
        ("strategy.critic.mismatch", mismatch, 0.0, "its critics see records under their labels"),
    ):
        if value != only:
            raise ConfigError(
                f"strategy.published=true excludes {key}={value}: {why}, so "
                f"{'leave it out' if only is None else f'set {key}={only}'}."
            )
    if None not in (sigma, config.sigma):
        raise ConfigError(
            f"strategy.row_sigma={sigma} and sigma={config.sigma} both state the noise: leave one "
            "of them out."
        )
    clip = RowClip(table["bound"], checks.count("strategy.rows", table["rows"]))
    if sigma is not None and config.eps == math.inf:
        raise ConfigError(
            f"eps=inf adds no noise, so strategy.row_sigma={sigma} has no meaning: leave one out."
        )
    if sigma is not None:
        sigma = checks.positive("strategy.row_sigma", table["row_sigma"], also="null or ")
        sigma /= math.sqrt(clip.rows)
    return clip, PickSchedule(config.clients, config.seed or 0), sigma


class GSWGANStrategy(CentralStrategy):
    """Generates X, collects the sums of the clients' critics' gradients at X, steps the generator.

    In every round each client that is asked trains all of its M critics on fresh generated rows,
    and answers with Σ_m clip(∂D_m/∂X, C) and noise. The sum is over the critics that are asked,
    each with the plan's rate, which is 1 unless it is stated. The generator ascends their mean.

    `key` is of latents and of the critics' initial weights, and not secret.
    """

    Settings = GSWGANSettings
    settings: GSWGANSettings

    def __init__(self, settings: GSWGANSettings, generator: Generator, key: bytes) -> None:
        super().__init__(settings, generator, key)
        self.view = view_from_dict(settings.view)
        # One public state for all critics: a client that lost theirs begins again from it.
        seed = int(Stream(key, "critics").uniform(1).item() * 2**52)
        self.critics = replace(settings.critics, seed=seed)
        self._points = torch.zeros(0)  # X, with its graph

    def request(self, round: int, **use: Any) -> CriticRequest:
        """Generates this round's rows, at which the critics' gradients are asked for."""
        # Step 1. The labels are public: a client takes fakes of its records' labels by itself.
        self._points, row_labels = self._rows("train", round, self.settings.rows)
        with torch.no_grad():
            fakes, fake_labels = self._rows("fakes", round, self.settings.fakes)

        # Steps 2 and 3, asked for.
        return CriticRequest(
            round=round,
            critics=self.critics,
            view=self.settings.view,
            rows=self._points.detach().cpu(),
            row_labels=row_labels,
            fakes=fakes.cpu(),
            fake_labels=fake_labels,
            **use,
        )

    def learn(self, request: CriticRequest, total: Tensor, clients: int) -> float:
        """Divides the sum of the replies by the critics expected in it, and takes one step."""
        # Step 4. The number of critics is public, so the mean is too. Critics score records high:
        # the generator ascends, and the optimiser descends.
        asked_per_client = self.settings.plan.rate * self.critics.training.critics
        gradient = -total / (clients * asked_per_client)

        # Step 5: down into the weights.
        self.trainer.step(self._points, gradient, request.round)
        return float(gradient.norm())

    def _rows(self, purpose: str, round: int, count: int) -> tuple[Tensor, Tensor]:
        """Returns generated rows (count, D) with their graph, and their labels."""
        records, labels = self.drawn(purpose, round, count)
        return self.view(records), labels


def of_critics(plan: PrivacyPlan, accountant: str) -> dict[str, Any]:
    """Returns the entries of privacy.json for this method alone: M, and adjacencies of one ε."""
    if not isinstance(plan.clip, ClipOfCritics):
        raise PrivacyError("critics need a clip of critics")
    epsilon = plan.epsilon(accountant)
    also = {
        name: describe(name)
        for name in ADJACENCIES
        if replace(plan, adjacency=name).epsilon(accountant) == epsilon
    }
    asked = "Poisson-subsampled " if plan.rate < 1.0 else ""
    mechanism = f"{asked}{GSWGANSettings.sample.mechanism}"
    return {"critics": plan.clip.critics, "adjacencies": also, "mechanism": mechanism}


_CLAIM = "the paper's claim (Theorem A.1), not proved"


def published_claim(plan: PrivacyPlan) -> dict[str, Any]:
    """Returns the entries of privacy.json for only the published form; {} for any other plan."""
    clip, schedule = plan.clip, plan.schedule
    if not isinstance(clip, RowClip) or not isinstance(schedule, PickSchedule):
        return {}
    sigma = plan.noise_std / (2.0 * clip.bound)
    claimed = gs_wgan_epsilon(
        sigma, uses=plan.rounds * clip.rows, critics=schedule.clients, delta=plan.delta
    )
    return {
        "mechanism": (
            "Gaussian on one critic's gradient at the generated images, each row of which is "
            "clipped by itself"
        ),
        "row_sigma": sigma,
        "pick_seed": schedule.seed,
        "epsilon_published": claimed,
        "epsilon_published_meaning": _CLAIM,
    }


_ORDERS = range(2, 257)


def gs_wgan_epsilon(sigma: float, *, uses: int, critics: int, delta: float) -> float:
    """Returns Theorem A.1's ε for `uses` rows of one critic of many (Chen et al. 2020).

    >>> round(gs_wgan_epsilon(1.07, uses=20_000 * 32, critics=1000, delta=1e-5), 3)
    9.993

    Each row of a gradient counts as a Gaussian of multiplier σ on a critic that was picked only for
    this row: Rényi DP of one record of `critics` drawn without replacement (Wang, Balle,
    Kasiviswanathan 2019, Theorem 9), composed, with Mironov's conversion (2017, Prop. 3).

    It is a claim and no guarantee of that algorithm: all rows of a round ask the same critic, so
    that they are selected together, and one record changes all of them. `sigma` is the noise's std
    over twice the clip of a row, `uses` are T·B, the rows of the whole run.
    """
    variance = privacy_checks.positive("sigma", sigma) ** 2
    uses, rate = privacy_checks.count("uses", uses), 1.0 / privacy_checks.count("critics", critics)
    left = -math.log(privacy_checks.failure_probability(delta))
    return min(uses * _renyi(rate, variance, a) + left / (a - 1) for a in _ORDERS)


def _renyi(rate: float, variance: float, order: int) -> float:
    """Returns the Rényi divergence of one use at a whole order α ≥ 2."""
    second = 1.0 / variance  # the Gaussian's divergence at order 2; at order j it is j/(2σ²)
    terms = [0.0]
    for j in range(2, order + 1):
        if j == 2:
            # log(e^x − 1) is x + log(1 − e^(−x)).
            over = math.log(-math.expm1(-second))
            factor = math.log(2.0) + second + min(0.0, math.log(2.0) + over)
        else:
            factor = math.log(2.0) + (j - 1) * j / (2.0 * variance)
        binomial = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
        terms.append(j * math.log(rate) + float(binomial) + factor)
    return float(logsumexp(terms)) / (order - 1)
