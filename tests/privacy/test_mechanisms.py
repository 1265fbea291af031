"""Promises of every local mechanism, of each built-in one, and of randomized labels."""

from __future__ import annotations

import math
from collections.abc import Callable

import dp_accounting
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from fedsink.errors import ConfigError, PrivacyError
from fedsink.privacy import (
    LOCAL_MECHANISMS,
    Gaussian,
    Laplace,
    LocalMechanism,
    MatchedCost,
    ProductMechanism,
    RandomizedResponse,
    Stream,
    epsilon,
    local_mechanism,
)
from fedsink.privacy.accounting.accountants import gaussian_delta
from fedsink.privacy.mechanisms import _onto_simplex
from fedsink.transport import cost_named

from ..support.laws import assert_law

EVERY = pytest.mark.parametrize("name", LOCAL_MECHANISMS)
NAMES = st.sampled_from(list(LOCAL_MECHANISMS))
DELTA = 1e-5
POSITIVE = st.floats(1e-3, 1e4)
EPSILONS = st.floats(0.01, 200)
DELTAS = st.floats(1e-12, 0.1)
SENSITIVITIES = st.floats(0.1, 100)
LABEL = RandomizedResponse(10, 5.0)


def _delta(mechanism: type[LocalMechanism]) -> float:
    return DELTA if mechanism.needs_delta else 0.0


@given(NAMES, st.floats(1e-3, 1e3), st.floats(0.05, 60.0))
def test_scale_and_epsilon_invert_each_other_never_to_the_owners_disadvantage(
    name: str, sensitivity: float, eps: float
) -> None:
    mechanism = local_mechanism(name)
    there = mechanism.from_epsilon(sensitivity, eps, _delta(mechanism))
    back = mechanism.from_scale(sensitivity, there.scale, _delta(mechanism))
    assert back.scale == there.scale
    assert back.epsilon == pytest.approx(eps, rel=1e-6)
    less = mechanism.from_scale(sensitivity, there.scale * 0.99, _delta(mechanism))
    assert less.epsilon > back.epsilon
    assert mechanism.from_epsilon(sensitivity, back.epsilon, DELTA).scale <= there.scale * (
        1 + 1e-6
    )


@pytest.mark.medium
@EVERY
@pytest.mark.parametrize("eps", [0.5, 5.0, 25.0])
def test_one_release_costs_what_is_claimed(name: str, eps: float) -> None:
    mechanism = local_mechanism(name).from_epsilon(3.0, eps, DELTA)
    assert (mechanism.epsilon, mechanism.delta) == (eps, _delta(type(mechanism)))
    assert (mechanism.adjacency, mechanism.unit) == ("replace-one", "record")
    for adjacency in ("replace-one", "add-remove"):
        cost = epsilon(mechanism.event, mechanism.delta or 1e-12, adjacency=adjacency)
        assert cost == pytest.approx(eps, rel=2e-3 if mechanism.delta else 1e-3), adjacency


@EVERY
def test_what_is_not_finite_is_refused(name: str) -> None:
    mechanism = local_mechanism(name).from_epsilon(2.0, 3.0, DELTA)
    with pytest.raises(PrivacyError, match="values to privatize must be finite"):
        mechanism.privatize(torch.tensor([torch.nan]), Stream(b"key"))


@EVERY
def test_the_matched_cost_is_one_that_the_server_can_train_with(name: str) -> None:
    matched = local_mechanism(name).from_epsilon(2.0, 3.0, DELTA).matched_cost
    assert matched.lam > 0
    cost_named(matched.cost)


@EVERY
def test_calibrations_are_accepted_and_others_are_not(name: str) -> None:
    mechanism = local_mechanism(name)
    default = mechanism.from_epsilon(2.0, 3.0, DELTA)
    for number, calibration in enumerate(mechanism.calibrations):
        chosen = mechanism.from_epsilon(2.0, 3.0, DELTA, calibration)
        assert chosen.epsilon == 3.0
        assert (chosen == default) == (number == 0)


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(PrivacyError, match=r"mechanisms \['gaussian', 'laplace'\], not 'cauchy'"):
        local_mechanism("cauchy")


@pytest.mark.parametrize(
    "point", ["nothing = plugin:nothing", "other = plugin:Mechanism", "kind = plugin:Other"]
)
def test_what_is_installed_must_be_a_local_mechanism_of_its_name(
    point: str, install_package: Callable[[dict[str, str], str], None]
) -> None:
    text = "from fedsink.privacy import Laplace as Mechanism\nnothing = 3\nOther = int\n"
    install_package({"plugin.py": text}, f"[fedsink.local_mechanisms]\n{point}\n")
    name = point.split()[0]
    with pytest.raises(ConfigError, match=f"'{name}' was installed as .* no LocalMechanism of tha"):
        local_mechanism(name)


