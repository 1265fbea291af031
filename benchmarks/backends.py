"""Solvers of a transport problem: this package, GeomLoss or KeOps; and clippers of weights.

`strategy.backend` chooses for the batches of `clip=batch` and in local mode (first table). It has
no effect on the potentials of `clip=record` (second), or where a capacity fixes the work (third).
The fourth has the clipped sum of `strategy=parameter_gradient clip=record`, Opacus' and ours.
Run with `FEDSINK_COMPILE=0 OMP_NUM_THREADS=1 python benchmarks/backends.py [--repeats 15]`; KeOps
compiles for a minute or two before it is measured. `--large native|geomloss|keops [6000]` solves
one problem of that many points on each side and prints its memory.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from copy import deepcopy

import torch
from interleaved import alike, arguments, medians, milliseconds, table
from opacus import GradSampleModule
from published import LAMBDA, images
from torch import Tensor

from fedsink.models import Generator, build
from fedsink.models.weights import flat_weights, pullback
from fedsink.strategies.dp_sinkhorn.self_term import POTENTIAL_SOLVER
from fedsink.transport import (
    BACKENDS,
    L1,
    AnnealedSolver,
    ConvergedSolver,
    FixedSolver,
    GroundCost,
    Mixed,
    Solver,
    SquaredEuclidean,
    by_backend,
    transport_gradient,
)
from fedsink.transport.clipped_sums import clipped_pullback, row_weights

CENTRAL, LOCAL = ConvergedSolver(), ConvergedSolver(max_iterations=30, tolerance=2e-2)
EXACT = ConvergedSolver(max_iterations=20_000, tolerance=1e-9)
Pair = tuple[GroundCost, Solver]


def gradient(pair: Pair, x: Tensor, y: Tensor, lam: float) -> Tensor:
    return transport_gradient(x, y, pair[0], lam, solver=pair[1]).gradient


def potential(pair: Pair, x: Tensor, y: Tensor, lam: float) -> Tensor:
    f = pair[1](pair[0](x, y), lam, points=(x, y)).f
    return f - f.mean()


def compared(repeats: int) -> None:
    generator = torch.Generator().manual_seed(0)

    def unit(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    x = images(60, generator)
    batches = torch.stack([images(75, generator, background=True) for _ in range(10)])
    strata, many = (unit(10, 35, 35), unit(10, 35, 35)), (unit(1000, 36), unit(1000, 36))
    problems: dict[str, tuple[Tensor, Tensor, GroundCost, float, Solver]] = {
        "self term, 50 × 50, d = 794": (x[:50], x[10:], Mixed(1.0), LAMBDA, CENTRAL),
        "10 clients, 50 × 75, d = 794": (x[:50], batches, Mixed(1.0), LAMBDA, CENTRAL),
        "local, 10 × 35 × 35, d = 35": (*strata, L1(), 0.06, LOCAL),
        "local, 1000 × 1000, d = 36": (*many, SquaredEuclidean(), 0.15, LOCAL),
    }
    rows = []
    for name, (x, y, cost, lam, converged) in problems.items():
        pairs = {b: by_backend(b, cost, AnnealedSolver()) for b in BACKENDS}
        pairs[""] = cost, converged
        taken = medians({b: alike(gradient, p, x, y, lam) for b, p in pairs.items()}, repeats)
        exact = gradient((cost, EXACT), x.double(), y.double(), lam)
        found = {b: gradient(pair, x, y, lam) for b, pair in pairs.items()}
        rows.append(
            [
                name,
                *(f"{taken[b]:.1f}" for b in pairs),
                *(distance(found[b], found["native"]) for b in ("geomloss", "keops")),
                *(distance(found[b], exact) for b in ("native", "")),
            ]
        )
    header = [*(f"{b}, ms" for b in BACKENDS), "native converged, ms", "geomloss ≠", "keops ≠"]
    table(["problem", *header, "annealed ≠ exact", "converged ≠ exact"], rows)


def potentials(repeats: int) -> None:
    """10 rows against 30 of the rounds before, λ = 5: the server's problem under `clip=record`."""
    generator, cost = torch.Generator().manual_seed(1), SquaredEuclidean()
    x, past = (2.0 * torch.rand(n, 50, generator=generator) - 1.0 for n in (10, 30))
    exact = potential((cost, EXACT), x.double(), past.double(), 5.0)
    pairs: dict[str, Pair] = {
        "native": (cost, POTENTIAL_SOLVER),
        "geomloss": by_backend("geomloss", cost, AnnealedSolver()),
        "geomloss, scaling 0.9": by_backend("geomloss", cost, AnnealedSolver(0.9)),
        "keops": by_backend("keops", cost, POTENTIAL_SOLVER),
    }
    taken = medians({b: alike(potential, p, x, past, 5.0) for b, p in pairs.items()}, repeats)
    rows = [
        [b, f"{taken[b]:.2f}", f"{float((potential(p, x, past, 5.0) - exact).abs().max()) / 5:.0e}"]
        for b, p in pairs.items()
    ]
    print()
    table(["potentials", "ms", "largest error / λ"], rows)


