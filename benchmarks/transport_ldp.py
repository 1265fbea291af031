"""400 Sinkhorn iterations at the sizes of local mode, d = 784: GeomLoss tensorized against ours.

L1 at λ = 8 with Laplace noise of scale 8, squared L2 at λ = 2σ² with Gaussian noise of σ = 9.17,
both on images in [0, 1]. GeomLoss runs an annealed schedule of 400 values down to the same λ and
backpropagates the loss; ours runs 400 iterations at λ. A third run stops at a marginal error of
1e-3 instead. `--large L1` or `--large L2` runs only ours, at n = 6000, and prints its memory beyond
the points.
Run with `FEDSINK_COMPILE=1 python benchmarks/transport_ldp.py [--repeats 3] [--large L1]`.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable

import torch
from interleaved import alike, arguments, medians, milliseconds, table
from published import PIXELS, gradient, loss
from torch import Tensor

from fedsink.transport import (
    L1,
    ConvergedSolver,
    GroundCost,
    SquaredEuclidean,
    transport_gradient,
)
from fedsink.transport.annealed import bounding_diameter

ITERATIONS = 400


def absolute(x: Tensor, y: Tensor) -> Tensor:
    return torch.cdist(x, y, p=1.0)


def squared(x: Tensor, y: Tensor) -> Tensor:
    norms = x.square().sum(-1).unsqueeze(-1) + y.square().sum(-1).unsqueeze(-2)
    return (norms - 2.0 * x @ y.transpose(-1, -2)).clamp(min=0.0)


def points(n: int, name: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x, y = (torch.rand(n, PIXELS, generator=generator) for _ in range(2))
    if name == "L1":
        uniform = torch.rand(y.shape, generator=generator) - 0.5
        return x, y - 8.0 * uniform.sign() * torch.log1p(-2.0 * uniform.abs())
    return x, y + 9.17 * torch.randn(y.shape, generator=generator)


def reference(x: Tensor, y: Tensor, cost: object, lam: float) -> Tensor:
    # As many values between the diameter and λ as there are iterations.
    diameter = float(bounding_diameter(x, y))
    scaling = min(0.9999, (lam / diameter) ** (1.0 / ITERATIONS))
    leaf = x.clone().requires_grad_()
    return gradient(loss(cost, lam, scaling)(leaf, y), leaf)


def ours(x: Tensor, y: Tensor, cost: GroundCost, lam: float, tolerance: float = 0.0) -> Tensor:
    solver = ConvergedSolver(max_iterations=ITERATIONS, tolerance=tolerance)
    return transport_gradient(x, y, cost, lam, solver=solver).gradient


CASES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], GroundCost, float]] = {
    "L1": (absolute, L1(), 8.0),
    "L2": (squared, SquaredEuclidean(), 2.0 * 9.17**2),
}


def large(name: str, generator: torch.Generator) -> None:
    _, cost, lam = CASES[name]
    x, y = points(6000, name, generator)
    ours(x[:50], y[:50], cost, lam)  # loads libraries, and compiles
    # Resident now, not the peak so far: that one may hide growth behind the compiler's.
    with open("/proc/self/statm") as file:
        before = int(file.read().split()[1]) * resource.getpagesize() / 1024
    time = milliseconds(lambda: ours(x, y, cost, lam))
    extra = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"n = 6000, {name}: {time / 1e3:.1f} s, at most {extra:.0f} MiB above the points")


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    if sys.argv[1:2] == ["--large"]:
        torch.set_num_threads(1)
        large(sys.argv[2], generator)
        return
    repeats = arguments(__doc__, 3).repeats
    rows, ratios = [], {}
    for n in (400, 1000):
        for name, (function, cost, lam) in CASES.items():
            x, y = points(n, name, generator)
            taken = medians(
                {
                    "GeomLoss": alike(reference, x, y, function, lam),
                    "ours": alike(ours, x, y, cost, lam),
                    "to 1e-3": alike(ours, x, y, cost, lam, tolerance=1e-3),
                },
                repeats,
            )
            ratios[name] = taken["GeomLoss"] / taken["ours"]
            rows.append(
                [str(n), name, *(f"{t:.0f}" for t in taken.values()), f"{ratios[name]:.1f}"]
            )
    table(["n", "cost", "GeomLoss, ms", "ours, ms", "ours to 1e-3, ms", "times"], rows)
    print()
    for name, ratio in ratios.items():
        print(f"ratio transport-ldp-{name.lower()} {ratio:.1f}")


if __name__ == "__main__":
    main()
