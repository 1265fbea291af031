"""Each comparison of Reshetova et al. equals its row of the table."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fedsink_papers.losses import noisy
from fedsink_papers.noisy_critic import NoisyCritic, NoisyCriticSettings
from fedsink_papers.wavelets import denoised, denoised_values, haar, inverse_haar
from scipy import stats

from fedsink.data.maps import L1Ball, L2Ball, Norm, PixelRange, PointBall, PooledPower
from fedsink.errors import ConfigError
from fedsink.privacy import Stream, local_mechanism
from fedsink.protocol.privatize_once import LocalPlan
from fedsink.server import checkpoint
from fedsink.strategies.losses import LocalLoss, loss_named
from fedsink.strategies.privatize_once import PrivatizeOnce
from fedsink.transport import cost_named
from fedsink.transport.losses import assignment_gradient
from tests.support.models import weights
from tests.support.playing import play

Local = Callable[..., PrivatizeOnce]


GAUSSIAN = LocalPlan("gaussian", L2Ball((1, 4, 4), 2.0), 20.0, 1e-4)


LAPLACE = LocalPlan("laplace", PixelRange((1, 4, 4), "l1"), 60.0)


STREAM = Stream(b"server")


def line(mechanism: str, norm: Norm, scale: float) -> LocalPlan:
    """A plan for numbers in [−10, 10] with noise of this scale."""
    f, delta = PointBall(norm, 10.0, size=1), 1e-4 if mechanism == "gaussian" else 0.0
    epsilon = local_mechanism(mechanism).from_scale(f.sensitivity, scale, delta).epsilon
    return LocalPlan(mechanism, f, epsilon, delta)


def loss(make: Local, plan: LocalPlan, name: str, **more: Any) -> LocalLoss:
    # So many iterations that the comparisons below are with the loss and not with its solver.
    exact = {"max_iterations": 2000, "tolerance": 1e-6}
    settings = make(plan=plan, loss=name, **exact, **more).settings
    return loss_named(name)(settings)


def batch(n: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Generated points and records of two strata."""
    random = torch.Generator().manual_seed(2)
    points = torch.randn(2, n, 16, generator=random) / 4
    return points, torch.randn(2, n, 16, generator=random) / 2


@pytest.mark.parametrize(
    ("plan", "name", "cost"),
    [
        (GAUSSIAN, "unregularised", "squared_l2"),
        (GAUSSIAN, "noisy_w1", "l1"),
        (LAPLACE, "unregularised", "l1"),
        (LAPLACE, "noisy_w1", "l1"),
    ],
)
def test_the_exact_losses_are_the_mean_of_the_strata_without_regularisation(
    make_local: Local, plan: LocalPlan, name: str, cost: str
) -> None:
    points, targets = batch()
    of = loss(make_local, plan, name)
    found = of(points, targets, STREAM.child("a"))
    shown = noisy(of.settings, points, STREAM.child("a")) if name == "noisy_w1" else points
    alone = [
        assignment_gradient(x, y, cost_named(cost)) for x, y in zip(shown, targets, strict=True)
    ]
    assert found.value == pytest.approx(float(alone[0].value + alone[1].value) / 2)
    assert torch.allclose(found.gradient, torch.stack([each.gradient for each in alone]) / 2)
    assert found.iterations == 0


@pytest.mark.parametrize(("mechanism", "norm"), [("gaussian", "l2"), ("laplace", "l1")])
def test_generated_values_get_noise_of_the_mechanisms_law(
    make_local: Local, mechanism: str, norm: Norm
) -> None:
    """Kolmogorov's distance to the law itself, and to two thirds and three halves of its scale."""
    of = loss(make_local, line(mechanism, norm, 2.0), "noisy_w1")
    points = torch.full((1, 4000, 1), 3.0)
    noise = (noisy(of.settings, points, STREAM.child(mechanism)) - points).flatten().double()
    law = {"gaussian": stats.norm, "laplace": stats.laplace}[mechanism]
    distance = {k: stats.kstest(noise, law(scale=2.0 * k).cdf).statistic for k in (1, 2 / 3, 3 / 2)}
    assert distance[1] < 0.03  # √4000·0.03 = 1.9: one in a thousand, and the stream is fixed
    assert min(distance[2 / 3], distance[3 / 2]) > 0.06
    again = noisy(of.settings, points, STREAM.child(mechanism, "b")) - points
    assert not torch.equal(again.flatten().double(), noise)


