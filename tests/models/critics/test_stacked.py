from __future__ import annotations

import torch

from fedsink.models.critics import Adam
from fedsink.privacy import Stream

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
