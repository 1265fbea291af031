"""Who solves a transport problem: this package, GeomLoss or KeOps.

`strategy.backend` chooses for the batches of `clip=batch` and in local mode (first table). It does
not for the potentials of `clip=record` (second), nor where a capacity fixes the work (third).
Run with `FEDSINK_COMPILE=0 OMP_NUM_THREADS=1 python benchmarks/backends.py [--repeats 15]`; KeOps
compiles for a minute or two before it is measured. `--large native|geomloss|keops` solves one
problem of 6000 points and prints the memory that it took.
"""

from __future__ import annotations

import resource
import sys

import torch
from interleaved import alike, arguments, medians, milliseconds, table
from published import LAMBDA, images
from torch import Tensor

from fedsink.strategies.self_term import POTENTIAL_SOLVER
from fedsink.transport import (
    BACKENDS,
    L1,
    AnnealedSolver,
    ConvergedSolver,
    Cost,
    FixedSolver,
    Mixed,
    Solver,
    SquaredEuclidean,
    by_backend,
    transport_gradient,
)

CENTRAL, LOCAL = ConvergedSolver(), ConvergedSolver(max_iterations=30, tolerance=2e-2)
EXACT = ConvergedSolver(max_iterations=20_000, tolerance=1e-9)
Pair = tuple[Cost, Solver]


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
    problems: dict[str, tuple[Tensor, Tensor, Cost, float, Solver]] = {
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
    """10 rows against 30 of the rounds before, λ = 5: what `clip=record` asks of the server."""
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
    """The same schedule, from a public diameter, for records that coincide and others."""
    generator = torch.Generator().manual_seed(2)
    spread = [20.0 * torch.rand(n, 1, generator=generator) for n in (60, 200)]
    clouds = {"coincide": [torch.zeros_like(cloud) for cloud in spread], "spread": spread}
    annealed = AnnealedSolver(diameter=30.0)
    pairs: dict[str, Pair] = {
        "native, of a capacity": (SquaredEuclidean(bounded=True), FixedSolver(400.0, 30.0)),
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


def large(backend: str) -> None:
    x, y = (torch.rand(6000, 36, generator=torch.Generator().manual_seed(n)) for n in range(2))
    pair = by_backend(backend, SquaredEuclidean(), AnnealedSolver())
    gradient(pair, x[:50], y[:50], 0.15)  # loads libraries, and compiles
    with open("/proc/self/statm") as file:  # resident now
        before = int(file.read().split()[1]) * resource.getpagesize() / 1024
    time = milliseconds(lambda: gradient(pair, x, y, 0.15))
    extra = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"n = 6000, {backend}: {time / 1e3:.1f} s, at most {extra:.0f} MiB above the points")


def distance(values: Tensor, expected: Tensor) -> str:
    return f"{float((values - expected).norm() / expected.norm()):.0e}"


def main() -> None:
    if sys.argv[1:2] == ["--large"]:
        torch.set_num_threads(1)
        large(sys.argv[2])
        return
    repeats = arguments(__doc__, 15).repeats
    compared(repeats)
    potentials(10 * repeats)
    fixed_work(10 * repeats)


if __name__ == "__main__":
    main()
