"""The debugging task of Chen et al. 2020: two generators show why a classifier fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.shard import records_of
from fedsink.data.sources import load
from fedsink.errors import ConfigError
from fedsink.evaluation.networks import limit_threads, train_cnn
from fedsink.reporting.displays import format_table
from fedsink.reporting.drawing import save_side_by_side
from fedsink.reporting.output_files import write_atomic, write_json
from fedsink.server.finished import FinishedRun
from fedsink.simulation.studies.study import Study, StudyPlan
from fedsink.values import Config, checks, read_json

CLEAN, SUSPECTS = "clean", "suspects"

_STATISTIC = (
    "β is the mean of a picture's first and last column; above 1/2 the picture counts as inverted."
)
_CHARGED = (
    "The ε holds for both runs together and for the selection. Every client takes part in both, "
    "decides by itself in which it holds its records, and holds nothing in the other: to take all "
    "records of a client away changes only one of the two runs."
)
_NOT_CHARGED = (
    "No ε covers the selection: each holds for its population as it is. A change of one {unit} may "
    "move its client from one population to the other, and so change both runs; adjacency=client "
    "has an ε for that."
)


@dataclass(frozen=True)
class Debugging(Study):
    """Trains one generator on clients that a classifier serves well and one on those it fails.

    Some clients of the simulation invert their pictures (`data.corrupt`). A developer cannot look
    at private records, and has a classifier that was trained on its own clean pictures, here the
    test split. Each client is scored by the classifier's accuracy on its records; a generator is
    trained on the clients of high accuracy and another on those of low accuracy. Comparing the
    pictures of both shows the defect.

    Guarantees:
        A client holds its records in at most one of the two runs, and nothing in the other.
        A client's records do not depend on the other selected clients.

    Source: Chen, Orekondy, Fritz 2020, supplement, after Augenstein et al. 2020.

    Attributes:
        clean: a client is clean from this accuracy on, in [0, 1].
        suspect: a client is a suspect up to this accuracy, below `clean`.
        pictures: drawn from each generator for the report.
        seed: public seed of the classifier and of these pictures.

    Raises:
        ConfigError: a value out of range.
    """

    name: ClassVar[str] = "debugging"

    clean: float
    suspect: float
    pictures: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        for key in ("clean", "suspect"):
            checks.within(f"study.{key}", getattr(self, key), "[0, 1]")
        checks.count("study.pictures", self.pictures)
        checks.count("study.seed", self.seed, minimum=0)
        if self.suspect >= self.clean:
            raise ConfigError(
                f"study.suspect={self.suspect} must be below study.clean={self.clean}: no client "
                "is clean and a suspect."
            )

    def plan(self, config: Config, node: NodeSettings) -> StudyPlan:
        """Scores the clients and gives each population its own run.

        Raises:
            ConfigError: the records are no pictures, or a population is empty.
            DataError: the test split cannot be read.
        """
        if len(node.data.shape) != 3:
            raise ConfigError(
                f"study.name={self.name} looks at pictures, and the records of {node.data.name} "
                f"have shape {node.data.shape}: choose other data."
            )
        accuracies = self._accuracies(node)
        runs = {}
        for offset, (name, members) in enumerate(self._populations(accuracies).items()):
            runs[name] = {
                **config,
                "study": None,
                "partition": {**config["partition"], "keep": members},
                # Reproducible noise of one run must not be that of the other.
                "seed": None if config["seed"] is None else config["seed"] + offset,
            }
        return StudyPlan(runs, {"accuracies": accuracies})

    def _accuracies(self, node: NodeSettings) -> dict[int, float]:
        """The accuracy of the developer's classifier on the records of each client that has any."""
        developers = load(node.data, "test")
        with limit_threads(node.threads):
            classify = train_cnn(
                *developers.take(torch.arange(len(developers))),
                classes=len(node.data.classes),
                seed=self.seed,
            )
            accuracies = {}
            for client in sorted(node.holders):
                held = records_of(node, client)
                right = classify(held.values) == held.labels
                accuracies[client] = float(right.double().mean())
        return accuracies

    def _populations(self, accuracies: Mapping[int, float]) -> dict[str, list[int]]:
        """The clients of each population by their numbers."""
        rules: dict[str, tuple[str, Callable[[float], bool]]] = {
            CLEAN: (f"at least study.clean={self.clean}", lambda value: value >= self.clean),
            SUSPECTS: (
                f"at most study.suspect={self.suspect}",
                lambda value: value <= self.suspect,
            ),
        }
        members = {}
        for name, (words, belongs) in rules.items():
            members[name] = [client for client, value in accuracies.items() if belongs(value)]
            if not members[name]:
                raise ConfigError(
                    f"No client's accuracy is {words}: those of the {len(accuracies)} clients are "
                    f"{min(accuracies.values()):.3f} to {max(accuracies.values()):.3f}; choose "
                    "another threshold."
                )
        return members

    def conclude(self, folder: Path, notes: Config, runs: Mapping[str, FinishedRun]) -> str:
        """Writes debug.json, debug.txt and debug.png; returns the text."""
        accuracies = notes["accuracies"]
        drawn = {name: run.draw(self.pictures, self.seed) for name, run in runs.items()}
        borders = {name: border(images) for name, (images, _) in drawn.items()}
        members = self._populations(accuracies)
        unit = _guarantee(runs[CLEAN])["unit"]
        charged = unit == "client"
        report = {
            "auc": auc(borders[SUSPECTS], borders[CLEAN]),
            "statistic": _STATISTIC,
            "pictures": self.pictures,
            "populations": {
                name: {
                    "clients": len(members[name]),
                    "accuracy": fmean(accuracies[client] for client in members[name]),
                    "inverted_clients": len(_inverted_clients(run)) / len(members[name]),
                    "inverted_pictures": float((borders[name] > 0.5).double().mean()),
                    "border": float(borders[name].mean()),
                    **_guarantee(run),
                }
                for name, run in runs.items()
            },
            "selection": {
                "clients": len(accuracies),
                "clean": self.clean,
                "suspect": self.suspect,
                "charged": charged,
                "meaning": _CHARGED if charged else _NOT_CHARGED.format(unit=unit),
            },
        }
        text = _text(report)
        write_json(folder / "debug.json", report)
        write_atomic(folder / "debug.txt", f"{text}\n".encode())
        run = runs[CLEAN]
        names = run.data.classes if len(run.prior) > 1 else ("any",)
        save_side_by_side(drawn, names, folder / "debug.png")
        return text


