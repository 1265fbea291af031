from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import conv2d, leaky_relu

from fedsink.data.views import DctView, PixelView, View
from fedsink.errors import ModelError
from fedsink.models.critics import (
    Adam,
    ConvolutionCritic,
    CriticTraining,
    LocalGenerator,
    PerceptronCritic,
    wgan_gp_losses,
)
from fedsink.privacy import Stream

CRITIC = PerceptronCritic(dimension=5, classes=3, hidden=7, scale=2.5)
PAIRS, CRITICS = 11, 4


class Reference(nn.Module):
    """A `PerceptronCritic` of torch.nn's layers, for one label at a time."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        arrays = {name: v[0].clone() for name, v in CRITIC.arrays(weights[None]).items()}
        d, h, classes = CRITIC.dimension, CRITIC.hidden, CRITIC.classes
        self.first, self.second = nn.Linear(d, h, bias=False).double(), nn.Linear(h, h).double()
        self.label_biases = nn.Embedding(classes, h).double()
        self.label_heads = nn.Embedding(classes, h).double()
        self.head = nn.Linear(h, 1, bias=False).double()
        with torch.no_grad():
            self.first.weight.copy_(arrays["first"][:d].T)
            self.label_biases.weight.copy_(arrays["first"][d:])
            self.second.weight.copy_(arrays["second"].T)
            self.second.bias.copy_(arrays["bias"][0])
            self.head.weight.copy_(arrays["head"])
            self.label_heads.weight.copy_(arrays["label_heads"])

    def forward(self, points: Tensor, labels: Tensor) -> Tensor:
        phi = nn.LeakyReLU(0.2)
        hidden = phi(self.first(points / CRITIC.scale) + self.label_biases(labels))
        hidden = phi(self.second(hidden))
        heads = self.head.weight + self.label_heads(labels)
        return (hidden * heads).sum(-1)

    def input_gradient(self, points: Tensor, labels: Tensor) -> Tensor:
        inputs = points.clone().requires_grad_(True)
        total = self(inputs, labels).sum()
        return torch.autograd.grad(total, inputs, create_graph=True)[0]

    def flat_gradient(self) -> Tensor:
        """The gradients in the order of a row of weights."""
        parts = [
            self.first.weight.grad.T, self.label_biases.weight.grad, self.second.weight.grad.T,
            self.second.bias.grad, self.head.weight.grad, self.label_heads.weight.grad,
        ]  # fmt: skip
        return torch.cat([part.flatten() for part in parts])


def problem() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Weights without zeros, fakes, records, shares and labels of four critics, float64."""
    stream = Stream(b"test", "critic")
    weights = 0.4 * stream.normal(CRITICS, CRITIC.size)
    fakes, records = 3.0 * stream.normal(2, CRITICS, PAIRS, CRITIC.dimension)
    shares = stream.uniform(CRITICS, PAIRS)
    labels = (3 * stream.uniform(CRITICS, PAIRS)).long()
    return weights, fakes, records, shares, labels


def test_scores_and_input_gradients_are_those_of_torch_layers():
    weights, points, _, _, labels = problem()
    scores = CRITIC.scores(weights, points, labels)
    gradients = CRITIC.gradients(weights, points, labels)
    for m in range(CRITICS):
        reference = Reference(weights[m])
        torch.testing.assert_close(scores[m], reference(points[m], labels[m]))
        expected = reference.input_gradient(points[m], labels[m])
        torch.testing.assert_close(gradients[m], expected)


@pytest.mark.parametrize(
    ("penalty", "drift", "mismatch"), [(10.0, 1e-3, 0.0), (0.0, 0.5, 0.3), (3.0, 0.0, 1.0)]
)
def test_the_loss_and_its_gradient_are_those_of_autograd_on_torch_layers(penalty, drift, mismatch):
    """The penalty's second derivative included, with the slopes of φ detached."""
    weights, fakes, records, shares, labels = problem()
    others = (labels + 1) % CRITIC.classes
    weights.requires_grad_(True)
    losses = wgan_gp_losses(
        CRITIC, weights, fakes, records, shares, labels,
        penalty=penalty, drift=drift, mismatch=mismatch, others=others if mismatch else None,
    )  # fmt: skip
    (found,) = torch.autograd.grad(losses.sum(), weights)
    for m in range(CRITICS):
        reference = Reference(weights[m].detach())
        u = shares[m, :, None]
        slopes = reference.input_gradient(u * fakes[m] + (1 - u) * records[m], labels[m]).norm(
            dim=1
        )
        real = reference(records[m], labels[m])
        loss = (
            (1.0 - mismatch) * reference(fakes[m], labels[m]).mean()
            + mismatch * reference(records[m], others[m]).mean()
            - real.mean()
            + penalty * ((slopes - 1) ** 2).mean()
            + drift * (real**2).mean()
        )
        loss.backward()
        torch.testing.assert_close(losses[m], loss)
        torch.testing.assert_close(found[m], reference.flat_gradient())