@pytest.mark.medium
def test_noisy_w1_is_the_distance_of_two_noisy_gaussians(make_local: Local) -> None:
    """W₁ of N(a, s² + σ²) and N(b, t² + σ²): |a − b|, or √(2/π)·|√(s² + σ²) − √(t² + σ²)|."""
    plan, n = line("gaussian", "l2", 2.0), 1000
    exact = {name: loss(make_local, plan, name) for name in ("noisy_w1", "unregularised")}
    x, y = STREAM.child("x").normal(1, n, 1).float(), STREAM.child("y").normal(1, n, 1).float()
    records = noisy(exact["noisy_w1"].settings, y, STREAM.child("records"))

    def distance(points: torch.Tensor) -> float:
        return exact["noisy_w1"](points, records, STREAM.child("noise")).value

    floor = 0.25  # of two samples of 1000 from N(0, 5): 0.1 on average
    assert distance(x) < floor
    assert distance(x + 3.0) == pytest.approx(3.0, abs=floor)
    wide = math.sqrt(2 / math.pi) * (math.sqrt(25 + 4) - math.sqrt(1 + 4))
    assert distance(5.0 * x) == pytest.approx(wide, abs=floor)
    # The law before the noise is not the nearest where nothing is added to it.
    plain = exact["unregularised"]
    spread = math.sqrt(5.0) * STREAM.child("z").normal(1, n, 1).float()
    assert plain(x, records, STREAM).value > plain(spread, records, STREAM).value + 1.0


@pytest.mark.parametrize("name", ["noisy_w1", "noisy_wgan"])
def test_the_gradient_of_a_noisy_loss_is_the_one_at_the_points(
    make_local: Local, name: str
) -> None:
    """Checks finite differences at the same noise, which moves with nothing."""
    of = loss(make_local, LAPLACE, name)
    points, targets = (values[:1] for values in batch())
    of.begin(targets.flatten(0, 1), STREAM.child("critic"))
    step = torch.randn(points.shape, generator=torch.Generator().manual_seed(3)) * 1e-3
    ahead, behind = (of(points + s * step, targets, STREAM.child("n")).value for s in (1, -1))
    expected = float((of(points, targets, STREAM.child("n")).gradient * step).sum())
    assert abs(expected) > 1e-4
    assert (ahead - behind) / 2 == pytest.approx(expected, rel=0.02, abs=2e-6)


@pytest.mark.medium
def test_a_critic_learns_the_distance_of_two_shifted_laws() -> None:
    """W₁ of equal laws that lie 2 apart is 2, and the generated values are drawn to the records."""
    shift = torch.tensor([[1.2, -1.6]])
    stream = STREAM.child("records")
    records = 3.0 + stream.normal(4000, 2).float()
    critic = NoisyCritic(NoisyCriticSettings(hidden=32, lr=5e-3), records, STREAM.child("w"))
    for number in range(300):
        draw = STREAM.child("draw", number)
        chosen = records[(draw.uniform(128) * 4000).long()]
        critic.train(3.0 + draw.normal(128, 2).float() - shift, chosen, draw)
    other = 3.0 + STREAM.child("other").normal(4000, 2).float() - shift
    value, gradient = critic.distance(other, records)
    assert float(value) == pytest.approx(2.0, abs=0.3)
    pull = -4000 * gradient.mean(0)
    assert torch.allclose(pull, shift[0] / 2, atol=0.2)


def test_a_critic_sees_records_of_unit_root_mean_square() -> None:
    records = 3.0 * torch.tensor([[1.0, -1.0], [1.0, 1.0]])
    assert NoisyCritic(NoisyCriticSettings(), records, STREAM).unit == pytest.approx(3.0)


