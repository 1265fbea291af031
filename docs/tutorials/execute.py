"""Runs the notebooks beside this file and stores what they print: `make tutorials`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent


def executed(path: Path, folder: str) -> nbformat.NotebookNode:
    """The notebook at `path` with its outputs, run in `folder`.

    Raises:
        CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": folder}},
    )
    client.execute()
    return notebook


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    for place in sorted(FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as work:
            nbformat.write(executed(place, work), place)
        print(f"{place.name}: {place.stat().st_size / 1000:.0f} kB")
