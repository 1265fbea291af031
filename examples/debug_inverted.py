"""Two generators show why a classifier fails at some clients (docs/debugging.md).

    python examples/debug_inverted.py FOLDER [seed=0] [KEY=VALUE …]

Half of the clients invert their pictures. A classifier that was trained on a developer's own clean
pictures, here the test split, is tried at every client. One generator learns from the clients at
which it is right, another from those at which it is wrong, and what they draw shows the defect.
Every client takes part in both runs, and holds its records in at most one of them.

Source: Chen, Orekondy, Fritz 2020, supplement, after Augenstein et al. 2020.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.utils import save_image

import fedsink
from fedsink.data.labelled import Reading
from fedsink.data.partition import partition
from fedsink.data.sources import SOURCES, digits, load
from fedsink.data.spec import DataSpec
from fedsink.results.evaluation.networks import train_cnn

CLEAN, SUSPECT = 0.939, 0.882
"""A client is clean from the first accuracy on, and a suspect up to the second, as published."""

CLASSES = tuple("0123456789")


def inverted(devices: int) -> set[int]:
    """Returns the half of the devices that store ink as white."""
    return set(np.random.Generator(np.random.PCG64(0)).permutation(devices)[: devices // 2])


def source(devices: int) -> str:
    """Makes a data source of digits that so many devices have drawn; returns its name."""

    def read(spec: DataSpec, split: str) -> Reading:
        found = digits.read(spec, split)
        if split == "test":
            return found
        device = torch.empty(len(found.labels), dtype=torch.int64)
        for number, held in enumerate(partition(found.labels, devices, {"name": "iid"}, 0)):
            device[held] = number
        defect = torch.isin(device, torch.tensor(sorted(inverted(devices))))
        values = torch.where(defect[:, None, None, None], 1 - found.values, found.values)
        return Reading(values, found.labels, device)

    SOURCES[f"digits_of_{devices}"] = read
    return f"digits_of_{devices}"


def clients(name: str, devices: int) -> tuple[dict[int, float], set[int]]:
    """Returns the classifier's accuracy at each client, and the clients of inverted pictures."""
    spec = DataSpec(name, (1, 8, 8), CLASSES, 1437)
    own, private = load(spec, "test"), load(spec, "train")
    classify = train_cnn(*own.take(torch.arange(len(own))), classes=len(CLASSES), seed=0)
    shards = partition(private.labels, devices, {"name": "by_user"}, 0, users=private.users)
    right = {}
    for client, held in enumerate(shards):
        pictures, labels = private.take(held)
        right[client] = float((classify(pictures) == labels).double().mean())
    defect = {
        k for k, held in enumerate(shards) if int(private.users[held[0]]) in inverted(devices)
    }
    return right, defect


def border(images: Tensor) -> Tensor:
    """Returns β, the mean of each picture's first and last column: near 1 if it is inverted."""
    return images[..., [0, -1]].mean(dim=(1, 2, 3))


def auc(high: Tensor, low: Tensor) -> float:
    """Returns P(h > l) + P(h = l)/2 for values of two samples: the area under a ROC curve."""
    above, equal = high[:, None] > low, high[:, None] == low
    return float((above.double() + 0.5 * equal.double()).mean())


def main(folder: Path, devices: int = 400, pictures: int = 1000, **keys: Any) -> dict[str, Any]:
    """Selects both populations, trains a generator on each, and reports what they draw."""
    name = source(devices)
    right, defect = clients(name, devices)
    populations = {
        "clean": [client for client, accuracy in right.items() if accuracy >= CLEAN],
        "suspects": [client for client, accuracy in right.items() if accuracy <= SUSPECT],
    }
    report: dict[str, Any] = {}
    drawn = []
    for offset, (population, members) in enumerate(populations.items()):
        place = folder / population
        # Reproducible noise of one run must not be that of the other.
        seed = None if keys.get("seed") is None else keys["seed"] + offset
        own = {"data.name": name, "partition.keep": members, "strategy.critic.batch": 4}
        values = {"experiment": "gs_wgan_digits_clients", "partition": "by_user", **own}
        values |= {"engine": "local", "clients": devices, **keys, "seed": seed}
        again = place.exists()
        run = fedsink.resume(place) if again else fedsink.simulate(values, folder=place)
        images, labels = run.sample(pictures)
        drawn.append(images[labels.argsort()[:: max(1, pictures // 50)]][:50])
        report[population] = {
            "clients": len(members),
            "accuracy": fmean(right[client] for client in members),
            "inverted clients": len(defect & set(members)) / len(members),
            "inverted pictures": float((border(images) > 0.5).double().mean()),
            "β": border(images),
            "ε": run.privacy["epsilon"],
            "unit": run.privacy["unit"],
        }
    report["auc"] = auc(report["suspects"]["β"], report["clean"]["β"])
    save_image(interpolate(torch.cat(drawn), scale_factor=4), folder / "debug.png", nrow=10)
    return report


if __name__ == "__main__":
    where, *words = sys.argv[1:]
    found = main(Path(where), **{k: yaml.safe_load(v) for k, v in (w.split("=", 1) for w in words)})
    for population in ("clean", "suspects"):
        row = found[population] | {"β": float(found[population]["β"].mean())}
        texts = (f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
        print(f"{population}: {', '.join(texts)}")
    print(f"AUC of β: {found['auc']:.4f} (0.5: the defect is invisible; 1: certain)")
