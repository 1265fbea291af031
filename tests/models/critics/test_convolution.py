from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, leaky_relu

from fedsink.data.views import DctView, PixelView, View
from fedsink.errors import ModelError
from fedsink.models.critics import ConvolutionCritic, wgan_gp_losses
from fedsink.privacy import Stream

SHAPE = (2, 8, 7)
VIEWS = [PixelView(SHAPE), DctView(SHAPE, 4.0), DctView(SHAPE, 5.0, frequency_weight=2.0)]
PAIRS, CRITICS, CLASSES = 6, 3, 4


def problem(view: View) -> tuple[ConvolutionCritic, Tensor, Tensor, Tensor]:
    """A critic, weights without zeros, points and labels, float64."""
    critic = ConvolutionCritic(view, CLASSES, features=3)
    stream = Stream(b"test", "critic")
    weights = 0.3 * stream.normal(CRITICS, critic.size)
    points = stream.normal(CRITICS, PAIRS, view.dimension)
    return critic, weights, points, (CLASSES * stream.uniform(CRITICS, PAIRS)).long()


def reference(critic: ConvolutionCritic, weights: Tensor, pixels: Tensor, labels: Tensor) -> Tensor:
    """D at pictures (B, C, H, W) in [−1, 1] of one critic, with a plain convolution each."""
    arrays = {name: v[0] for name, v in critic.arrays(weights[None]).items()}
    first = conv2d(pixels, arrays["first"], stride=2, padding=2)
    first = leaky_relu(first + arrays["label_biases"][labels][:, :, None, None], 0.2)
    second = leaky_relu(conv2d(first, arrays["second"], arrays["bias"], 2, 2), 0.2)
    heads = arrays["head"] + arrays["label_heads"][labels]
    return (second.flatten(1) * heads).sum(1)


def test_on_pixels_it_is_a_plain_convolution():
    critic, weights, points, labels = problem(VIEWS[0])
    scores = critic.scores(weights, points, labels)
    for m in range(CRITICS):
        pixels = points[m].reshape(PAIRS, *SHAPE)
        torch.testing.assert_close(scores[m], reference(critic, weights[m], pixels, labels[m]))


@pytest.mark.parametrize("view", VIEWS, ids=["pixel", "dct", "weighted"])
def test_the_gradient_in_a_view_is_the_view_of_the_gradient_at_the_pixels(view):
    critic, weights, points, labels = problem(view)
    found = critic.gradients(weights, points, labels)
    for m in range(CRITICS):
        # The transpose by autograd: ∂⟨x, A p⟩/∂p for the linear part of the view.
        images = torch.zeros(PAIRS, *SHAPE, dtype=torch.float64, requires_grad=True)
        (at_images,) = torch.autograd.grad((view(images) * points[m]).sum(), images)
        pixels = (at_images / 2.0).requires_grad_(True)
        score = reference(critic, weights[m], pixels, labels[m]).sum()
        (gradient,) = torch.autograd.grad(score, pixels)
        expected = view(0.5 + 0.5 * gradient)
        torch.testing.assert_close(found[m], expected, rtol=1e-5, atol=1e-6)


def test_the_losses_gradient_is_that_of_finite_differences():
    critic, weights, points, labels = problem(VIEWS[1])
    shares = Stream(b"test", "shares").uniform(CRITICS, PAIRS)

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


def test_all_critics_at_once_are_each_critic_alone():
    critic, weights, points, labels = problem(VIEWS[1])
    gradients = critic.gradients(weights, points, labels)
    for m in range(CRITICS):
        own = slice(m, m + 1)
        alone = critic.gradients(weights[own], points[own], labels[own])
        torch.testing.assert_close(gradients[own], alone)


def test_points_have_no_pictures():
    with pytest.raises(ModelError, match=r"sees images \(C, H, W\), got the shape \(2,\): use a p"):
        ConvolutionCritic(PixelView((2,)), 1)
