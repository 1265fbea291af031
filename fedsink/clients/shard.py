"""The private records of one client, in the coordinates that a request names."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from fedsink.data.views import view_from_dict


class Shard:
    """Images and labels of one client. Nothing of it leaves except through `privacy`.

    Args:
        images: (N, C, H, W) in [0, 1], or points (N, 2).
        labels: (N,) int64, already validated against the public label map.
    """

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = images
        self.labels = labels
        self._coordinates: dict[str, Tensor] = {}
        self._members: dict[int | None, Tensor] = {None: torch.arange(len(labels))}

    def __len__(self) -> int:
        return len(self.labels)

    def members(self, label: int | None) -> Tensor:
        """Indices of the records of one class (all of them for None)."""
        if label is not None and label not in self._members:
            self._members[label] = torch.nonzero(self.labels == label).flatten()
        return self._members[label]

    def coordinates(self, view: dict[str, Any]) -> Tensor:
        """Every record in a public linear view, (N, D), computed once."""
        key = json.dumps(view, sort_keys=True)
        if key not in self._coordinates:
            with torch.no_grad():
                self._coordinates[key] = view_from_dict(view)(self.images)
        return self._coordinates[key]
