"""Each loss equals its row of the table, and strata hold records of one answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedsink.data.maps import L2Ball, PixelRange
from fedsink.errors import ConfigError
from fedsink.privacy import RandomizedResponse, Stream
from fedsink.protocol.privatize_once import LocalPlan
from fedsink.strategies.dp_sinkhorn.self_term import SemiDebiased
from fedsink.strategies.losses import LOSSES, LabelStrata, LocalLoss, loss_named
from fedsink.strategies.privatize_once import PrivatizeOnce
from fedsink.transport import ConvergedSolver, cost_named, transport_gradient

Local = Callable[..., PrivatizeOnce]
GAUSSIAN = LocalPlan("gaussian", L2Ball((1, 4, 4), 2.0), 20.0, 1e-4)
LAPLACE = LocalPlan("laplace", PixelRange((1, 4, 4), "l1"), 60.0)
STREAM = Stream(b"server")


def loss(make: Local, plan: LocalPlan, name: str, **more: Any) -> LocalLoss:
    # So many iterations that the comparisons below are with the loss and not with its solver.
    exact = {"max_iterations": 2000, "tolerance": 1e-6}
    return loss_named(name)(make(plan=plan, loss=name, **exact, **more).settings)


def batch(n: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Generated points and records of two strata."""
    random = torch.Generator().manual_seed(2)
    points = torch.randn(2, n, 16, generator=random) / 4
    return points, torch.randn(2, n, 16, generator=random) / 2


def test_the_matched_loss_is_the_mean_of_the_strata(make_local):
    """Each stratum has the cost and λ of Theorem 1, and only its own records."""
    plan = replace(GAUSSIAN, epsilon=5.0)
    points, targets = batch()
    found = loss(make_local, plan, "matched", finite_batch_factor=0.8)(points, targets, STREAM)
    lam = 0.8 * 2 * plan.image_mechanism.scale**2
    for stratum in range(2):
        alone = transport_gradient(
            points[stratum], targets[stratum], cost_named("squared_l2"), lam,
            solver=ConvergedSolver(2000, 1e-6),
        )  # fmt: skip
        assert torch.allclose(found.gradient[stratum], alone.gradient / 2, atol=1e-5)
    assert found.iterations > 0


def test_the_debiased_gradient_is_the_sinkhorn_divergences(make_local):
    """Checks finite differences of W(X, Y) − ½W(X, X), in which X moves on both sides."""
    points, targets = batch()
    step = torch.randn(points.shape, generator=torch.Generator().manual_seed(3)) * 1e-2
    of = loss(make_local, replace(GAUSSIAN, epsilon=5.0), "debiased")
    ahead, behind = (of(points + sign * step, targets, STREAM).value for sign in (1, -1))
    expected = float((of(points, targets, STREAM).gradient * step).sum())
    assert (ahead - behind) / 2 == pytest.approx(expected, rel=0.02)


def test_the_debiased_loss_is_least_where_the_points_are_the_targets(make_local):
    """Minimum at the distribution of Y; the matched loss still pulls there."""
    _, targets = batch()
    plan = replace(GAUSSIAN, epsilon=3.0)
    debiased, matched = (
        loss(make_local, plan, name)(targets, targets, STREAM) for name in ("debiased", "matched")
    )
    assert float(debiased.gradient.abs().max()) < 1e-4
    assert float(matched.gradient.abs().max()) > 1e-2


class Quadratic(LocalLoss):
    def value(self, x: torch.Tensor, y: torch.Tensor, stream: Stream) -> torch.Tensor:
        return (x - y).square().sum() / len(x)


def test_a_value_is_differentiated_at_the_points(make_local):
    points, targets = batch()
    points.requires_grad_()  # a generator's graph, which a loss must not touch
    found = Quadratic(make_local(plan=GAUSSIAN).settings)(points, targets, STREAM)
    assert torch.allclose(found.gradient, points.detach() - targets)
    assert found.value == pytest.approx(float((points - targets).detach().square().sum() / 2))
    assert points.grad is None


WRONG_VALUES = {
    "of each point": (lambda x, y: (x - y).square().sum(-1), r"returned the shape \(2, "),
    "of each stratum": (lambda x, y: (x - y).square().sum((1, 2)), r"returned the shape \(2,\)"),
    "detached": (lambda x, y: (x - y).detach().sum(), "returned one without a gradient at x"),
    "of y alone": (lambda x, y: y.clone().requires_grad_().sum(), "one without a gradient at x"),
    "a number": (lambda x, y: (x - y).sum().item(), "returned a float"),
    "nothing": (lambda x, y: None, "returned a NoneType"),
    "a pair": (lambda x, y: (x.sum(), y), "returned a tuple"),
    "NaN": (lambda x, y: (x - y).sum() * torch.nan, "is NaN or infinite"),
    "a root of zero": (lambda x, y: (x - x.detach()).square().sum().sqrt(), "is NaN or infinite"),
}


@pytest.mark.parametrize("wrong", WRONG_VALUES)
def test_a_value_that_is_none_is_refused_in_a_sentence(make_local, wrong):
    value, message = WRONG_VALUES[wrong]
    loss = type("Mine", (LocalLoss,), {"value": lambda self, x, y, stream: value(x, y)})
    points, targets = (b.expand(2, *b.shape[-2:]).clone() for b in batch())
    with pytest.raises(ConfigError, match=rf"Mine\.value .*{message}"):
        loss(make_local(plan=GAUSSIAN).settings)(points, targets, STREAM)


