"""Opening a finished run: its generator and what was drawn from it for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsink.data.maps import Map, map_from_dict
from fedsink.data.spec import DataSpec
from fedsink.errors import CheckpointError, ConfigError
from fedsink.models import Generator, Observation, load, sample
from fedsink.privacy import Stream
from fedsink.server.compose import stored_config
from fedsink.server.folder import RunFolder


@dataclass(frozen=True)
class FinishedRun:
    """A run whose generator can be sampled.

    Attributes:
        folder: where it lies.
        config: its resolved configuration.
        generator: the trained generator.
        data: public description of the data it was trained for.
        prior: class probabilities for sampling, (C,).
        map: the map whose released band is shown (ldp), or None.
        observation: how every image is drawn, beyond the law of training.
    """

    folder: RunFolder
    config: dict[str, Any]
    generator: Generator
    data: DataSpec
    prior: Tensor
    map: Map | None
    observation: Observation

    def draw(self, n: int, seed: int) -> tuple[Tensor, Tensor]:
        """Draw n labelled images (n, C, H, W) in [0, 1], as a user would see them, and labels.

        Args:
            n: number of images.
            seed: the same images and labels for the same seed and n.
        """
        stream = Stream(f"sample|{seed}".encode(), "sample")
        uniform = stream.uniform(n).to(self.prior)
        labels = torch.searchsorted(self.prior.cumsum(0), uniform).clamp(max=len(self.prior) - 1)
        wide = self.observation.latent_range
        images = sample(self.generator, n, labels, stream, mix=self.prior, latent_range=wide)
        if self.map is not None:
            with torch.no_grad():
                images = torch.cat([self.map.render(self.map(part)) for part in images.split(5000)])
        return self.observation(images, stream.child("observation")), labels


def open_run(text: str, *, observed: bool = True) -> FinishedRun:
    """Open the folder of a finished run.

    Args:
        text: the folder.
        observed: with the run's observation model; else pictures are the generator's own.

    Raises:
        CheckpointError: it holds no run, or several, or one that has not finished, or a damaged
            one.
    """
    folder = RunFolder.existing(Path(text).expanduser().resolve())
    config = stored_config(folder)
    if config.get("study") is not None:
        names = " and ".join(config.get("plan", {}).get("runs", {}))
        raise CheckpointError(
            f"{folder.path} holds a study of the runs {names}: name the folder of one of them."
        )
    if not folder.finished:
        raise CheckpointError(
            f"The run in {folder.path} has not finished: fedsink simulate resume={folder.path}"
        )
    try:
        data = DataSpec.from_config(config["data"])
        prior = torch.tensor(json.loads(folder.metrics.read_text())["label_prior"])
        privacy = json.loads(folder.privacy.read_text())
        observation = Observation.from_dict(config.get("observation", {}) if observed else {})
    except (OSError, KeyError, TypeError, ValueError, ConfigError) as error:
        raise CheckpointError(f"The run in {folder.path} is damaged: {error}.") from error
    used = privacy.get("map")
    shown = map_from_dict(used) if used else None
    return FinishedRun(folder, config, load(folder.path), data, prior, shown, observation)
