"""Gradients of K clients at shared images: a loop of GeomLoss against one batched call of ours.

50 generated images, Poisson batches of about 75 records at each client (padded in ours), the
transport of `transport_step.py`; every client gets a separate gradient.
Run with `FEDSINK_COMPILE=1 python benchmarks/transport_clients.py [--repeats 5]`.
"""

from __future__ import annotations

import math

import torch
from interleaved import alike, arguments, medians, table
from published import LAMBDA, gradient, images, loss, two_terms
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedsink.transport import AnnealedSolver, Mixed, transport_gradient

ROWS, RECORDS = 50, 75


def looped(x: Tensor, batches: list[Tensor]) -> Tensor:
    of, gradients = loss(two_terms), []
    for y in batches:
        leaf = x.clone().requires_grad_()
        gradients.append(gradient(of(leaf, y), leaf))
    return torch.stack(gradients)


def batched(x: Tensor, batches: list[Tensor]) -> Tensor:
    y = pad_sequence(batches, batch_first=True)
    log_b = torch.full(y.shape[:2], -math.inf)
    for own, batch in zip(log_b, batches, strict=True):
        own[: len(batch)] = -math.log(len(batch))
    solver = AnnealedSolver()
    return transport_gradient(x, y, Mixed(1.0), LAMBDA, log_b=log_b, solver=solver).gradient


def main() -> None:
    repeats = arguments(__doc__, 5).repeats
    generator = torch.Generator().manual_seed(0)
    x = images(ROWS, generator)
    rows = []
    for clients in (10, 50, 100):
        sizes = torch.poisson(torch.full((clients,), float(RECORDS)), generator=generator).int()
        batches = [images(max(2, int(m)), generator, background=True) for m in sizes]
        expected, ours = looped(x, batches), batched(x, batches)
        error = float((expected - ours).norm() / expected.norm())
        taken = medians(
            {
                "loop": alike(looped, x, batches),
                "batched": alike(batched, x, batches),
            },
            repeats,
        )
        ratio = taken["loop"] / taken["batched"]
        rows.append(
            [
                str(clients),
                f"{taken['loop']:.0f}",
                f"{taken['batched']:.1f}",
                f"{ratio:.1f}",
                f"{error:.0e}",
            ]
        )
    table(["K", "loop of GeomLoss, ms", "ours, ms", "times", "relative difference"], rows)
    print(f"\nratio transport-clients {ratio:.1f}")


if __name__ == "__main__":
    main()