def test_a_critic_goes_on_from_its_state() -> None:
    records = STREAM.child("records").normal(64, 3).float()
    through, resumed = (
        NoisyCritic(NoisyCriticSettings(), records, STREAM.child(w)) for w in ("w", "other")
    )
    through.train(records + 1.0, records, STREAM.child(0))
    resumed.load_state({key: value.clone() for key, value in through.state().items()})
    for critic in (through, resumed):
        critic.train(records + 1.0, records, STREAM.child(1))
    for key, value in through.state().items():
        assert torch.equal(resumed.state()[key], value)


def test_denoised_records_are_what_the_exact_loss_sees(make_local: Local) -> None:
    found = loss(make_local, GAUSSIAN, "denoised")
    points, values = (t.flatten(0, 1) for t in batch())
    std = GAUSSIAN.image_mechanism.scale
    expected = denoised(values.reshape(-1, 1, 4, 4), std).flatten(1)
    assert torch.allclose(found.targets(values), expected)
    assert not torch.allclose(expected, values, atol=0.1)
    assert torch.equal(loss(make_local, GAUSSIAN, "unregularised").targets(values), values)
    exact = loss(make_local, GAUSSIAN, "unregularised")(points[None], expected[None], STREAM)
    assert found(points[None], found.targets(values)[None], STREAM).value == exact.value


def test_records_in_the_cosine_basis_are_denoised_as_pictures() -> None:
    """A constant picture has no details: it stays, while noise in every coordinate shrinks."""
    plan = LocalPlan("laplace", L1Ball((1, 8, 8), 20.0), 4.0)
    clean = plan.map(torch.full((50, 1, 8, 8), 0.9))
    noise = plan.image_mechanism.scale * torch.distributions.Laplace(0.0, 1.0).sample(clean.shape)
    assert torch.allclose(denoised_values(clean, plan), clean, atol=1e-4)
    before = float(noise.square().mean())
    after = float((denoised_values(clean + noise, plan) - clean).square().mean())
    assert after < 0.5 * before


def test_the_threshold_of_laplace_noise_is_that_of_its_standard_deviation() -> None:
    values = 30.0 * torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    std = LAPLACE.image_mechanism.scale * 2**0.5
    expected = denoised(values.reshape(-1, 1, 4, 4), std).flatten(1)
    assert torch.allclose(denoised_values(values, LAPLACE), expected)


SHAPES = [(5, 1, 28, 28), (2, 3, 8, 8), (3, 1, 6, 10), (1, 1, 7, 7)]