def test_all_critics_at_once_are_each_critic_alone():
    weights, fakes, records, shares, labels = (
        v.float() if v.is_floating_point() else v for v in problem()
    )
    together = wgan_gp_losses(
        CRITIC, weights, fakes, records, shares, labels, penalty=10.0, drift=1e-3
    )
    for m in range(CRITICS):
        row = slice(m, m + 1)
        alone = wgan_gp_losses(
            CRITIC, weights[row], fakes[row], records[row], shares[row], labels[row],
            penalty=10.0, drift=1e-3,
        )  # fmt: skip
        torch.testing.assert_close(together[row], alone)


def test_the_initial_state_is_a_function_of_its_stream_and_tells_classes_apart_by_biases_alone():
    initial = CRITIC.initial(Stream(b"public"))
    assert torch.equal(initial, CRITIC.initial(Stream(b"public")))
    assert not torch.equal(initial, CRITIC.initial(Stream(b"other")))
    assert initial.shape == (CRITIC.size,)
    assert initial.dtype == torch.float32
    arrays = CRITIC.arrays(initial[None])
    assert not arrays["label_heads"].any()
    assert arrays["first"][0, CRITIC.dimension :].unique(dim=0).shape[0] == CRITIC.classes


def test_the_initial_weights_keep_the_size_of_what_they_see():
    critic = PerceptronCritic(dimension=200, classes=10, hidden=300, scale=5.0)
    weights = critic.initial(Stream(b"public"))[None]
    points = 5.0 * Stream(b"points").normal(1, 500, 200).float()
    scores = critic.scores(weights, points, torch.zeros(1, 500, dtype=torch.int64))
    assert 0.3 < float(scores.std()) < 3.0


def test_the_penalty_has_no_pole_where_a_gradient_vanishes():
    _, fakes, records, shares, labels = problem()
    weights = torch.zeros(CRITICS, CRITIC.size, dtype=torch.float64, requires_grad=True)
    losses = wgan_gp_losses(
        CRITIC, weights, fakes, records, shares, labels, penalty=10.0, drift=1e-3
    )
    (gradient,) = torch.autograd.grad(losses.sum(), weights)
    assert torch.equal(losses, torch.full_like(losses, 10.0))
    assert bool(gradient.isfinite().all())


def test_the_size_is_that_of_the_arrays():
    assert CRITIC.size == (5 + 3) * 7 + 7 * 7 + 7 + 7 + 3 * 7


# Convolutions

SHAPE = (2, 8, 7)
VIEWS = [PixelView(SHAPE), DctView(SHAPE, 4.0), DctView(SHAPE, 5.0, frequency_weight=2.0)]
PICTURES, CONVOLUTIONS, KINDS = 6, 3, 4


def pictures(view: View) -> tuple[ConvolutionCritic, Tensor, Tensor, Tensor]:
    """A critic, weights without zeros, points and labels, float64."""
    critic = ConvolutionCritic(view, KINDS, features=3)
    stream = Stream(b"test", "critic")
    weights = 0.3 * stream.normal(CONVOLUTIONS, critic.size)
    points = stream.normal(CONVOLUTIONS, PICTURES, view.dimension)
    return critic, weights, points, (KINDS * stream.uniform(CONVOLUTIONS, PICTURES)).long()


def plain_scores(
    critic: ConvolutionCritic, weights: Tensor, pixels: Tensor, labels: Tensor
) -> Tensor:
    """Scores of one critic at pictures (B, C, H, W) in [−1, 1], by plain convolutions."""
    arrays = {name: v[0] for name, v in critic.arrays(weights[None]).items()}
    first = conv2d(pixels, arrays["first"], stride=2, padding=2)
    first = leaky_relu(first + arrays["label_biases"][labels][:, :, None, None], 0.2)
    second = leaky_relu(conv2d(first, arrays["second"], arrays["bias"], 2, 2), 0.2)
    heads = arrays["head"] + arrays["label_heads"][labels]
    return (second.flatten(1) * heads).sum(1)