def test_a_loss_of_ones_own_states_nothing_that_is_fedsinks(make_local, monkeypatch):
    """Neither by its statement nor under the name of Theorem 1's."""
    monkeypatch.setitem(LOSSES, "mine", Quadratic)
    training = make_local(loss="mine").settings.statement("secret")["training"]
    assert (training["matched"], training["cost"]) == (False, "that of Quadratic")
    lying = type("Lying", (Quadratic,), {"statement": lambda settings: {"matched": True}})
    monkeypatch.setitem(LOSSES, "mine", lying)
    with pytest.raises(ConfigError, match=r"loss=mine states matched, which fedsink itself does"):
        make_local(loss="mine").settings.statement("secret")
    monkeypatch.setitem(LOSSES, "matched", Quadratic)
    assert not make_local(loss="matched").settings.matched


def test_a_loss_that_is_no_class_is_refused_and_hides_no_other(make_local, monkeypatch):
    monkeypatch.setitem(LOSSES, "mine", lambda settings: None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a loss is a class that derives from LocalLoss"):
        make_local(loss="mine")
    with pytest.raises(ConfigError, match=r"'machted' is unknown.*Did you mean matched\?"):
        make_local(loss="machted")


def test_a_loss_that_computes_nothing_is_refused_where_it_is_written():
    with pytest.raises(TypeError, match="Idle computes no loss: give it a method `value`"):
        type("Idle", (LocalLoss,), {})


@pytest.mark.parametrize("name", LOSSES.own)
def test_only_the_matched_loss_is_reported_as_theorem_1(make_local, name):
    settings = make_local(plan=replace(GAUSSIAN, classes=1), loss=name).settings
    assert settings.matched == (name == "matched")
    assert settings.effective_lam == pytest.approx(GAUSSIAN.matched_cost.lam)
    assert settings.effective_cost == "squared_l2"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "sharp"}, r"strategy\.loss='sharp' is unknown; choose one of .*matched"),
        (
            {"loss": "foreign"},
            r"strategy\.loss='foreign' is unknown; choose one of debiased, .*matched",
        ),
        (
            {"loss": "debiased", "lam": 1.0, "unmatched": True},
            r"strategy\.loss=debiased fixes its cost and λ: leave",
        ),
        (
            {"critic": {"hidden": 5}},
            r"strategy\.critic belongs to a loss with a critic, .*matched trains none",
        ),
    ],
)
def test_impossible_losses_are_refused(make_local, changes, message, monkeypatch):
    monkeypatch.setitem(LOSSES, "foreign", SemiDebiased)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        make_local(**changes)


def randomized(prior: torch.Tensor, n: int, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.multinomial(prior, n, True, generator=torch.Generator().manual_seed(1))
    return labels, RandomizedResponse(3, epsilon).privatize(labels, Stream(b"answers"))


def test_a_stratum_has_records_of_one_answer_and_all_of_them_in_time():
    prior = torch.ones(3) / 3
    _, answers = randomized(prior, 60, 1.0)
    strata = LabelStrata(answers, prior, RandomizedResponse(3, 1.0))
    seen = set()
    for step in range(60):
        records, labels = strata.draw(30, Stream(b"s", "train", step))
        assert records.shape == labels.shape == (3, 10)
        assert bool((answers[records] == answers[records][:, :1]).all())
        seen |= set(records.flatten().tolist())
    assert seen == set(range(60))


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_labels_follow_their_law_given_the_answer(epsilon):
    """P(l | ỹ) by counting, from unbalanced labels that really went through the channel."""
    prior = torch.tensor([0.6, 0.3, 0.1])
    labels, answers = randomized(prior, 200_000, epsilon)
    strata = LabelStrata(answers, prior, RandomizedResponse(3, epsilon))
    records, drawn = strata.draw(300_000, Stream(b"s"))
    for row, chosen in zip(records, drawn, strict=True):
        behind = labels[answers == answers[row[0]]]
        expected = torch.bincount(behind, minlength=3) / len(behind)
        found = torch.bincount(chosen, minlength=3) / len(chosen)
        assert torch.allclose(found, expected, atol=0.02)  # eight standard deviations


@pytest.mark.medium
def test_a_batch_has_the_classes_in_the_proportions_of_the_prior():
    prior = torch.tensor([0.6, 0.3, 0.1])
    _, answers = randomized(prior, 20_000, 2.0)
    strata = LabelStrata(answers, prior, RandomizedResponse(3, 2.0))
    draws = [strata.draw(30, Stream(b"s", "train", step)) for step in range(2000)]
    mix = torch.bincount(torch.cat([labels.flatten() for _, labels in draws]), minlength=3)
    assert torch.allclose(mix / mix.sum(), prior, atol=0.02)
    found = torch.bincount(answers[torch.cat([r.flatten() for r, _ in draws])]) / mix.sum()
    assert torch.allclose(found, torch.bincount(answers) / len(answers), atol=0.02)


def test_an_answer_that_nobody_gave_is_no_stratum():
    prior = torch.tensor([0.5, 0.5, 0.0])
    answers = torch.tensor([0, 1, 0, 1, 0])
    strata = LabelStrata(answers, prior, RandomizedResponse(3, 2.0))
    for step in range(50):
        records, labels = strata.draw(9, Stream(b"s", "train", step))
        assert int(records.max()) < 5
        assert int(labels.max()) < 2


def test_without_labels_there_is_one_stratum():
    strata = LabelStrata(torch.zeros(7, dtype=torch.int64), torch.ones(1), None)
    records, labels = strata.draw(100, Stream(b"s"))
    assert records.shape == (1, 100)
    assert set(records.flatten().tolist()) == set(range(7))
    assert not bool(labels.any())
