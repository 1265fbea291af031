"""Cost of float-safe noise: `SecureStream` (OpenDP) against `Stream` (keyed PyTorch).

Run with `python benchmarks/noise.py [--repeats 3]`; prints a Markdown table, medians of the
interleaved runs. Wall time depends on other processes: the last column is processor time, of all
threads together. The last line names the number of threads that the secure backend could use.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch

from fedsink.privacy import Stream
from fedsink.privacy.randomness.secure import SecureStream

RELEASES = {
    "reply, 60 × 784": (60, 784),
    "upload, 1797 × 64": (1797, 64),
    "upload, 6000 × 784": (6000, 784),
}


def seconds(stream: Stream, law: str, values: torch.Tensor) -> tuple[float, float]:
    """Wall time and processor time of one release."""
    wall, processor = time.perf_counter(), time.process_time()
    getattr(stream, f"add_{law}")(values, 1.1)
    return time.perf_counter() - wall, time.process_time() - processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    print("| release | law | fast, s | secure, s | secure / fast | secure, processor µs a value |")
    print("|---|---|---|---|---|---|")
    for name, shape in RELEASES.items():
        values = torch.zeros(shape)
        for law in ("gaussian", "laplace"):
            runs = [
                (*seconds(Stream(b"benchmark"), law, values), *seconds(SecureStream(), law, values))
                for _ in range(repeats)
            ]
            fast, _, secure, processor = map(statistics.median, zip(*runs, strict=True))
            print(
                f"| {name} | {law} | {fast:.4f} | {secure:.2f} | {secure / fast:.0f} "
                f"| {1e6 * processor / values.numel():.1f} |",
                flush=True,
            )
    print(f"\n{os.cpu_count()} processor threads.")


if __name__ == "__main__":
    main()