@given(POSITIVE, POSITIVE)
def test_the_likelihood_ratio_of_two_inputs_a_diameter_apart_is_at_most_epsilon(sensitivity, eps):
    scale = Laplace(sensitivity, eps).scale
    assert sensitivity / eps <= scale <= 1.00001 * sensitivity / eps
    assert sensitivity / scale <= eps  # sup |log p(y|x) − log p(y|x')|


@given(POSITIVE, POSITIVE)
def test_epsilon_is_implied_by_the_scale_and_never_rounded_down_for_laplace(sensitivity, scale):
    mechanism = Laplace.from_scale(sensitivity, scale)
    assert mechanism.scale == scale
    assert sensitivity / scale <= mechanism.epsilon <= 1.00001 * sensitivity / scale


@pytest.mark.parametrize(
    ("mechanism", "law"),
    [
        pytest.param(Laplace(2.0, 5.0), stats.laplace(scale=2.0 / 5.0), id="laplace"),
        pytest.param(Gaussian.from_scale(2.0, 1.276, 1e-4), stats.norm(scale=1.276), id="gaussian"),
    ],
)
def test_every_coordinate_gets_independent_noise_of_the_scale(mechanism, law):
    noise = mechanism.privatize(torch.zeros(400, 50), Stream(b"key")).double().numpy()
    assert_law(noise, law, accept=1e-3)
    assert mechanism.noise_std == pytest.approx(law.std())
    correlations = np.corrcoef(noise.T)[np.triu_indices(50, 1)]
    assert stats.kstest(correlations * math.sqrt(400), stats.norm.cdf).pvalue > 0.001


def test_noise_is_added_to_the_values_as_float32():
    values = torch.arange(6.0).reshape(2, 3)
    mechanism = Laplace(1.0, 1.0)
    private = mechanism.privatize(values, Stream(b"key"))
    noise = mechanism.privatize(torch.zeros(2, 3), Stream(b"key"))
    assert private.dtype == torch.float32
    torch.testing.assert_close(private, values + noise)


@pytest.mark.parametrize(
    ("mechanism", "law", "cost", "lam", "power"),
    [
        (Laplace(2.0, 5.0), torch.distributions.Laplace, "l1", lambda scale: scale, 1),
        (
            Gaussian.from_scale(2.0, 1.276, 1e-4),
            torch.distributions.Normal,
            "squared_l2",
            lambda scale: 2 * scale**2,
            2,
        ),
    ],
    ids=["laplace", "gaussian"],
)
def test_the_matched_cost_is_the_negative_log_likelihood_in_cost_units(
    mechanism, law, cost, lam, power
):
    matched = mechanism.matched_cost
    assert matched == MatchedCost(cost, lam(mechanism.scale))
    noise = law(0.0, mechanism.scale)  # −log p(y|x) = c(x, y)/λ + const
    difference = noise.log_prob(torch.tensor(0.3)) - noise.log_prob(torch.tensor(1.7))
    assert float(difference) == pytest.approx((1.7**power - 0.3**power) / matched.lam, rel=1e-5)


@pytest.mark.parametrize(("multiplier", "eps"), [(0.3, 4.0), (1.0, 1.0), (2.0, 0.1)])
def test_delta_is_the_hockey_stick_divergence(multiplier, eps):
    """δ(ε) = ∫ max(0, p − e^ε q), integrated numerically, for N(1, σ²) against N(0, σ²)."""

    def excess(y: float) -> float:
        p, q = stats.norm(1, multiplier).pdf(y), stats.norm(0, multiplier).pdf(y)
        return max(0.0, p - math.exp(eps) * q)

    start = 0.5 + eps * multiplier**2  # where p = e^ε q
    integral = integrate.quad(excess, start, start + 40 * multiplier)[0]
    assert gaussian_delta(multiplier, eps) == pytest.approx(integral, rel=1e-6)


@given(SENSITIVITIES, EPSILONS, DELTAS)
def test_the_exact_delta_does_not_exceed_delta_and_the_scale_is_least(sensitivity, eps, delta):
    """Pitfall 7: the classical formula does neither, at any ε."""
    scale = Gaussian(sensitivity, eps, delta).scale
    assert gaussian_delta(scale / sensitivity, eps) <= delta
    assert gaussian_delta(scale / sensitivity * (1 - 1e-5), eps) > delta


@given(SENSITIVITIES, EPSILONS, DELTAS)
def test_epsilon_is_implied_by_the_scale_and_never_rounded_down(sensitivity, eps, delta):
    scale = Gaussian(sensitivity, eps, delta).scale
    implied = Gaussian.from_scale(sensitivity, scale, delta)
    assert implied.scale == scale
    assert implied.epsilon == pytest.approx(eps, rel=1e-6)
    assert gaussian_delta(scale / sensitivity, implied.epsilon) <= delta


