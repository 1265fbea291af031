"""A labelled picture of what the generator makes now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from fedsink.models import sample
from fedsink.reporting.drawing import save_grid, save_points
from fedsink.server.folder import RunFolder
from fedsink.strategies.round_strategy import RoundStrategy

_COLUMNS = 10
_POINTS = 1000


def snapshot(strategy: RoundStrategy, folder: RunFolder, classes: Sequence[str]) -> Path:
    """Write samples/round-NNNNNN.png: ten samples per class, the same latents every time.

    Of points it shows the first two coordinates; those on a line lie at height 0.

    Args:
        strategy: whose generator is shown.
        folder: of the run.
        classes: names of the generator's classes, in their order.

    Returns:
        The file.
    """
    generator = strategy.generator
    path = folder.samples / f"round-{strategy.round:06d}.png"
    stream = strategy.latent_stream("picture", 0)
    if len(generator.shape) == 1:
        labels = torch.zeros(_POINTS, dtype=torch.int64)
        points = sample(generator, _POINTS, labels, stream)
        save_points(torch.nn.functional.pad(points, (0, 1))[:, :2], None, path)
        return path
    labels = torch.arange(generator.classes).repeat_interleave(_COLUMNS)
    images = strategy.render(
        sample(generator, len(labels), labels, stream, mix=strategy.label_prior())
    )
    save_grid(images, labels, classes, path, columns=_COLUMNS)
    return path
