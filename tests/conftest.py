"""Settings that every test shares: one thread, no telemetry, and a clean environment.

No test sees the user's settings, the folder in which pytest was started, or the user's home.
"""

# ruff: noqa: E402 (the environment is cleaned before a library is imported)
from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from .support.surroundings import clean

# Libraries read the environment once, at their import: before any test module is imported.
clean(os.environ)
# A shell has what it starts in the background ignore Ctrl-C, and so would each child of a test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import torch
from hypothesis import settings

from .support import picture_files
from .support.operations import Operations
from .support.stand_in import StandIn, gpu_standing_in

settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci")
torch.set_num_threads(1)

ROOT = Path(__file__).resolve().parent.parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks as slow those cases of a function that its mark `quick` does not name.

    Raises:
        UsageError: for a name that is no case's, where a function's cases are all there.
    """
    unused: dict[tuple[str, str], bool] = {}
    for item in items:
        marker = item.get_closest_marker("quick")
        if isinstance(item, pytest.Function) and marker is not None:
            case = item.callspec.id
            named = [fnmatchcase(case, name) for name in marker.args]
            if not any(named):
                item.add_marker(pytest.mark.slow)
            function = item.nodeid.removesuffix(f"[{case}]")
            for name, found in zip(marker.args, named, strict=True):
                unused[function, name] = unused.get((function, name), True) and not found
    wrong = [f"{function} has no case {name}" for (function, name), none in unused.items() if none]
    if wrong and not any("[" in argument for argument in config.args):
        raise pytest.UsageError("; ".join(wrong))


# What no install gives: the only reasons for a skip that `make test-all` takes, by words of theirs.
LACKING = (
    "a GPU", "counts no memory on the CPU",
    "Docker",
    "MNIST",  # the files
    "mount a disk", "permissions of files bind nobody",  # rights that a container may withhold
    "not a git checkout",
)  # fmt: skip


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, Any]:
    """Lets a test fail whose skip an install could prevent, where every test is to run."""
    return _unskipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, Any]:
    """The same for modules that skip themselves."""
    return _unskipped((yield))


def _unskipped(report: Any) -> Any:
    if os.environ.get("FEDSINK_TEST_ALL") and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(words in reason for words in LACKING):
            report.outcome = "failed"
            report.longrepr = f"make test-all leaves nothing out that an install gives: {reason}"
    return report


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Home, keys, caches, Flower's own files and the working directory are empty folders."""
    folder = tmp_path_factory.mktemp("own")
    names = {
        "HOME": "home", "XDG_STATE_HOME": "state", "XDG_CACHE_HOME": "cache", "FLWR_HOME": "flwr",
    }  # fmt: skip
    for name, own in names.items():
        (folder / own).mkdir()
        os.environ[name] = str(folder / own)
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    (folder / "here").mkdir()
    before = Path.cwd()
    os.chdir(folder / "here")
    yield
    os.chdir(before)


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
    sources.forget()
    torch.set_num_threads(threads)


@pytest.fixture
def install_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[dict[str, str], str], None]]:
    """Installs a package for one test: its files by path, and its entry_points.txt."""
    from fedsink.clients.answers.registry import ANSWERS
    from fedsink.data.sources import SOURCES
    from fedsink.models import GENERATORS
    from fedsink.privacy import LOCAL_MECHANISMS

    def forget() -> None:
        for registry in (SOURCES, LOCAL_MECHANISMS, ANSWERS, GENERATORS):
            vars(registry).pop("_installed", None)

    before = set(sys.modules)
    site = tmp_path / "site"

    def install(files: dict[str, str], points: str, package: str = "plugin") -> None:
        info = f"{package}-1.0.dist-info"
        about = {
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\n",
            f"{info}/entry_points.txt": points,
        }
        for name, text in {**files, **about}.items():
            (site / package / name).parent.mkdir(parents=True, exist_ok=True)
            (site / package / name).write_text(text)
        monkeypatch.syspath_prepend(str(site / package))
        forget()

    yield install
    forget()
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(site)):
            del sys.modules[name]


@pytest.fixture
def operations() -> Callable[[Callable[[], object]], list[tuple[Any, ...]]]:
    """The tensor operations of a call, in order: its running time depends only on them."""

    def of(call: Callable[[], object]) -> list[tuple[Any, ...]]:
        with Operations() as mode:
            call()
        return mode.seen

    return of


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], AbstractContextManager[StandIn]]]:
    """Opens a block in which `cuda` is a device (`support/stand_in.py`), then empties caches."""
    from fedsink_papers.parameter_gradient import request as parameters

    from fedsink.data import dct, views

    def forget() -> None:
        for cached in (views._weighted_basis, dct.basis, parameters._built):
            cached.cache_clear()

    forget()
    yield lambda: gpu_standing_in(monkeypatch)
    forget()