@given(SENSITIVITIES, EPSILONS, st.floats(1e-12, 0.5))
def test_equation_5_is_enough_and_never_less_than_the_analytic_scale(sensitivity, eps, delta):
    printed = Gaussian(sensitivity, eps, delta, calibration="equation5")
    assert gaussian_delta(printed.scale / sensitivity, eps) <= delta
    assert printed.scale >= Gaussian(sensitivity, eps, delta).scale * (1 - 1e-9)
    assert printed.calibration == "equation5"


def test_noise_so_large_that_delta_alone_suffices_has_epsilon_about_zero():
    assert 0 < Gaussian.from_scale(1.0, 1e6, 1e-3).epsilon < 1e-11


@pytest.mark.parametrize(("eps", "more"), [(1.0, 1.24), (10.0, 1.09), (20.0, 1.06)])
def test_equation_5_adds_as_much_more_as_is_said(eps, more):
    scales = [Gaussian(1.0, eps, 1e-5, kind).scale for kind in ("equation5", "analytic")]
    assert scales[0] / scales[1] == pytest.approx(more, abs=0.006)


def test_records_are_randomized_independently():
    response = RandomizedResponse(2, 0.5)
    changed = response.privatize(torch.zeros(20_000, dtype=torch.int64), Stream(b"key")).double()
    assert stats.pearsonr(changed[:-1].numpy(), changed[1:].numpy()).pvalue > 1e-4


@given(st.integers(2, 1000), st.floats(0.01, 20))
def test_the_likelihood_ratio_of_any_answer_is_at_most_e_to_the_epsilon(classes, eps):
    response = RandomizedResponse(classes, eps)
    matrix = response.log_likelihood()
    assert matrix.shape == (classes, classes)
    assert float((matrix.max(1).values - matrix.min(1).values).max()) <= eps + 1e-12
    torch.testing.assert_close(matrix.exp().sum(0), torch.ones(classes, dtype=torch.float64))
    assert float(matrix[1, 1].exp()) == pytest.approx(response.keep_probability)
    assert float(matrix[0, 1].exp()) == pytest.approx(response.other_probability)
    kept = math.exp(eps) / (math.exp(eps) + classes - 1)
    assert response.keep_probability == pytest.approx(kept)


def test_the_prior_is_recovered_from_the_answers_alone():
    prior = np.array([0.6, 0.25, 0.1, 0.05])
    labels = torch.from_numpy(np.repeat(np.arange(4), (prior * 40_000).astype(int)))
    response = RandomizedResponse(4, 1.0)
    answers = response.privatize(labels, Stream(b"key"))
    estimate = response.estimate_prior(answers).numpy()
    raw = np.bincount(answers.numpy(), minlength=4) / 40_000
    assert np.abs(estimate - prior).max() < 0.02
    assert np.abs(raw - prior).max() > 0.2  # the answers themselves are far off
    assert response.estimate_prior(torch.tensor([0, 0, 0])).tolist() == [1.0, 0.0, 0.0, 0.0]


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=8))
def test_the_projection_is_the_nearest_point_of_the_simplex(values):
    point = torch.tensor(values, dtype=torch.float64)
    nearest = _onto_simplex(point)
    assert float(nearest.sum()) == pytest.approx(1)
    assert float(nearest.min()) >= 0
    # Optimality: no vertex of the simplex lies ahead in the direction of the residual.
    assert float(((point - nearest) @ (torch.eye(len(values)).double() - nearest).T).max()) < 1e-9


@pytest.mark.parametrize(("classes", "eps"), [(2, 1.0), (10, 5.0), (100, 8.0)])
def test_under_replace_one_the_event_costs_epsilon_and_no_other_adjacency_bounds_it(classes, eps):
    response = RandomizedResponse(classes, eps)
    cost = epsilon(response.event, 1e-9, adjacency=response.adjacency)
    assert eps * (1 - 1e-6) <= cost <= eps + 1e-3
    for other in ("add-remove", "client"):
        with pytest.raises(PrivacyError, match="cannot bound RandomizedResponseDpEvent"):
            epsilon(response.event, 1e-9, adjacency=other)


def test_what_it_protects():
    response = RandomizedResponse(np.int64(10), 5.0)
    assert type(response.classes) is int
    assert (response.delta, response.adjacency, response.unit) == (0.0, "replace-one", "record")


@pytest.mark.parametrize("labels", [[0, 10], [-1, 0], [0.0, 1.0]])
def test_bad_labels_are_refused_without_showing_them(labels):
    for method in (
        lambda x: RandomizedResponse(10, 1.0).privatize(x, Stream(b"key")),
        RandomizedResponse(10, 1.0).estimate_prior,
    ):
        with pytest.raises(PrivacyError, match=r"labels must be integers in 0, \.\.\., 9: check"):
            method(torch.tensor(labels))


