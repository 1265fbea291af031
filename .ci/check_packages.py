"""Builds wheel and sdist, checks their files, installs the wheel, runs it in an empty folder.

Usage: check_packages.py [DIST], DIST a folder that holds the packages, built before.

The trap this guards against: hatchling follows the links clients/, server/, … at the root and then
drops the packages behind them from the sdist, and from any wheel that is built from it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SMALL = ["engine=local", "rounds=3", "data=digits", "clients=2", "report.pictures=0"]


class CheckError(Exception):
    """Defect of a package, in one sentence."""


def main() -> int:
    """Runs every check. Returns 1 after a sentence where one fails."""
    try:
        with tempfile.TemporaryDirectory(prefix="fedsink-packages-") as folder:
            work = Path(folder)
            check(Path(sys.argv[1]) if len(sys.argv) > 1 else build(work / "dist"), work)
    except CheckError as error:
        print(f"check_packages: {error}", file=sys.stderr)
        return 1
    return 0


def build(target: Path) -> Path:
    """Builds the wheel, the sdist and the wheels of core and of papers. Returns their folder."""
    _build(ROOT, target, "--wheel")
    _build(ROOT, target, "--sdist")
    _build(ROOT / "packages" / "papers", target, "--wheel")
    return _build(ROOT / "packages" / "core", target, "--wheel")


def check(dist: Path, work: Path) -> None:
    """Compares the packages in `dist` with the source tree, and runs the wheel.

    Raises:
        CheckError: something is missing, foreign, or does not run.
    """
    sources = _sources()
    wheel, sdist = _one(dist, "fedsink-*.whl"), _one(dist, "fedsink-*.tar.gz")

    held = _wheel_content(wheel)
    _compare("the wheel", sources, {n: d for n, d in held.items() if n.startswith("fedsink/")})
    foreign = [n for n in held if not n.startswith(("fedsink/", "fedsink-"))]
    if foreign:
        raise CheckError(f"the wheel would put {foreign[0]} into site-packages beside fedsink.")
    yaml = sum(name.endswith(".yaml") for name in sources)
    print(f"wheel: fedsink/ alone, {len(sources)} files, {yaml} of them configuration, py.typed")

    core = _wheel_content(_one(dist, "fedsink_core-*.whl"))
    _compare("the wheel of fedsink-core", sources, {n: d for n, d in core.items() if n in sources})
    foreign = [n for n in core if n not in sources and not n.startswith("fedsink_core-")]
    if foreign:
        raise CheckError(f"the wheel of fedsink-core holds {foreign[0]} besides fedsink.")
    print("the wheel of fedsink-core: the same fedsink/ with its own requirements")

    papers = _one(dist, "fedsink_papers-*.whl")
    wanted = _sources(ROOT / "packages/papers/src", "fedsink_papers")
    held_there = _wheel_content(papers)
    foreign = [n for n in held_there if not n.startswith(("fedsink_papers/", "fedsink_papers-"))]
    if foreign:
        raise CheckError(f"the wheel of fedsink-papers holds {foreign[0]} besides its package.")
    _compare(
        "the wheel of fedsink-papers",
        wanted,
        {n: d for n, d in held_there.items() if n.startswith("fedsink_papers/")},
    )
    print(f"the wheel of fedsink-papers: fedsink_papers/ alone, {len(wanted)} files")

    unpacked = _unpack(sdist, work / "sdist")
    links = [path for path in unpacked.rglob("*") if path.is_symlink()]
    if links:
        raise CheckError(f"the sdist holds the link {links[0].name} instead of files.")
    _compare("the sdist", sources, _sources(unpacked))
    for name in ("deploy/pyproject.toml", "mkdocs.yml", "SECURITY.md", "CITATION.cff"):
        if not (unpacked / name).is_file():
            raise CheckError(f"the sdist lacks {name}.")
    print("sdist: all of fedsink/ as real files; clients, server, strategies, conf included")

    again = _wheel_content(_one(_build(unpacked, work / "again", "--wheel"), "*.whl"))
    _compare("the wheel built from the sdist", held, again)
    print("wheel from the sdist: equal to the wheel from the tree")

    _install_and_run(wheel, papers, work)


def _sources(root: Path = ROOT, name: str = "fedsink") -> dict[str, str]:
    """Files of a package by name, with their digests."""
    package = root / name
    return {
        path.relative_to(root).as_posix(): _digest(path.read_bytes())
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def _build(source: Path, target: Path, kind: str) -> Path:
    _run([sys.executable, "-m", "build", kind, "--no-isolation", "--outdir", target, source])
    return target


def _wheel_content(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: _digest(archive.read(name)) for name in archive.namelist()}


def _unpack(sdist: Path, target: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(target, filter="data")
    return _one(target, "fedsink-*")


def _compare(what: str, wanted: dict[str, str], found: dict[str, str]) -> None:
    for name in sorted(wanted.keys() | found.keys()):
        if name not in found:
            raise CheckError(f"{what} lacks {name}.")
        if name not in wanted:
            raise CheckError(f"{what} holds {name}, which does not belong there.")
        if wanted[name] != found[name]:
            raise CheckError(f"{what} holds another {name} than the source tree.")


def _install_and_run(wheel: Path, papers: Path, work: Path) -> None:
    """Installs without dependencies into a fresh environment that borrows them from this one."""
    home, empty = work / "venv", work / "empty"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    site = Path(_output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]))
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    _run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel])
    installed = {path.name for path in site.iterdir()} - {"__pycache__"}
    if strange := {n for n in installed if n != "fedsink" and not n.endswith(".dist-info")}:
        raise CheckError(f"installing the wheel put {sorted(strange)} into site-packages.")
    # Path entries of a .pth file come after site-packages: the wheel's fedsink is the one found.
    borrowed = work / "borrowed"
    borrowed.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(("fedsink", "_fedsink")):  # nor their entry points
            (borrowed / path.name).symlink_to(path)
    (site / "borrowed.pth").write_text(f"{borrowed}\n")

    empty.mkdir()
    fedsink = home / "bin" / "fedsink"
    where = _output([python, "-c", "import fedsink; print(fedsink.__file__)"], cwd=empty)
    if not Path(where).is_relative_to(site):
        raise CheckError(f"the fresh environment imports fedsink from {where}.")
    version = _output([fedsink, "--version"], cwd=empty)
    folder = Path(_output([fedsink, "simulate", *SMALL], cwd=empty).splitlines()[-1])
    wanted = ("generator.safetensors", "privacy.json", "report.html")
    missing = [name for name in wanted if not (folder / name).is_file()]
    if missing:
        raise CheckError(f"the installed fedsink left no {missing[0]} in {folder}.")
    print(f"installed: only fedsink in site-packages; {version} ran from an empty folder")

    # Without fedsink-papers, what it has is refused by its name; on top of fedsink it is found.
    asked = "from fedsink.results.evaluation.suites import SUITES; SUITES.find('paper')"
    done = subprocess.run(
        [python, "-c", asked],
        cwd=empty,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    if "is in fedsink-papers, which is not installed" not in done.stderr:
        raise CheckError("fedsink without fedsink-papers does not name it where it is missing.")
    _run([*pip, "install", "--quiet", "--no-deps", "--no-index", papers])
    _run([python, "-c", asked], cwd=empty)
    print("fedsink-papers: named where it is missing, found once it is installed")


def _one(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise CheckError(f"expected one {pattern} in {folder}, found {len(found)}.")
    return found[0]


def _output(command: Sequence[object], cwd: Path | None = None) -> str:
    return _run(command, cwd).strip()


def _run(command: Sequence[object], cwd: Path | None = None) -> str:
    words = [str(word) for word in command]
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(words, cwd=cwd, env=clean, capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        raise CheckError(f"{' '.join(words[:4])} … failed: {last}")
    return done.stdout


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