def border(images: Tensor) -> Tensor:
    """β: the mean of each picture's first and last column, (N,), from images (N, C, H, W).

    It is near 0 where ink is bright on a dark background, and near 1 where that is inverted; that
    characters are in the middle of a picture is public.
    """
    return images[..., [0, -1]].mean(dim=(1, 2, 3))


def auc(high: Tensor, low: Tensor) -> float:
    """P(h > l) + P(h = l)/2 for values h of `high` (N,) and l of `low` (M,): a ROC curve's area."""
    ordered = low.sort().values
    below = torch.searchsorted(ordered, high) + torch.searchsorted(ordered, high, right=True)
    return float(below.double().mean()) / (2 * len(low))


def _inverted_clients(run: FinishedRun) -> list[int]:
    """The clients with inverted pictures, which only a simulation knows."""
    inverted: list[int] = read_json(run.folder.partition.read_bytes())["corrupted"]
    return inverted


def _guarantee(run: FinishedRun) -> dict[str, Any]:
    stated = read_json(run.folder.privacy.read_bytes())
    return {key: stated[key] for key in ("epsilon", "delta", "unit", "adjacency", "noise")}


def _text(report: Mapping[str, Any]) -> str:
    rows = [
        {
            "generator": name,
            "clients": row["clients"],
            "accuracy": row["accuracy"],
            "inverted clients": row["inverted_clients"],
            "inverted pictures": row["inverted_pictures"],
            "mean β": row["border"],
            "ε": row["epsilon"],
            "δ": row["delta"],
            "unit": row["unit"],
        }
        for name, row in report["populations"].items()
    ]
    return "\n".join(
        [
            format_table(rows),
            "",
            report["statistic"],
            f"AUC of β between {report['pictures']} pictures of each generator: "
            f"{report['auc']:.4f} (0.5: the defect is invisible; 1: certain).",
            "",
            fill(report["selection"]["meaning"], 96),
        ]
    )
