"""Time, start and memory of a simulation as its clients become ten, a thousand, a million.

DP-Sinkhorn on MNIST, whose pictures are repeated where there are more clients than pictures. Every
number of clients samples the same 3,000 records a round on average, each client those of a class.
Noise is the clients' own, or shared. Each run is a process of its own, and the runs take turns;
ratios are to ten clients in the same turn. Times are processor times, but for the ratio to Flower's
own engine, whose processes share the cores: that one is of wall times.

Beside it run, at 10 and at 100 clients, Flower's own engine with the same rounds, and at the
largest number `pfl`: federated averaging of a linear model by as many users of one record as
records are sampled, in an environment that is made in the cache folder at first use.

    python benchmarks/growth.py [CLIENTS …] [--repeats 3] [--sampled 3000] [--data DIR]
    python benchmarks/growth.py 10 1000 --repeats 1 --beside     # a part, nothing beside
    python benchmarks/growth.py --arrays DIR     # writes 100,000 pictures for data=npz, and ends
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from interleaved import table
from simulation_rounds import STOCK_ROUNDS, turn

from fedsink import DPSinkhorn, Federation
from fedsink.data.sources.cache import cache_folder
from fedsink.data.sources.mnist import read
from fedsink.data.spec import DataSpec
from fedsink.privacy import ClassSchedule, NoiseShare, PrivacyPlan, RecordClip
from fedsink.server.loop import _Training

HERE = Path(__file__).resolve().parent
CLIENTS = (1, 10, 100, 1000, 10_000, 100_000, 1_000_000)
SHARES = {"own": NoiseShare(), "shared": NoiseShare("secure_aggregation")}
RECORDS, CLASSES = 60_000, 10
# Else these follow the number of records.
VALUES: dict[str, Any] = {"lam": 4.5, "rows": 20, "history": 3}
PFL = "pfl==0.6.0"
PFL_ROUNDS = 6

Found = dict[str, float]


def rounds_of(clients: int) -> int:
    return 41 if clients <= 1000 else 21 if clients <= 10_000 else 9


def measure(clients: int, share: str, sampled: int, data: str) -> Found:
    """Runs one federation in this process."""
    torch.set_num_threads(1)
    records = max(RECORDS, clients)
    facts = DataSpec("mnist", (1, 28, 28), tuple("0123456789"), RECORDS, root=data)
    read_once = read(facts, "train")
    again = torch.arange(records) % RECORDS
    images, labels = read_once.values[again], read_once.labels[again]
    del read_once, again
    rounds = rounds_of(clients)
    # In a round a client draws from one class, by turns: a tenth of its records.
    rate, schedule = sampled * CLASSES / records, ClassSchedule(CLASSES)
    plan = PrivacyPlan(rate, 1.0, rounds, RecordClip(1.0), schedule, 1e-7)
    method = DPSinkhorn("dct_mlp", plan, share=SHARES[share], **VALUES)
    begins: list[float] = []
    processor, wall = [], []
    step = _Training.step

    def timed(training: _Training) -> dict[str, Any]:
        begins.append(time.process_time())
        began = time.perf_counter()
        line = step(training)
        wall.append(time.perf_counter() - began)
        processor.append(time.process_time() - begins[-1])
        return line

    Path("/proc/self/clear_refs").write_text("5")  # the peak begins at what is held now
    held, start = kilobytes("VmRSS"), time.process_time()
    with tempfile.TemporaryDirectory() as folder, patch.object(_Training, "step", timed):
        federation = Federation(
            images, labels, clients=clients, classes=CLASSES, nominal_records=records
        )
        quiet = {"pictures": 0, "html": False}
        federation.fit(method, Path(folder) / "run", seed=0, report=quiet)
        stated = (Path(folder) / "run" / "privacy.json").stat().st_size
    return {
        "round": statistics.median(processor[1:]),
        "wall": statistics.median(wall[1:]),
        "start": begins[0] - start,
        "peak": 1024 * (kilobytes("VmHWM") - held),
        "privacy": stated,
    }


def write_arrays(folder: Path, data: str) -> None:
    """Writes MNIST as data=npz reads it, with 40,000 more: its first ones, a pixel to the right."""
    facts = DataSpec("mnist", (1, 28, 28), tuple("0123456789"), RECORDS, root=data)
    folder.mkdir(parents=True)
    for split, more in (("train", 40_000), ("test", 0)):
        held = read(facts, split)
        x, y = held.values.numpy(), held.labels.numpy()
        moved = np.roll(x[:more], 1, axis=-1)
        np.savez(folder / f"{split}.npz", x=np.concatenate([x, moved]), y=np.append(y, y[:more]))


def kilobytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def flower(clients: int, sampled: int, data: str) -> Found:
    """Flower's engine, the same rounds; wall time."""
    rate = sampled * CLASSES / RECORDS
    plan = ["sigma=1", "delta=1e-7", f"rate={rate}", "rounds=100", "strategy.bound=1"]
    values = [f"strategy.{name}={value}" for name, value in VALUES.items()]
    overrides = ["data=mnist", f"data.root={data}", *plan, *values]
    return {
        "wall": statistics.median(turn("flower", clients, STOCK_ROUNDS[clients], None, overrides))
    }