def fixed_work(repeats: int) -> None:
    """Compares equal schedules from a public diameter, for records that coincide and others."""
    generator = torch.Generator().manual_seed(2)
    spread = [20.0 * torch.rand(n, 1, generator=generator) for n in (60, 200)]
    clouds = {"coincide": [torch.zeros_like(cloud) for cloud in spread], "spread": spread}
    annealed = AnnealedSolver(diameter=30.0)
    pairs: dict[str, Pair] = {
        "native, of a capacity": (SquaredEuclidean(), FixedSolver(400.0, 30.0)),
        **{b: by_backend(b, SquaredEuclidean(), annealed) for b in BACKENDS},
    }
    rows = []
    for name, pair in pairs.items():
        runs = {kind: alike(gradient, pair, x, y, 0.05) for kind, (x, y) in clouds.items()}
        taken = medians(runs, repeats)
        ratio = max(taken.values()) / min(taken.values())
        rows.append([name, *(f"{taken[kind]:.2f}" for kind in clouds), f"{ratio:.2f}"])
    print()
    table(["records", *(f"{kind}, ms" for kind in clouds), "ratio"], rows)


def in_the_weights(repeats: int) -> None:
    """Σ_j clip(Jᵀg_j, Δ) at n rows of one class: ours record by record, Opacus' in one batch."""
    pictures = (1, 28, 28)
    problems: dict[str, tuple[Generator, int, int]] = {
        "perceptron, 8 × 8, 10 rows, 30 records": (
            build("mlp", (1, 8, 8), 10, hidden=[128], batch_norm=False),
            10,
            30,
        ),
        "perceptron, 28 × 28, 20 rows, 60 records": (
            build("mlp", pictures, 10, batch_norm=False),
            20,
            60,
        ),
        "convolutions, 28 × 28, 20 rows, 15 records": (build("conv", pictures, 10), 20, 15),
    }
    rows = []
    for name, (network, n, m) in problems.items():
        random = torch.Generator().manual_seed(3)
        z = 2.0 * torch.rand(n, network.latent_dim, generator=random) - 1.0
        y = torch.rand(m, *network.shape, generator=random).flatten(1)
        runs = {"ours": record_by_record(network, z, y), "opacus": in_one_batch(network, z, y)}
        taken = medians({who: alike(run) for who, run in runs.items()}, repeats)
        apart = distance(runs["opacus"](), runs["ours"]())
        ratio = taken["opacus"] / taken["ours"]
        rows.append([name, *(f"{taken[who]:.1f}" for who in runs), f"{ratio:.2f}", apart])
    print()
    table(["clipped in the weights", "ours, ms", "Opacus, ms", "ratio", "Opacus ≠ ours"], rows)


SOFT, BOUND = 5.0, 1.0
"""λ and Δ of the fourth table."""


def record_by_record(network: Generator, z: Tensor, y: Tensor) -> Callable[[], Tensor]:
    labels, weights = torch.zeros(len(z), dtype=torch.int64), flat_weights(network).detach()

    def run() -> Tensor:
        with torch.no_grad():
            x = network(z, labels).flatten(1)
        pull = pullback(network, weights, z, labels, lambda v: v.flatten(1))
        return clipped_pullback(x, y, torch.zeros(len(z)), SOFT, BOUND, pull)

    return run


def in_one_batch(network: Generator, z: Tensor, y: Tensor) -> Callable[[], Tensor]:
    """Gives every record separate rows, z generated once more; linear layers take them as one."""
    n, m, network = len(z), len(y), deepcopy(network)
    whole = network.name == "mlp"
    module = GradSampleModule(network.layers if whole else network, loss_reduction="sum")
    labels = torch.zeros(n, dtype=torch.int64)
    inputs = torch.cat([z, network.one_hot(labels, z)], dim=1).expand(m, -1, -1)

    def run() -> Tensor:
        if whole:
            x = torch.sigmoid(module(inputs))
        else:
            x = module(z.repeat(m, 1), labels.repeat(m)).flatten(1).unflatten(0, (m, n))
        difference = x.detach() - y.unsqueeze(1)
        w = row_weights(torch.zeros(n), difference.square().sum(-1).T, SOFT)
        (x * w.T.unsqueeze(-1) * difference).sum().backward()
        found = [p.grad_sample for p in module.parameters()]
        if not whole:
            found = [values.unflatten(0, (m, n)).sum(1) for values in found]
        samples = torch.cat([values.flatten(1) for values in found], dim=1)
        module.zero_grad(set_to_none=True)
        return (samples * (BOUND / samples.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(0)

    return run


def large(backend: str, n: int) -> None:
    x, y = (torch.rand(n, 36, generator=torch.Generator().manual_seed(seed)) for seed in range(2))
    pair = by_backend(backend, SquaredEuclidean(), AnnealedSolver())
    gradient(pair, x[:50], y[:50], 0.15)  # loads libraries, and compiles
    with open("/proc/self/statm") as file:  # resident now
        before = int(file.read().split()[1]) * resource.getpagesize() / 1024
    time = milliseconds(lambda: gradient(pair, x, y, 0.15))
    extra = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"n = {n}, {backend}: {time / 1e3:.1f} s, at most {extra:.0f} MiB above the points")


def distance(values: Tensor, expected: Tensor) -> str:
    return f"{float((values - expected).norm() / expected.norm()):.0e}"


def main() -> None:
    if sys.argv[1:2] == ["--large"]:
        torch.set_num_threads(1)
        large(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 6000)
        return
    repeats = arguments(__doc__, 15).repeats
    compared(repeats)
    potentials(10 * repeats)
    fixed_work(10 * repeats)
    in_the_weights(repeats)


if __name__ == "__main__":
    main()
