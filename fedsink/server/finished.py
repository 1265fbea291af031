"""Opens a finished run: its generator, and the description of the data it was trained for."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsink.data.maps import Map, map_from_dict
from fedsink.data.spec import DataSpec, of_arrays
from fedsink.errors import CheckpointError, ConfigError
from fedsink.models import Generator, Observation, load, sample
from fedsink.privacy import Stream
from fedsink.server.folder import RecordedRun, RunFolder, command_for
from fedsink.values import as_float, checks


@dataclass(frozen=True)
class FinishedRun:
    """A run whose generator can be sampled."""

    folder: RunFolder
    config: dict[str, Any]
    generator: Generator
    data: DataSpec
    prior: Tensor  # class probabilities for sampling, (C,)
    map: Map | None  # whose released band is shown (ldp)
    observation: Observation  # how every image is drawn, beyond the law of training

    @property
    def names(self) -> tuple[str, ...]:
        """The classes that the generator tells apart; a single one without labels."""
        return self.data.classes if len(self.prior) > 1 else ("any",)

    def draw(
        self, n: int, seed: int, *, balanced: bool = False, classes: Sequence[str] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draws n labelled images (n, C, H, W) in [0, 1], as a user would see them, and labels.

        Equal arguments give the same ones. `balanced` gives all `classes` (None: all) n/C images,
        the first n mod C of them one more; else labels are drawn as in training.
        """
        n, seed = checks.count("n", n), checks.count("seed", seed, minimum=0)
        needed = 4 * n * math.prod(self.data.shape)
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > there:
            raise ConfigError(
                f"n={n} of the shape {self.data.shape} take {needed // 10**9:,} GB, and this "
                f"machine has {there // 10**9:,}: draw them in parts, each with another seed."
            )
        stream = Stream(f"sample|{seed}".encode(), "sample")
        labels = self._labels(n, stream, balanced, classes)
        wide, prior = self.observation.latent_range, self.prior
        images = sample(self.generator, n, labels, stream, mix=prior, latent_range=wide)
        return self.observation(through(self.map, images), stream.child("observation")), labels

    def _labels(
        self, n: int, stream: Stream, balanced: bool, classes: Sequence[str] | None
    ) -> Tensor:
        labels, prior = torch.arange(len(self.prior)), self.prior
        if len(labels) == 1 and (balanced or classes is not None):
            key = "balanced=true" if balanced else "classes="
            raise ConfigError(
                f"{key} needs a generator that tells classes apart, and that of {self.folder.path} "
                "was trained without labels: leave it out."
            )
        if classes is not None:
            if unknown := [name for name in classes if name not in self.names]:
                raise ConfigError(
                    f"The run has no class {unknown[0]!r}: choose of {', '.join(self.names)}."
                )
            if not classes:
                raise ConfigError("classes= names no class: name one, or leave it out.")
            labels = torch.tensor([self.names.index(name) for name in classes])
            prior = prior[labels]
            if not balanced and not prior.sum() > 0:
                raise ConfigError(
                    f"No record of {' or '.join(classes)} was found in training, so that nothing "
                    "says how often to draw them: say balanced=true."
                )
            prior = prior / prior.sum()
        if balanced:
            return labels[torch.arange(n) % len(labels)][stream.child("order").permutation(n)]
        place = torch.searchsorted(prior.cumsum(0), stream.uniform(n).to(prior))
        return labels[place.clamp(max=len(labels) - 1)]


def shown_map(privacy: Mapping[str, Any]) -> Map | None:
    """Returns the map whose released band of a picture is shown; None in the central mode."""
    # Outside the band that clients release, the generator has no gradient; a public start may have
    # learnt a wider one, which stays: the wider of the two is shown.
    if privacy.get("model") != "ldp":
        return None  # also after a local start, whose map the run's own method does not know
    start = privacy.get("start")
    promises = (privacy, start if isinstance(start, Mapping) else {})
    maps = [map_from_dict(entry["map"]) for entry in promises if entry.get("map")]
    return max(maps, key=lambda used: used.dimension, default=None)


@torch.no_grad()
def through(map: Map | None, images: Tensor) -> Tensor:
    """Returns pictures with only what the map keeps of them; without a map as they are."""
    if map is None:
        return images
    return torch.cat([map.render(map(part)) for part in images.split(5000)])


def open_run(text: str, *, observed: bool = True) -> FinishedRun:
    """Opens the folder of a finished run; `observed` False draws without its observation model."""
    recorded, privacy, result = finished_record(text)
    folder, config = recorded.folder, recorded.config
    try:
        data = DataSpec.from_config(config["data"])
        prior = torch.tensor(result["label_prior"])
        observation = Observation.from_dict(config.get("observation", {}) if observed else {})
        observation.check(data.shape)
        shown = shown_map(privacy)
    except (KeyError, TypeError, ValueError) as error:
        reason = str(error).rstrip(".")
        raise CheckpointError(f"The run in {folder.path} is damaged: {reason}.") from error
    generator = load(folder.path)
    for what, shape in (
        ("generator", generator.shape),
        ("map", data.shape if shown is None else shown.record_shape),
    ):
        if shape != data.shape:
            raise CheckpointError(
                f"The run in {folder.path} is damaged: its {what} is for the shape {list(shape)}, "
                f"and its data have {list(data.shape)}."
            )
    if generator.classes != len(prior):
        raise CheckpointError(
            f"The run in {folder.path} is damaged: its generator has {generator.classes} classes, "
            f"and its label_prior {len(prior)}."
        )
    return FinishedRun(folder, config, generator, data, prior, shown, observation)


def finished_record(text: str) -> tuple[RecordedRun, dict[str, Any], dict[str, Any]]:
    """Returns the record of a finished run, with its privacy.json and its metrics.json."""
    recorded = RecordedRun.of(text)
    path = recorded.folder.path
    privacy, result = recorded.privacy, recorded.result
    if result is None:
        again = command_for("simulate", "resume", path)
        if of_arrays(recorded.config.get("data")):
            again = f"continue with the same fedsink.Federation(…).fit(…, folder={str(path)!r})."
        raise CheckpointError(f"The run in {path} has not finished: {again}")
    if privacy is None:
        raise CheckpointError(
            f"The run in {path} is damaged: {recorded.folder.privacy.name} is missing."
        )
    prior = result.get("label_prior")
    fractions = [as_float(fraction) for fraction in prior] if isinstance(prior, list) else []
    within = all(0.0 <= fraction <= 1.0 for fraction in fractions)
    if not (fractions and within and sum(fractions) > 0.0):
        raise CheckpointError(
            f"The run in {path} is damaged: label_prior in {recorded.folder.metrics.name} is no "
            "list of probabilities."
        )
    return recorded, privacy, result