def test_on_pixels_it_is_a_plain_convolution():
    critic, weights, points, labels = pictures(VIEWS[0])
    scores = critic.scores(weights, points, labels)
    for m in range(CONVOLUTIONS):
        pixels = points[m].reshape(PICTURES, *SHAPE)
        torch.testing.assert_close(scores[m], plain_scores(critic, weights[m], pixels, labels[m]))


@pytest.mark.parametrize("view", VIEWS, ids=["pixel", "dct", "weighted"])
def test_the_gradient_in_a_view_is_the_view_of_the_gradient_at_the_pixels(view):
    critic, weights, points, labels = pictures(view)
    found = critic.gradients(weights, points, labels)
    for m in range(CONVOLUTIONS):
        # The transpose by autograd: ∂⟨x, A p⟩/∂p for the linear part of the view.
        images = torch.zeros(PICTURES, *SHAPE, dtype=torch.float64, requires_grad=True)
        (at_images,) = torch.autograd.grad((view(images) * points[m]).sum(), images)
        pixels = (at_images / 2.0).requires_grad_(True)
        score = plain_scores(critic, weights[m], pixels, labels[m]).sum()
        (gradient,) = torch.autograd.grad(score, pixels)
        expected = view(0.5 + 0.5 * gradient)
        torch.testing.assert_close(found[m], expected, rtol=1e-5, atol=1e-6)


def test_the_losses_gradient_is_that_of_finite_differences():
    critic, weights, points, labels = pictures(VIEWS[1])
    shares = Stream(b"test", "shares").uniform(CONVOLUTIONS, PICTURES)

    def losses(values: Tensor) -> Tensor:
        return wgan_gp_losses(
            critic, values, points, points.flip(1), shares, labels, penalty=10.0, drift=1e-3
        )

    leaf = weights.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(losses(leaf).sum(), leaf)
    direction = Stream(b"test", "direction").normal(*weights.shape)
    step = 1e-6
    moved = [losses((weights + s * direction).requires_grad_(True)) for s in (step, -step)]
    slope = (moved[0] - moved[1]).detach() / (2.0 * step)
    torch.testing.assert_close((gradient * direction).sum(1), slope, rtol=1e-4, atol=1e-4)


def test_all_convolutions_at_once_are_each_critic_alone():
    critic, weights, points, labels = pictures(VIEWS[1])
    gradients = critic.gradients(weights, points, labels)
    for m in range(CONVOLUTIONS):
        row = slice(m, m + 1)
        alone = critic.gradients(weights[row], points[row], labels[row])
        torch.testing.assert_close(gradients[row], alone)


def test_points_have_no_pictures():
    with pytest.raises(ModelError, match=r"sees images \(C, H, W\), got the shape \(2,\): use a p"):
        ConvolutionCritic(PixelView((2,)), 1)


# Local generators

D, LABELS, NETWORKS, LATENTS = 5, 3, 4, 400
LOCAL = LocalGenerator(D, LABELS, scale=7.0)


def latents() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    weights = torch.stack([LOCAL.initial(Stream(b"test", m)) for m in range(NETWORKS)])
    uniform = Stream(b"test", "latents").uniform(NETWORKS, LATENTS, LOCAL.latent)
    labels = torch.arange(NETWORKS * LATENTS).reshape(NETWORKS, LATENTS) % LABELS
    return weights, uniform, labels


def test_points_are_those_of_torch_layers():
    weights, uniform, labels = latents()
    weights += 0.1  # biases that are not zero
    found = LOCAL.points(weights, uniform, labels)
    assert found.shape == (NETWORKS, LATENTS, D)
    for m in range(NETWORKS):
        arrays = {name: array[m] for name, array in LOCAL.arrays(weights).items()}
        hot = functional.one_hot(labels[m], LABELS).float()
        x = torch.cat([2.0 * uniform[m].float() - 1.0, hot], -1)
        x = functional.leaky_relu(x @ arrays["first"], 0.2)
        x = functional.leaky_relu(x @ arrays["second"] + arrays["bias"], 0.2)
        x = (x @ arrays["last"] + arrays["last_bias"]) * 7.0 / D**0.5
        torch.testing.assert_close(found[m], x)


