"""Clips by name: each bounds the change of a release by one unit, and states that bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsink.privacy.clips.base import Clip
from fedsink.privacy.clips.critics import ClipOfCritics, CriticClip, RowClip
from fedsink.privacy.clips.records import BatchClip, ClipOfRecords, RecordClip

__all__ = [
    "CLIPS",
    "BatchClip",
    "Clip",
    "ClipOfCritics",
    "ClipOfRecords",
    "CriticClip",
    "RecordClip",
    "RowClip",
    "clip_from_dict",
]

CLIPS: dict[str, type[Clip]] = {
    clip.name: clip for clip in (RecordClip, BatchClip, CriticClip, RowClip)
}


def clip_from_dict(values: Mapping[str, Any]) -> Clip:
    """The clip written by `Clip.to_dict`.

    Raises:
        PrivacyError: If a value is out of range.
        KeyError, TypeError: If an entry is missing or unknown.
    """
    options = {**values}
    return CLIPS[options.pop("name")](**options)