PRODUCT = ProductMechanism(Laplace(1.0, 1.0), LABEL)
NO_LABELS = torch.zeros(0, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (Laplace, (0, 1.0), "diameter must be a finite number > 0, received 0"),
        (Laplace, (1.0, -1), "epsilon must be a finite number > 0, received -1"),
        (Laplace.from_scale, (1.0, math.nan), "scale must be a finite .*, received nan"),
        (Gaussian, (-2, 1.0, DELTA), "diameter must be a finite .*, received -2"),
        (Gaussian, (1.0, 0, DELTA), "epsilon must be a finite number > 0, received 0"),
        (Gaussian, (1.0, 1.0, 0), r"delta must lie in \(0, 1\), received 0"),
        (Gaussian.from_scale, (1.0, 0.0, DELTA), r"scale must be .*, received 0\.0"),
        (Gaussian, (1.0, 1.0, DELTA, "classical"), "is unknown: .* one of analytic, equ"),
        (Gaussian, (1.0, 1.0, 0.6, "equation5"), "'equation5' holds for delta ≤ "),
        (RandomizedResponse, (1, 1.0), "classes must be an integer ≥ 2, received 1"),
        (RandomizedResponse, (10, 0), "epsilon must be a finite number > 0, received 0"),
        (RandomizedResponse, (10, 1e-7), "at epsilon=1e-07 tells nothing of a label"),
        (RandomizedResponse, (10, 20.5), r"at epsilon=20\.5 changes labels too rarely"),
        (LABEL.estimate_prior, (NO_LABELS,), "at least one privatized label"),
        (
            PRODUCT.privatize,
            (torch.zeros(3, 2), NO_LABELS, Stream(b"key")),
            "one label per record is needed, received 3 records and 0 labels",
        ),
    ],
)
def test_bad_values_are_refused(call, arguments, message):
    with pytest.raises(PrivacyError, match=message):
        call(*arguments)


@pytest.mark.parametrize(
    ("image", "eps", "delta"),
    [(Laplace(2.0, 30.0), 35.0, 0.0), (Gaussian(2.0, 20.0, 1e-4), 25.0, 1e-4)],
)
def test_epsilon_is_the_sum_and_delta_the_images(image, eps, delta):
    product = ProductMechanism(image, LABEL)
    assert product.epsilon == pytest.approx(eps)
    assert product.delta == delta
    assert product.adjacency == "replace-one"


def test_the_labels_share_is_the_replace_one_figure_not_an_accountants_replace_special():
    product = ProductMechanism(Laplace(2.0, 3.0), LABEL)
    relation = dp_accounting.NeighboringRelation
    printed = {}
    for name in (relation.REPLACE_ONE, relation.REPLACE_SPECIAL):
        ledger = dp_accounting.pld.PLDAccountant(name)
        ledger.compose(LABEL.event)
        printed[name] = ledger.get_epsilon(1e-9)
    share = product.epsilon - product.image.epsilon
    assert share == pytest.approx(printed[relation.REPLACE_ONE], rel=1e-4)
    assert printed[relation.REPLACE_SPECIAL] == pytest.approx(2.76, abs=0.01)


@pytest.mark.parametrize("image", [Laplace(2.0, 3.0), Gaussian(2.0, 3.0, 1e-4)])
def test_the_event_composes_both_and_costs_no_more_than_the_sum(image):
    product = ProductMechanism(image, LABEL)
    assert product.event.events == [image.event, LABEL.event]
    cost = epsilon(product.event, product.delta or 1e-9, adjacency=product.adjacency)
    assert LABEL.epsilon < cost <= product.epsilon * (1 + 1e-4)


def test_image_noise_and_label_noise_are_independent():
    product = ProductMechanism(Laplace(1.0, 1.0), RandomizedResponse(2, 0.5))
    n = 20_000
    values, labels = product.privatize(
        torch.zeros(n, 1), torch.zeros(n, dtype=torch.int64), Stream(b"key")
    )
    changed = labels.double().numpy()
    for statistic in (values.flatten(), values.flatten().abs()):
        assert stats.pearsonr(statistic.numpy(), changed).pvalue > 1e-4
    assert math.isclose(float(changed.mean()), 1 / (1 + math.exp(0.5)), abs_tol=0.02)


def test_both_parts_are_privatized_as_by_their_mechanisms():
    product = ProductMechanism(Gaussian(1.0, 1.0, 1e-3), LABEL)
    values, labels = torch.rand(6, 3), torch.arange(6)
    private_values, private_labels = product.privatize(values, labels, Stream(b"key"))
    assert (private_values.dtype, private_labels.dtype) == (torch.float32, torch.int64)
    image_stream = Stream(b"key").child("image")
    assert torch.equal(private_values, product.image.privatize(values, image_stream))