def test_points_are_about_as_long_as_records_from_the_start():
    lengths = LOCAL.points(*latents()).norm(dim=-1)
    assert 7.0 / 3.0 < float(lengths.mean()) < 7.0 * 3.0


def test_a_generators_points_are_its_own_weights_alone():
    weights, uniform, labels = latents()
    other = weights.clone()
    other[1] = torch.nan
    same = [0, 2, 3]
    found, moved = (LOCAL.points(w, uniform, labels) for w in (weights, other))
    assert torch.equal(found[same], moved[same])
    assert not moved[1].isfinite().any()


# Adam

ROWS, SIZE, STEPS = 5, 8, 12


def test_each_row_takes_the_steps_of_torchs_adam_and_skips_the_others():
    stream = Stream(b"test", "adam")
    start = stream.normal(ROWS, SIZE)
    gradients = stream.normal(STEPS, ROWS, SIZE)
    active = stream.uniform(STEPS, ROWS) < 0.6
    active[0, 0] = True
    active[:, 1] = False
    weights, adam = start.clone(), Adam.start(start)
    for gradient, moves in zip(gradients, active, strict=True):
        adam.step(weights, gradient.clone(), 0.01, moves)
    for row in range(ROWS):
        expected = torch.nn.Parameter(start[row].clone())
        optimizer = torch.optim.Adam([expected], lr=0.01, betas=(0.5, 0.9))
        for gradient, moves in zip(gradients, active, strict=True):
            if moves[row]:
                expected.grad = gradient[row].clone()
                optimizer.step()
        torch.testing.assert_close(weights[row], expected.detach())
        assert int(adam.steps[row]) == int(active[:, row].sum())
    assert torch.equal(weights[1], start[1])
    assert not adam.mean[1].any()


def test_a_row_that_skips_takes_nothing_from_its_gradient():
    weights = torch.ones(2, 3)
    adam = Adam.start(weights)
    gradient = torch.tensor([[1.0, 2.0, 3.0], [float("nan"), float("inf"), 1.0]])
    adam.step(weights, gradient, 0.1, torch.tensor([True, False]))
    torch.testing.assert_close(weights, torch.tensor([[0.9, 0.9, 0.9], [1.0, 1.0, 1.0]]))
    assert torch.equal(adam.square[1], torch.zeros(3))


# Training


def test_the_learning_rate_is_halved_for_the_last_part_of_the_rounds():
    training = CriticTraining(critics=1, lr=2e-3, late=0.3)
    rates = [training.rate(t, 10) for t in range(1, 11)]
    assert rates == [2e-3] * 7 + [1e-3] * 3
    assert CriticTraining(critics=1, lr=1.0, late=0.0).rate(10, 10) == 1.0


def test_the_first_round_has_further_steps():
    """Those of local generators, and of critics against them, count too."""
    training = CriticTraining(critics=1, steps=5, warm=20)
    assert [training.steps_after(rounds) for rounds in (0, 1, 2)] == [25, 5, 5]
    assert training.first_steps == 25
    assert CriticTraining(critics=1, steps=5, warm=20, warm_generator=7).first_steps == 25 + 7 * 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"critics": 0}, "critics must be a whole number of at least 1, not 0"),
        ({"steps": 1.5}, "steps must be a whole number of at least 0, not 1.5"),
        ({"warm": True}, "warm must be a whole number of at least 0, not True"),
        ({"warm_generator": -1}, "warm_generator must be a whole number of at least 0, not -1"),
        ({"warm_generator": 2, "steps": 0}, "warm_generator=2 trains a generator against a critic"),
        ({"batch": 0}, "batch must be a whole number of at least 1, not 0"),
        ({"history": 0}, "history must be a whole number of at least 1, not 0"),
        ({"lr": "fast"}, "lr must be a number of at least 0, not 'fast'"),
        ({"penalty": -1.0}, "penalty must be a number of at least 0, not -1.0"),
        ({"drift": math.inf}, "drift must be a number of at least 0, not inf"),
        ({"late": 1.5}, r"late must be in \[0, 1\], not 1.5"),
        ({"mismatch": 1.5}, r"mismatch must be in \[0, 1\], not 1.5"),
        ({"mismatch": math.nan}, r"mismatch must be in \[0, 1\], not nan"),
        ({"lr": 10**400}, "lr must be a number of at least 0, not 1000"),
    ],
)
def test_values_out_of_range_are_refused(options, message):
    with pytest.raises(ModelError, match=message):
        CriticTraining(**{"critics": 3, **options})