def pfl(users: int, cohort: int) -> Found:
    """A central iteration of pfl's federated averaging; processor time."""
    folder = cache_folder() / "benchmarks" / PFL.replace("==", "-")
    python, done = folder / "bin" / "python", folder / "installed"
    if not done.is_file():
        venv.create(folder, clear=True, with_pip=True)
        # Both simulations run on one torch: this environment's follows that one's own packages.
        packages = next(folder.glob("lib/python3*/site-packages"))
        (packages / "shared.pth").write_text(str(Path(torch.__file__).parents[1]) + "\n")
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", PFL]
        subprocess.run(pip, check=True)
        done.touch()
    code = f"import pfl_rounds; pfl_rounds.main({users}, {cohort}, {PFL_ROUNDS})"
    iterations = said([str(python), "-c", code])
    return {"round": statistics.median(iterations[1:])}


def said(words: Sequence[str]) -> Any:
    """Returns what the last line of a process says."""
    ended = subprocess.run(words, cwd=HERE, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{ended.stderr[-4000:]}")
    return json.loads(ended.stdout.splitlines()[-1])


@dataclass(frozen=True)
class Goal:
    """What a figure may be at most, or has to be at least."""

    name: str
    figure: float
    bound: float
    least: bool = False

    def row(self) -> list[str]:
        met = self.figure >= self.bound if self.least else self.figure <= self.bound
        sign = "≥" if self.least else "≤"
        return [self.name, f"{self.figure:.3g}", f"{sign} {self.bound:g}", "yes" if met else "no"]


class Turns:
    """What was found in each turn, by what ran."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, int], list[Found]] = {}

    def add(self, name: str, clients: int, found: Found) -> None:
        self.found.setdefault((name, clients), []).append(found)
        print(f"{name} {clients}: {json.dumps(found)}", file=sys.stderr, flush=True)

    def median(self, name: str, clients: int, key: str) -> float:
        return statistics.median(found[key] for found in self.found[name, clients])

    def ratio(self, key: str, over: tuple[str, int], under: tuple[str, int]) -> float:
        """Median over the turns of a figure divided by another; not a number without both."""
        if not {over, under} <= self.found.keys():
            return float("nan")
        both = zip(self.found[over], self.found[under], strict=True)
        return statistics.median(a[key] / b[key] for a, b in both)


def goals(turns: Turns, sizes: Sequence[int]) -> list[Goal]:
    found = []
    for share in SHARES:
        for clients, bound in ((1000, 1.2), (10_000, 1.5), (100_000, 3.0), (1_000_000, 10.0)):
            ratio = turns.ratio("round", (share, clients), (share, 10))
            found.append(Goal(f"{share}: a round of {clients} over one of 10", ratio, bound))
        curator = turns.ratio("round", (share, 10), (share, 1))
        found.append(Goal(f"{share}: a round of 10 over a curator's", curator, 1.5))
        most = 1_000_000
        if most in sizes:
            peak = turns.median(share, most, "peak")
            more = peak - turns.median(share, 10, "peak")
            found += [
                Goal(f"{share}: start of {most}, s", turns.median(share, most, "start"), 30.0),
                Goal(f"{share}: bytes a client of {most}", peak / most, 200.0),
                Goal(f"{share}: the same without what 10 take", more / most, 200.0),
            ]
        largest = max(turns.median(share, clients, "privacy") for clients in sizes)
        found.append(Goal(f"{share}: largest privacy.json, kB", largest / 1e3, 20.0))
        speed = turns.ratio("round", ("pfl", most), (share, most))
        found.append(Goal(f"{share}: rounds/s of {most} over pfl's", speed, 8.0, least=True))
    return [goal for goal in found if goal.figure == goal.figure]


def report(turns: Turns, sizes: Sequence[int]) -> None:
    header = [
        "noise", "clients", "rounds/s", "ms a round", "to 10", "start, s", "to 10",
        "peak over the data, MB", "to 10", "bytes a client", "privacy.json, kB",
    ]  # fmt: skip
    rows = []
    for share in SHARES:
        for clients in sizes:
            here, ten = (share, clients), (share, 10)
            seconds, peak = turns.median(*here, "round"), turns.median(*here, "peak")
            figures = [
                (1 / seconds, ".3g"), (1e3 * seconds, ".1f"),
                (turns.ratio("round", here, ten), ".2f"),
                (turns.median(*here, "start"), ".2f"), (turns.ratio("start", here, ten), ".2f"),
                (peak / 1e6, ".0f"), (turns.ratio("peak", here, ten), ".2f"),
                (peak / clients, ".3g"), (turns.median(*here, "privacy") / 1e3, ".1f"),
            ]  # fmt: skip
            rows.append([share, str(clients), *(format(*figure) for figure in figures)])
    table(header, rows)
    beside = []
    for name, clients in turns.found:
        if name in ("flower", "pfl"):
            key = "wall" if name == "flower" else "round"
            ratios = [turns.ratio(key, (name, clients), (share, clients)) for share in SHARES]
            slow = turns.median(name, clients, key)
            beside.append([name, str(clients), f"{1 / slow:.3g}", *(f"{r:.1f}" for r in ratios)])
    if beside:
        print()
        table(["beside it", "clients", "rounds/s", "own is faster by", "shared by"], beside)
    print()
    table(["goal", "measured", "bound", "met"], [goal.row() for goal in goals(turns, sizes)])


def main() -> None:
    if sys.argv[1:2] == ["one"]:
        clients, share, sampled, data = sys.argv[2:]
        print(json.dumps(measure(int(clients), share, int(sampled), data)))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clients", type=int, nargs="*", help="default: all, 1 to 1000000")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--sampled", type=int, default=3000, help="records a round, and pfl's users"
    )
    parser.add_argument("--data", type=Path, default=HERE.parents[1] / "shared" / "data")
    parser.add_argument("--beside", nargs="*", choices=["flower", "pfl"], default=["flower", "pfl"])
    parser.add_argument("--arrays", type=Path, help="a new folder")
    options = parser.parse_args()
    if options.arrays:
        return write_arrays(options.arrays, str(options.data.resolve()))
    sizes, data = sorted({*(options.clients or CLIENTS), 10}), str(options.data.resolve())
    turns = Turns()
    for _ in range(options.repeats):
        for clients in sizes:
            for share in SHARES:
                words = [sys.executable, __file__, "one", str(clients), share]
                words += [str(options.sampled), data]
                turns.add(share, clients, said(words))
            if clients in (10, 100) and "flower" in options.beside:
                turns.add("flower", clients, flower(clients, options.sampled, data))
        if sizes[-1] >= options.sampled and "pfl" in options.beside:
            turns.add("pfl", sizes[-1], pfl(sizes[-1], options.sampled))
    report(turns, sizes)


if __name__ == "__main__":
    main()
