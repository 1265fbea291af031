"""What every test shares: one thread, no telemetry, no file outside the temporary folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

# What NumPy and PyTorch compute with reads this once, in the processes that tests start as well.
os.environ["OMP_NUM_THREADS"] = "1"
# Flower reads these once, at its import: before any test module is imported.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ["FLWR_LOG_LEVEL"] = "WARNING"

import torch
from hypothesis import settings

from .support import picture_files
from .support.operations import Operations
from .support.stand_in import StandIn, gpu_standing_in

settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci")
torch.set_num_threads(1)

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keys, caches and Flower's own files go to a temporary folder, in subprocesses as well."""
    names = {"XDG_STATE_HOME": "state", "XDG_CACHE_HOME": "cache", "FLWR_HOME": "flwr"}
    before = {name: os.environ.get(name) for name in names}
    for name, folder in names.items():
        os.environ[name] = str(tmp_path_factory.mktemp(folder))
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """A folder that holds MNIST and FashionMNIST as torchvision lays them out."""
    named = os.environ.get("FEDSINK_TEST_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not (folder / "MNIST" / "raw").is_dir():
        pytest.skip(f"{folder} holds no MNIST/raw; name a folder that does in FEDSINK_TEST_DATA")
    return folder


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MNIST, FashionMNIST and CelebA in their own file formats: 200 and 60 pictures of noise."""
    root = tmp_path_factory.mktemp("tiny-data")
    picture_files.write(root)
    return root


@pytest.fixture
def install_source(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[Callable[..., tuple[torch.Tensor, torch.Tensor]]], None]]:
    """Makes a reader the source "tiny"; nodes and data are forgotten afterwards, one thread."""
    from fedsink.clients.node import close_nodes
    from fedsink.data import sources

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield lambda read: monkeypatch.setitem(sources.SOURCES, "tiny", read)
    close_nodes()
    sources.load.cache_clear()
    torch.set_num_threads(threads)


@pytest.fixture
def install_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[dict[str, str], str], None]]:
    """Installs a package for one test: its files by path, and its entry_points.txt."""
    from fedsink.data.sources import SOURCES
    from fedsink.privacy import LOCAL_MECHANISMS

    def forget() -> None:
        for registry in (SOURCES, LOCAL_MECHANISMS):
            vars(registry).pop("_installed", None)

    before = set(sys.modules)
    site = tmp_path / "site"

    def install(files: dict[str, str], points: str) -> None:
        info = {"plugin-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: plugin\n"}
        for name, text in {
            **info,
            **files,
            "plugin-1.0.dist-info/entry_points.txt": points,
        }.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(text)
        monkeypatch.syspath_prepend(str(site))
        forget()

    yield install
    forget()
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(site)):
            del sys.modules[name]


@pytest.fixture
def operations() -> Callable[[Callable[[], object]], list[tuple[Any, ...]]]:
    """The tensor operations of a call, in order: what its running time may depend on."""

    def of(call: Callable[[], object]) -> list[tuple[Any, ...]]:
        with Operations() as mode:
            call()
        return mode.seen

    return of


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], AbstractContextManager[StandIn]]]:
    """Opens a block in which `cuda` is a device (`support/stand_in.py`), then empties caches."""
    from fedsink.data import dct, views
    from fedsink.protocol import parameters

    def forget() -> None:
        for cached in (views._weighted_basis, dct.basis, parameters._built):
            cached.cache_clear()

    forget()
    yield lambda: gpu_standing_in(monkeypatch)
    forget()
