"""Private records of one client: dealt out or read, and in the coordinates of a request."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedsink.clients.node_settings import NodeSettings
from fedsink.data.labelled import LabelledData
from fedsink.data.partition import Deal, partition
from fedsink.data.sources import load
from fedsink.data.views import POINT_LIMIT, view_from_dict
from fedsink.errors import ConfigError, DataError

# A run names one view; a server that names many must not fill the client's memory.
_MOST_VIEWS = 2


class Shard:
    """Images and labels of one client. Nothing of it leaves except through `privacy`.

    Args:
        images: (N, C, H, W) in [0, 1], or points (N, d).
        labels: (N,) int64, already validated against the public label map.
        users: (N,) int64, the number of each record's user; None where users are unknown.
        slots: (N,) int64, the number of each record's name; None: a record's slot is its line.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        users: Tensor | None = None,
        slots: Tensor | None = None,
    ) -> None:
        self.images = images
        self.labels = labels
        self.users = users
        self.slots = slots
        self._views: OrderedDict[str, tuple[Tensor, float]] = OrderedDict()

    @classmethod
    def checked(
        cls,
        images: Tensor,
        labels: Tensor,
        classes: int,
        device: torch.device | str = "cpu",
        users: Tensor | None = None,
        slots: Tensor | None = None,
    ) -> Shard:
        """Returns a shard of records that are valid for every later step.

        Every error of a record is raised here and not when the record is sampled: that would
        reveal the sample. The errors name no value, label or position.
        """
        low, high = (-POINT_LIMIT, POINT_LIMIT) if images.ndim == 2 else (0.0, 1.0)
        if not bool(images.isfinite().all()):
            raise DataError("A private record is not finite: remove or fix it.")
        if not bool(((images >= low) & (images <= high)).all()):
            raise DataError(
                f"A private record leaves the public range [{low:g}, {high:g}]: rescale the data."
            )
        if not bool(((labels >= 0) & (labels < classes)).all()):
            raise DataError(
                f"A private label lies outside the {classes} public classes: extend data.classes "
                "or fix the labels."
            )
        return cls(images.to(device), labels.to(device), users, slots)

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, indices: Tensor) -> Shard:
        """Returns the chosen records, by their indices."""
        images, labels = (
            values[indices.to(values.device)] for values in (self.images, self.labels)
        )
        users, slots = (
            None if numbers is None else numbers[indices.to(numbers.device)]
            for numbers in (self.users, self.slots)
        )
        return Shard(images, labels, users, slots)

    def fingerprint(self, owner: str = "") -> bytes:
        """Returns the SHA-256 over images, labels, users and slots, with shapes and types.

        `owner` tells apart simulated clients that happen to hold equal records.
        """
        state = hashlib.sha256(f"{owner}|".encode())
        for name in ("images", "labels", "users", "slots"):
            values = getattr(self, name)
            if values is None:
                continue
            state.update(f"{name}{values.dtype}{tuple(values.shape)}|".encode())
            state.update(values.detach().cpu().contiguous().numpy().data)
        return state.digest()

    def whole_users(self) -> Tensor:
        """Returns the number of each record's user, (N,) int64, for answers that protect users."""
        if self.users is None:
            raise DataError(
                "The plan protects users, and this node's records do not tell them apart: name a "
                "source that does."
            )
        return self.users

    def coordinates(self, view: dict[str, Any]) -> Tensor:
        """Returns every record in a public linear view, (N, D); the last two are kept.

        Raises:
            ValueError: the view is invalid, or is for records of another shape: so it never has
                more coordinates than a record has values.
        """
        return self._viewed(view)[0]

    def norm_bound(self, view: dict[str, Any]) -> float:
        """Returns the view's bound on the norm of a record's coordinates; raises like those."""
        return self._viewed(view)[1]

    def _viewed(self, options: dict[str, Any]) -> tuple[Tensor, float]:
        key = json.dumps(options, sort_keys=True)
        if key in self._views:
            self._views.move_to_end(key)
            return self._views[key]
        # Before the view is built, which takes time and memory in proportion to its shape.
        shape = tuple(self.images.shape[1:])
        if options.get("shape") not in (shape, list(shape)):
            raise ValueError("The request's view is for records of another shape than the data's.")
        view = view_from_dict(options)
        with torch.no_grad():
            self._views[key] = view.each(self.images), view.norm_bound
        if len(self._views) > _MOST_VIEWS:
            self._views.popitem(last=False)
        return self._views[key]


def records_of(settings: NodeSettings, client: int) -> LabelledData:
    """Reads a client's records as float32."""
    records = load(settings.data)
    held = torch.arange(len(records)) if settings.partition is None else deal(settings)[client]
    images, labels = records.take(held)
    users, slots = (
        None if numbers is None else numbers[held] for numbers in (records.users, records.slots)
    )
    return LabelledData(images, labels, users, slots)


@lru_cache(maxsize=4)
def deal(settings: NodeSettings) -> Deal:
    """Deals a simulation's records out."""
    if settings.partition is None:
        raise ConfigError("A simulation deals its records out to clients: name a partition.")
    records = load(settings.data)
    shards = partition(
        records.labels,
        settings.clients,
        settings.partition,
        settings.partition_seed,
        users=records.users,
    )
    return shards if settings.keep is None else shards.only(settings.keep)