def images(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_a_rotation(shape: tuple[int, ...]) -> None:
    x = images(shape)
    average, details = haar(x)
    energy = average.square().sum() + sum(level.square().sum() for level in details)
    assert float(energy) == pytest.approx(float(x.square().sum()), rel=1e-12)
    assert torch.allclose(inverse_haar(average, details), x, atol=1e-12)


def test_28_pixels_have_two_levels() -> None:
    average, details = haar(images(SHAPES[0]))
    assert average.shape == (5, 1, 7, 7)
    assert [tuple(level.shape[2:]) for level in details] == [(3, 14, 14), (3, 7, 7)]


def test_a_square_that_rises_to_the_right_has_one_detail() -> None:
    x = torch.tensor([[0.0, 1.0], [0.0, 1.0]]).reshape(1, 1, 2, 2)
    average, (level,) = haar(x)
    assert float(average) == 1.0
    assert level.flatten().tolist() == [-1.0, 0.0, 0.0]


@pytest.mark.parametrize("channels", [1, 3])
def test_the_threshold_is_universal(channels: int) -> None:
    """A detail just below std·√(2 ln n) vanishes, one above shrinks by it, either sign."""
    std, threshold = 0.3, 0.3 * math.sqrt(2 * math.log(channels * 64))
    average, details = haar(torch.zeros(1, channels, 8, 8, dtype=torch.float64))
    details[0][0, 0, 1, 2, 2] = 0.999 * threshold
    details[1][0, 0, 0, 1, 1] = -threshold - 0.25
    _, kept = haar(denoised(inverse_haar(average, details), std))
    assert float(kept[0].abs().max()) == pytest.approx(0.0, abs=1e-12)
    assert float(kept[1][0, 0, 0, 1, 1]) == pytest.approx(-0.25)


def test_noise_leaves_and_an_edge_stays() -> None:
    """For a half-black picture the mean squared error falls to less than a third."""
    random = torch.Generator().manual_seed(9)
    clean = torch.zeros(200, 1, 16, 16)
    clean[..., 8:] = 4.0
    noisy = clean + torch.randn(clean.shape, generator=random)
    error = float((denoised(noisy, 1.0) - clean).square().mean())
    assert error < 1 / 3
    assert error > 1 / 256  # the averages keep their noise


def test_no_images_are_no_trouble() -> None:
    assert denoised(torch.zeros(0, 1, 28, 28), 1.0).shape == (0, 1, 28, 28)


@pytest.mark.parametrize("name", ["unregularised", "denoised", "noisy_w1", "noisy_wgan"])
def test_a_comparison_is_never_reported_as_theorem_1(make_local: Local, name: str) -> None:
    settings = make_local(plan=replace(GAUSSIAN, classes=1), loss=name).settings
    assert not settings.matched
    assert settings.effective_lam == 0.0
    assert settings.effective_cost == ("l1" if name == "noisy_w1" else "squared_l2")
    stated = settings.statement("secret")["training"]
    assert stated["cost"] == (
        "l2, by a critic" if name == "noisy_wgan" else settings.effective_cost
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {
                "loss": "denoised",
                "plan": replace(GAUSSIAN, map=PooledPower((1, 4, 4), 2, norm="l2")),
            },
            r"whole pictures, and the map pooled_power .*choose map=pixel_range",
        ),
        (
            {"loss": "noisy_wgan", "plan": replace(GAUSSIAN, classes=3, label_epsilon=1.0)},
            r"noisy_wgan compares records without labels: say conditional=false",
        ),
        ({"loss": "noisy_wgan", "critic": {"hidden": 0}}, r"strategy\.critic\.hidden"),
        ({"loss": "noisy_wgan", "critic": {"depth": 3}}, r"strategy\.critic.*depth"),
        (
            {"loss": "noisy_w1", "critic": {"steps": 5}},
            r"strategy\.critic belongs to a loss with a critic, .*noisy_w1 trains none",
        ),
        (
            {"loss": "noisy_wgan", "backend": "geomloss", "solver": "annealed"},
            r"noisy_wgan is left to a critic, which strategy\.backend=geomloss does not",
        ),
    ],
)
def test_impossible_losses_are_refused(
    make_local: Local, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_local(**changes)


@pytest.mark.medium
@pytest.mark.parametrize("loss", ["noisy_w1", "noisy_wgan"])
def test_a_noisy_run_goes_on_bit_identically(
    make_local: Local,
    make_grid: Callable[..., Any],
    local_plan: LocalPlan,
    tmp_path: Path,
    loss: str,
) -> None:
    """Noise, critic and its moments included; the generator gets another step than without."""
    plan = replace(local_plan, label_epsilon=None, classes=1)
    through, until, resumed, plain = (
        make_local(plan=plan, loss=name) for name in (loss, loss, loss, "unregularised")
    )
    play(through, make_grid())
    play(plain, make_grid())
    assert not torch.allclose(weights(through.generator), weights(plain.generator), atol=1e-4)
    play(until, make_grid(), 3)
    checkpoint.save(tmp_path, *until.state())
    checkpoint.save_uploads(tmp_path, until.uploads())
    resumed.load_uploads(checkpoint.load_uploads(tmp_path))
    resumed.load_state(*checkpoint.load(tmp_path))
    resumed.round = 3
    play(resumed, make_grid())
    assert torch.equal(weights(resumed.generator), weights(through.generator))
