"""Growth of the transport's cost: processor time by records, images, dimensions, clients.

One published problem (m = 1, λ = 0.05, annealed), one size varied at a time, and the exponent of
a power law fitted to the larger half of the sizes.

    python benchmarks/transport_growth.py
"""

from __future__ import annotations

import numpy as np
import torch
from interleaved import alike, arguments, medians, table

from fedsink.transport import AnnealedSolver, Mixed, transport_gradient

BASE = {"images": 100, "records": 100, "dimensions": 784, "clients": 1}
SIZES = {
    "records": (50, 100, 200, 400, 800, 1600),
    "images": (50, 100, 200, 400, 800, 1600),
    "dimensions": (98, 196, 392, 784, 1568, 3136),
    "clients": (2, 4, 8, 16, 32, 64),
}


def run(images: int, records: int, dimensions: int, clients: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(images, dimensions, generator=generator)
    y = torch.rand(clients, records, dimensions, generator=generator)
    transport_gradient(x, y, Mixed(1.0), 0.05, solver=AnnealedSolver(diameter=30.0))


def main() -> None:
    repeats = arguments(__doc__, 3).repeats
    rows = []
    for name, sizes in SIZES.items():
        taken = medians({str(size): alike(run, **{**BASE, name: size}) for size in sizes}, repeats)
        times = list(taken.values())
        half = len(sizes) // 2
        exponent = np.polyfit(np.log(sizes[half:]), np.log(times[half:]), 1)[0]
        of_size = ", ".join(f"{s}: {t:.1f}" for s, t in zip(sizes, times, strict=True))
        rows.append([name, of_size, f"{exponent:.2f}"])
    table(["varied", "size: ms", "exponent"], rows)


if __name__ == "__main__":
    main()
