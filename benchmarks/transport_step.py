"""Transport of one published DP-Sinkhorn step: loss and gradient, GeomLoss against ours.

50 + 10 generated images against batches of 50 to 100 records, 784 pixels and 10 label coordinates,
m = 1, λ = 0.05, the annealed schedule, Ŝ = 2W(X, Y) − W(X, X′).
The second table is the divergence of the same clouds as a user of either library writes it, forward
and backward: `SamplesLoss(…)(x, y)` against `SinkhornLoss(…)(x, y)`.
Run with `FEDSINK_COMPILE=1 python benchmarks/transport_step.py [--repeats 51]`; with 0 it measures
the eager code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from interleaved import arguments, medians, table
from published import (
    LAMBDA,
    gradient,
    images,
    loss,
    one_difference,
    two_products,
    two_terms,
)
from torch import Tensor

from fedsink.transport import (
    AnnealedSolver,
    Mixed,
    SinkhornLoss,
    self_gradient,
    transport_gradient,
)

N, EXTRA = 50, 10


def main() -> None:
    repeats = arguments(__doc__, 51).repeats
    generator = torch.Generator().manual_seed(0)
    x = images(N + EXTRA, generator)
    # Every second batch comes first, so that sizes do not rise with time.
    sizes = [50 + 50 * i // repeats for i in range(repeats)]
    batches = [images(m, generator, background=True) for m in sizes[1::2] + sizes[::2]]

    def reference(cost: object, number: int) -> Tensor:
        leaf = x.clone().requires_grad_()
        of = loss(cost)
        value = 2.0 * of(leaf[:N], batches[number]) - of(leaf[:N], leaf[EXTRA : EXTRA + N])
        return gradient(value, leaf)

    def ours(number: int) -> Tensor:
        cost, solver = Mixed(1.0), AnnealedSolver()
        whole = self_gradient(x, N, cost, LAMBDA, solver=solver).gradient
        half = transport_gradient(x[:N], batches[number], cost, LAMBDA, solver=solver)
        whole[:N] += 2.0 * half.gradient
        return whole

    error = (ours(0) - reference(two_terms, 0)).norm() / reference(two_terms, 0).norm()
    # Once around, so that every layout is compiled before anything is measured.
    for number in range(repeats):
        ours(number)
    runs = {
        "GeomLoss, cost by broadcast, term by term": lambda i: reference(two_terms, i),
        "GeomLoss, cost by broadcast, one difference": lambda i: reference(one_difference, i),
        "GeomLoss, cost by cdist": lambda i: reference(two_products, i),
        "ours": ours,
    }
    warm, cold = medians(runs, repeats, block=10), medians(runs, repeats)
    rows = [
        [name, *(f"{t[name]:.2f} | {t[name] / t['ours']:.1f}" for t in (warm, cold))]
        for name in runs
    ]
    table(["transport of one step", "ms, by tens", "times", "ms, by turns", "times"], rows)
    divergence = SinkhornLoss(Mixed(1.0), lam=LAMBDA, solver=AnnealedSolver())

    def learnt(of: Callable[[Tensor, Tensor], Tensor], number: int) -> Tensor:
        leaf = x[:N].clone().requires_grad_()
        return gradient(of(leaf, batches[number]), leaf)

    theirs = {
        name: loss(cost, debias=True)
        for name, cost in (("term by term", two_terms), ("cdist", two_products))
    }
    apart = learnt(theirs["term by term"], 0)
    other = (learnt(divergence, 0) - apart).norm() / apart.norm()
    losses = {f"SamplesLoss, cost {name}": partial(learnt, of) for name, of in theirs.items()}
    losses["SinkhornLoss"] = partial(learnt, divergence)
    taken = medians(losses, repeats, block=10)
    print()
    table(
        ["divergence, forward and backward", "ms, by tens", "times"],
        [[name, f"{t:.2f}", f"{t / taken['SinkhornLoss']:.1f}"] for name, t in taken.items()],
    )
    print(f"\nrelative difference of the gradients {float(error):.1e}, {float(other):.1e}")
    print(f"ratio transport-step {warm[next(iter(runs))] / warm['ours']:.1f}")


if __name__ == "__main__":
    main()
