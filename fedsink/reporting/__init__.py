"""What a run shows and leaves behind: progress on the terminal, sample grids, record files."""

from __future__ import annotations

from fedsink.reporting.grids import save_grid
from fedsink.reporting.points import save_points
from fedsink.reporting.progress import Progress
from fedsink.reporting.records import append_jsonl, truncate_jsonl, write_json

__all__ = [
    "Progress",
    "append_jsonl",
    "save_grid",
    "save_points",
    "truncate_jsonl",
    "write_json",
]
