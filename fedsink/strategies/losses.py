"""Losses of both modes, and the way a package adds one.

mode=central: `strategy.self_term` names a `SelfTerm` (dp_sinkhorn/self_term.py), the server's half
of a loss; nodes answer the other.
mode=ldp: `strategy.loss` names a `LocalLoss`, the server's loss on privatized records.

    [project.entry-points."fedsink.losses"]
    denoised = "my_package.losses:Denoised"

Theorem 1 (Reshetova, Chen, Özgür 2024). Let Y = f(x) + noise of density p(y | x), and take the cost
c(x, y) = −λ log p(y | x) + const. Then the minimiser over generators G of

    W_{c,λ}(f(G(z)), Y) = min_π ∫ c dπ + λ KL(π ‖ P_{f(G)} ⊗ P_Y)

is the law of f(x), before the noise. The entropic bias removes the noise, so there is no
debiasing term. The cost and λ of a mechanism are `LocalPlan.matched_cost`:

    Laplace of scale σ:   c = ‖x − y‖₁,  λ = σ        (Corollary 1, with σ = Δ₁/ε)
    Gaussian of std σ:    c = ‖x − y‖₂², λ = 2σ²      (Corollary 2)

X = f(G(z)); c and λ are those above:

| loss | minimised over G | what becomes of the noise |
|---|---|---|
| matched | W_{c,λ}(X, Y) | removed: the minimiser is the distribution before the noise |
| debiased | W_{c,λ}(X, Y) − ½W_{c,λ}(X, X) − ½W_{c,λ}(Y, Y) | learnt, at any λ (Feydy 2019, 3) |

Those that the paper compares with are in fedsink-papers. With labels the loss is the mean over the
strata of `LabelStrata`.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from fedsink.errors import ConfigError
from fedsink.privacy import RandomizedResponse, Stream
from fedsink.registry import Registry, did_you_mean, gone
from fedsink.transport import TransportGradient, transport_gradient

if TYPE_CHECKING:
    from fedsink.strategies.privatize_once import PrivatizeOnceSettings


class Loss(ABC):  # noqa: B024 (its heirs are)
    """A part of a loss that a server computes, and keeps between rounds."""

    def state(self) -> dict[str, Tensor]:
        """Returns the tensors to resume from, by name."""
        return {}

    def load_state(self, tensors: dict[str, Tensor]) -> None:  # noqa: B027 (most have none)
        """Restores what `state` returned, from among other tensors."""


L = TypeVar("L", bound=Loss)


def find_loss(losses: Registry[type[L]], key: str, name: object, kind: type[L]) -> type[L]:
    """Returns the loss of a `kind` that a key names; one of the other mode is refused."""
    if isinstance(name, str) and (name in losses or gone(f"{key}={name}")):
        found: Any = losses.find(name)
        if isinstance(found, type) and issubclass(found, kind):
            return found
        if not isinstance(found, type):
            raise ConfigError(
                f"{key}={name!r} is {found!r}, and a loss is a class that derives from "
                f"{kind.__name__}."
            )
    classes: Any = {n: losses[n] for n in losses}
    fitting = sorted(n for n, c in classes.items() if isinstance(c, type) and issubclass(c, kind))
    raise ConfigError(
        f"{key}={name!r} is unknown; choose one of {', '.join(fitting)}."
        f"{did_you_mean(str(name), fitting)}"
    )


@dataclass(frozen=True)
class LossGradient:
    """A loss at the generated points."""

    value: float  # in units of cost, up to terms that do not depend on the generator
    gradient: Tensor  # ∂/∂X, (S, n, D)
    iterations: int  # of Sinkhorn in the term that sees the records; 0 for exact transport


class LocalLoss(Loss):
    """A loss of the local mode. It sees privatized records alone: nothing that it does costs ε.

    Args:
        settings: public parameters of the run: `settings.plan.image_mechanism` is the noise of the
            records (to `privatize` generated points costs no ε), `settings.transport` cost and
            solver of Sinkhorn, `settings.effective_lam` its λ.

    Attributes:
        instead: what computes it instead of Sinkhorn's iterations, "exact transport" for instance;
            None: Sinkhorn, by λ, solver and backend of the settings.
        by_critic: True where `strategy.critic` has its options.
        critic_steps: number of batches that it trains on before each step of the generator.
    """

    instead: ClassVar[str | None] = None
    by_critic: ClassVar[bool] = False
    critic_steps: int = 0

    def __init_subclass__(cls) -> None:
        if cls.value is LocalLoss.value and cls.__call__ is LocalLoss.__call__:
            raise TypeError(f"{cls.__name__} computes no loss: give it a method `value`.")

    def __init__(self, settings: PrivatizeOnceSettings) -> None:
        self.settings = settings

    @classmethod
    def check(cls, settings: PrivatizeOnceSettings) -> None:
        """Refuses settings that do not go with the loss, by a ConfigError."""

    @classmethod
    def cost(cls, settings: PrivatizeOnceSettings) -> str:
        """Returns the name of the cost trained with."""
        return settings.cost or settings.plan.matched_cost.cost

    @classmethod
    def statement(cls, settings: PrivatizeOnceSettings) -> dict[str, Any]:
        """Returns what privacy.json says of the loss beside its name and λ, its cost at least."""
        own = cls.value is not LocalLoss.value
        return {"cost": f"that of {cls.__qualname__}" if own else cls.cost(settings)}

    def targets(self, values: Tensor) -> Tensor:
        """Returns the records (N, D) that the generator is compared with."""
        return values

    def begin(self, targets: Tensor, stream: Stream) -> None:
        """Starts what it trains, once there are records.

        Args:
            targets: all records (N, D), as `targets` returned them.
            stream: public randomness.
        """

    def train(self, points: Tensor, targets: Tensor, stream: Stream) -> None:
        """Takes one of its own steps on a batch as `__call__` takes it."""

    def value(self, x: Tensor, y: Tensor, stream: Stream) -> Tensor:
        """Returns the loss, the mean over S strata, for autograd to differentiate at x.

        A loss overrides this, or `__call__` where it knows its gradient.

        Args:
            x: generated points, (S, n, D): S strata by the randomized label, 1 without labels.
            y: privatized records, as `targets` returned them, (S, n, D).
            stream: public randomness. Draw from it alone, as `stream.normal(n, d)`: what torch
                draws would be other numbers in a run that is continued.

        Returns:
            One number that depends on x through autograd.
        """
        raise NotImplementedError

    def __call__(self, points: Tensor, targets: Tensor, stream: Stream) -> LossGradient:
        """Returns value and gradient at the points; the arguments are those of `value`."""
        x = points.detach().requires_grad_()
        value: Any = self.value(x, targets.to(x.device), stream)
        one = isinstance(value, Tensor) and value.numel() == 1
        gradient = None
        if one and value.requires_grad:
            (gradient,) = torch.autograd.grad(value.sum(), x, allow_unused=True)
        if gradient is None:
            found = "one without a gradient at x" if one else f"a {type(value).__name__}"
            if isinstance(value, Tensor) and not one:
                found = f"the shape {tuple(value.shape)}"
            raise ConfigError(
                f"{type(self).__name__}.value must return one number that autograd can "
                f"differentiate at x, and returned {found}: take the mean over strata and points, "
                "and detach nothing of x."
            )
        if not bool(value.isfinite()) or not bool(gradient.isfinite().all()):
            raise ConfigError(
                f"{type(self).__name__}.value or its gradient at x is NaN or infinite: where is a "
                "division by zero, or the root of one?"
            )
        return LossGradient(float(value.detach()), gradient, 0)


class Matched(LocalLoss):
    """W_{c,λ}(X, Y) and ∂/∂x_i = Σ_j P_ij ∂c(x_i, y_j), by the envelope theorem."""

    def __init__(self, settings: PrivatizeOnceSettings) -> None:
        super().__init__(settings)
        self._cost, self._solver = settings.transport

    def __call__(self, points: Tensor, targets: Tensor, stream: Stream) -> LossGradient:
        x = points.detach()
        found = self.entropic(x, targets.to(x.device))
        iterations = int(found.solution.iterations.max())
        return LossGradient(float(found.value.mean()), found.gradient / len(x), iterations)

    def entropic(self, x: Tensor, y: Tensor) -> TransportGradient:
        """Returns W_{c,λ}(x, y) of each stratum and its gradient at x."""
        return transport_gradient(
            x, y, self._cost, self.settings.effective_lam, solver=self._solver
        )


class Debiased(Matched):
    """The Sinkhorn divergence, whose minimiser is the distribution of the noisy records."""

    def __call__(self, points: Tensor, targets: Tensor, stream: Stream) -> LossGradient:
        x = points.detach()
        found, itself = self.entropic(x, targets.to(x.device)), self.entropic(x, x)
        # X is both marginals of W(X, X), so half of its gradient is that of one side.
        values, gradients = found.value - 0.5 * itself.value, found.gradient - itself.gradient
        iterations = int(found.solution.iterations.max())
        return LossGradient(float(values.mean()), gradients / len(x), iterations)


LOSSES: Registry[type[LocalLoss]] = Registry(
    "strategy.loss", {"matched": Matched, "debiased": Debiased}, group="fedsink.losses"
)
"""Losses of the local mode, by name."""


def loss_named(name: object) -> type[LocalLoss]:
    """Returns the loss that `strategy.loss` names; raises ConfigError where there is none."""
    return find_loss(LOSSES, "strategy.loss", name, LocalLoss)


class LabelStrata:
    """Privatized records by their randomized label ỹ, and the law of the true label l given ỹ.

    Given ỹ = c, the labels follow P(l | c) ∝ Q(c | l)·π_l, and the image's channel is what it
    was: so Theorem 1 holds within every stratum, and the minimiser of
    Σ_c P(ỹ = c) W_{c,λ}(P_{f(G) | c}, P_{Y | c}) is the labelled distribution before both
    channels. It needs Q to be invertible and the prior π. A step of b records in C strata solves C
    problems of b/C points instead of one of b: the points of a class lie as densely as with a
    batch of C·b, and b²/C pairs are compared instead of b².

    Without labels there is one stratum.

    A step has C strata, drawn systematically with probabilities P(ỹ = c): with balanced labels
    each stratum comes about once a step, and a batch has the classes in the proportions of π.

    Args:
        labels: randomized labels ỹ, int64 (N,), N > 0.
        prior: π, (C,).
        mechanism: Q; None where clients send no labels.
    """

    def __init__(self, labels: Tensor, prior: Tensor, mechanism: RandomizedResponse | None) -> None:
        self.number = len(prior)
        self._counts = torch.bincount(labels, minlength=self.number)
        self._starts = self._counts.cumsum(0) - self._counts
        self._order = labels.argsort(stable=True)
        likelihood = torch.ones(1, 1) if mechanism is None else mechanism.log_likelihood().exp()
        posterior = likelihood.to(prior) * prior
        self._cumulated = (posterior / posterior.sum(1, keepdim=True)).cumsum(1)

    def draw(self, batch: int, stream: Stream) -> tuple[Tensor, Tensor]:
        """Draws the records of a step, and labels for the generator by the law of theirs.

        Args:
            batch: b, of which every stratum gets ⌊b/C⌋, at least 2.
            stream: public randomness.

        Returns:
            Places of records, int64 (C, n), and labels, int64 (C, n).
        """
        n = max(2, batch // self.number)
        fractions = self._counts.cumsum(0) / len(self._order)
        places = (torch.arange(self.number) + stream.uniform(1)) / self.number
        answers = torch.searchsorted(fractions, places.to(fractions), right=True)
        answers = answers.clamp(max=int(self._counts.nonzero().max()))  # a place may round up to 1
        counts = self._counts[answers].unsqueeze(1)
        steps = torch.minimum((stream.uniform(self.number, n) * counts).long(), counts - 1)
        records = self._order[self._starts[answers].unsqueeze(1) + steps]
        labels = torch.searchsorted(
            self._cumulated[answers], stream.uniform(self.number, n).to(self._cumulated)
        )
        return records, labels.clamp(max=self.number - 1)
