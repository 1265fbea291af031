"""The papers' figures: `python benchmarks/figures.py epsilon|bias|robustness|losses --folder DIR`.

epsilon     accuracy against ε, an experiment and those --beside it at each of --eps and --seeds
bias        bias and deviation of the gradient of Ŝ against the debiasing fraction p, at one batch
robustness  accuracy by learning rate and optimiser, at each of --lr and --optimizers
losses      accuracy by debiasing fraction p and weight m of the L1 cost, at each of --p and --m

Each writes a picture and the numbers under it as JSON lines into --folder. Runs are those of
`results.py`: recorded once, and not repeated.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from gradient_bias import GradientOf, bias_and_deviation, reference_gradient
from matplotlib import pyplot
from result_protocol import ROOT, frozen_commit
from result_rows import CLASSIFIERS, FIGURES
from result_runs import INTERRUPTED, Runs

from fedsink.errors import ConfigError, FedsinkError
from fedsink.files import write_atomic
from fedsink.reporting.output_files import append_jsonl


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and draws one figure. Returns 1 if a run failed, 2 for a wrong request, 130."""
    options = _parser().parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    try:
        FIGURE[options.figure](options)
    except FedsinkError as error:
        print(f"figures: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("figure", choices=list(FIGURE))
    parser.add_argument("--folder", type=Path, default=Path("runs/figures"))
    parser.add_argument("--experiment", default="dp_sinkhorn_mnist_m1")
    parser.add_argument("--beside", nargs="*", default=[], help="epsilon: further experiments")
    parser.add_argument("--also", nargs="*", default=[], help="KEY=VALUE, such as scale=smoke")
    parser.add_argument("--data", type=Path, help="data.root")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--n", type=int, default=20000, help="images for the classifiers")
    parser.add_argument("--eps", nargs="*", type=float, default=[0.5, 1.0, 3.0, 10.0])
    parser.add_argument("--lr", nargs="*", type=float, default=[1e-4, 3e-4, 1e-3, 3e-3, 1e-2])
    parser.add_argument("--optimizers", nargs="*", default=["adam", "rmsprop", "sgd"])
    parser.add_argument("--p", nargs="*", type=float, default=[0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    parser.add_argument("--m", nargs="*", type=float, default=[0.0, 0.3, 1.0, 3.0])
    parser.add_argument("--batch", type=int, default=50, help="bias: n, rows and records")
    parser.add_argument("--repeats", type=int, default=200, help="bias: draws for each p")
    parser.add_argument("--reference", type=int, default=1000, help="bias: N of the reference")
    parser.add_argument("--run", help="bias: a finished run; without it a fresh generator")
    return parser


def _epsilon(options: argparse.Namespace) -> None:
    grid = {eps: [f"eps={eps:g}", "sigma=null"] for eps in options.eps}
    figure, panels = pyplot.subplots(1, len(CLASSIFIERS), figsize=(10, 3.5), sharey=True)
    for experiment in (options.experiment, *options.beside):
        points = _grid(options, grid, lambda key: {"eps": key}, experiment)
        for axes, key in zip(panels, CLASSIFIERS, strict=True):
            _line(axes, options.eps, [points[eps] for eps in options.eps], key, experiment)
    for axes, key in zip(panels, CLASSIFIERS, strict=True):
        axes.set(xscale="log", xlabel="ε", title=FIGURES[key].name)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy on real images, %")
    panels[0].legend()
    _save(figure, options.folder / "epsilon.png")


def _robustness(options: argparse.Namespace) -> None:
    grid = {
        (name, lr): [f"strategy.optimizer.name={name}", f"strategy.optimizer.lr={lr:g}"]
        for name in options.optimizers
        for lr in options.lr
    }
    points = _grid(options, grid, lambda key: {"optimizer": key[0], "lr": key[1]})
    figure, axes = pyplot.subplots(figsize=(5, 3.5))
    for name in options.optimizers:
        _line(axes, options.lr, [points[name, lr] for lr in options.lr], "cnn", name)
    axes.set(xscale="log", xlabel="learning rate", ylabel="CNN on real images, %")
    _save(figure, options.folder / "robustness.png", axes)


def _losses(options: argparse.Namespace) -> None:
    grid = {
        (p, m): [f"strategy.p={p:g}", f"strategy.m={m:g}"] for p in options.p for m in options.m
    }
    points = _grid(options, grid, lambda key: {"p": key[0], "m": key[1]})
    figure, panels = pyplot.subplots(1, len(CLASSIFIERS), figsize=(9, 4), sharey=True)
    for axes, key in zip(panels, CLASSIFIERS, strict=True):
        means = [[_mean(points[p, m], key) for m in options.m] for p in options.p]
        axes.imshow(means, cmap="cividis", aspect="auto")
        for row, values in enumerate(means):
            for column, value in enumerate(values):
                dark = value < (min(map(min, means)) + max(map(max, means))) / 2
                colour = "white" if dark else "black"
                axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=colour)
        axes.set(title=f"{FIGURES[key].name}, %", xlabel="m")
        axes.set_xticks(range(len(options.m)), [f"{m:g}" for m in options.m])
    panels[0].set_yticks(range(len(options.p)), [f"{p:g}" for p in options.p])
    panels[0].set_ylabel("p")
    _save(figure, options.folder / "losses.png")


def _bias(options: argparse.Namespace) -> None:
    if options.repeats < 2 or options.batch < 1 or options.reference < options.batch:
        raise ConfigError("--repeats is at least 2, and --reference at least --batch, itself ≥ 1.")
    root = [] if options.data is None else [f"data.root={options.data.resolve()}"]
    overrides = [f"experiment={options.experiment}", *root, *options.also]
    gradient = GradientOf(overrides, options.run)
    large = reference_gradient(gradient, options.reference, max(2, options.repeats // 10))
    points = []
    for p in options.p:
        sizes = {"n": options.batch, "repeats": options.repeats}
        point = bias_and_deviation(gradient, p, reference=large, **sizes)
        points.append(point)
        append_jsonl(options.folder / "bias.jsonl", {**point, "experiment": options.experiment})
        print(" ".join(f"{k} {v:.4g}" for k, v in point.items()), flush=True)
    figure, axes = pyplot.subplots(figsize=(5, 3.5))
    for key in ("bias", "deviation", "error"):
        axes.plot(options.p, [point[key] for point in points], marker="o", label=key)
    axes.set(xlabel="p", ylabel="relative to the reference gradient", yscale="log")
    _save(figure, options.folder / "bias.png", axes)


def _grid(
    options: argparse.Namespace,
    grid: dict[Any, list[str]],
    labels: Any,
    experiment: str | None = None,
) -> dict[Any, Any]:
    """The records of every point of a grid, one for each seed."""
    runs = Runs(options.folder.resolve(), options.data, options.n, frozen_commit(ROOT))
    points: dict[Any, Any] = {}
    experiment = experiment or options.experiment
    for key, overrides in grid.items():
        for seed in options.seeds:
            arguments = [f"experiment={experiment}", *options.also, *overrides]
            record = runs.record([*arguments, f"seed={seed}"], seed=seed, **labels(key))
            points.setdefault(key, []).append(record)
            print(f"{' '.join(overrides)} seed={seed}: {record['accuracy']}", flush=True)
    return points


def _line(axes: Any, x: Sequence[float], points: Sequence[Any], key: str, name: str) -> None:
    """Means over the seeds, with their standard deviation where there are several."""
    values = [[100.0 * record["accuracy"][key] for record in records] for records in points]
    spread = [statistics.stdev(v) if len(v) > 1 else 0.0 for v in values]
    axes.errorbar(
        x, [statistics.mean(v) for v in values], spread, marker="o", capsize=3, label=name
    )


def _mean(records: Sequence[Any], key: str) -> float:
    return 100.0 * statistics.mean(record["accuracy"][key] for record in records)


def _save(figure: Any, path: Path, axes: Any = None) -> None:
    """Writes the picture; `axes` of lines get a grid and a legend."""
    if axes is not None:
        axes.grid(alpha=0.3)
        axes.legend()
    figure.tight_layout()
    content = BytesIO()
    figure.savefig(content, format="png", dpi=150)
    write_atomic(path, content.getvalue())
    print(path)


FIGURE = {"epsilon": _epsilon, "bias": _bias, "robustness": _robustness, "losses": _losses}


if __name__ == "__main__":
    sys.exit(main())
