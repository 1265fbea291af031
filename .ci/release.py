"""Makes the files of a release in dist/: wheels, sdist, SBOMs, SHA256SUMS. Publishes nothing.

Usage: release.py [DIST]

The files depend only on the commit: two builds are compared byte by byte, and the time of the
commit replaces the clock (SOURCE_DATE_EPOCH).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

from check_packages import ROOT, CheckError, build, check
from packaging.requirements import Requirement

_PROJECTS = {
    "fedsink": "pyproject.toml",
    "fedsink-core": "packages/core/pyproject.toml",
    "fedsink-papers": "packages/papers/pyproject.toml",
}


def main() -> int:
    """Makes the release. Returns 1 after a sentence where it cannot be made."""
    dist = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").resolve()
    try:
        version = _version()
        _check_tree(dist)
        _make(version, dist)
    except CheckError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print(f"fedsink {version}: {', '.join(path.name for path in sorted(dist.iterdir()))}")
    return 0


def _version() -> str:
    """The version, where every file that states one agrees."""
    stated = {
        name: _found(name, pattern)
        for name, pattern in {
            "fedsink/__init__.py": r'^__version__ = "(.+)"$',
            "deploy/pyproject.toml": r'^version = "(.+)"$',
            "CITATION.cff": r"^version: (.+)$",
        }.items()
    }
    version = stated["fedsink/__init__.py"]
    for name, other in stated.items():
        if other != version:
            raise CheckError(f"{name} states version {other}, fedsink/__init__.py {version}.")
    if not re.search(rf"^## \[{re.escape(version)}\]", (ROOT / "CHANGELOG.md").read_text(), re.M):
        raise CheckError(
            f"CHANGELOG.md has no heading ## [{version}]: give what is Unreleased that heading "
            "and the date, and commit."
        )
    return version


def _found(name: str, pattern: str) -> str:
    found = re.search(pattern, (ROOT / name).read_text(), re.M)
    if found is None:
        raise CheckError(f"{name} states no version.")
    return found[1]


def _check_tree(dist: Path) -> None:
    if changed := _git("status", "--porcelain"):
        raise CheckError(
            f"the tree differs from its commit ({changed.splitlines()[0].strip()}): commit, or "
            "put aside what does not belong to the release."
        )
    if dist.exists() and any(dist.iterdir()):
        raise CheckError(f"{dist} is not empty: remove what is left of an earlier build.")


def _make(version: str, dist: Path) -> None:
    os.environ["SOURCE_DATE_EPOCH"] = _git("log", "-1", "--format=%ct")
    with tempfile.TemporaryDirectory(prefix="fedsink-release-") as folder:
        work = Path(folder)
        first, second = (_sums(build(work / name)) for name in ("first", "second"))
        if different := sorted(name for name in first if first[name] != second.get(name)):
            raise CheckError(f"two builds of {different[0]} differ: it cannot be reproduced.")
        check(work / "first", work)
        installed = _installed()
        for name, project in _PROJECTS.items():
            bill = _bill(installed, name, version, ROOT / project)
            content = json.dumps(bill, indent=2) + "\n"
            (work / "first" / f"{name}-{version}.cdx.json").write_text(content)
        sums = [f"{digest}  {name}\n" for name, digest in sorted(_sums(work / "first").items())]
        (work / "first" / "SHA256SUMS").write_text("".join(sums))
        shutil.copytree(work / "first", dist, dirs_exist_ok=True)


def _sums(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def _installed() -> dict[str, Any]:
    """CycloneDX' bill of everything in this environment."""
    command = ["-m", "cyclonedx_py", "environment", "--output-reproducible", sys.executable]
    return dict(json.loads(_run(sys.executable, *command)))


def _bill(installed: dict[str, Any], name: str, version: str, project: Path) -> dict[str, Any]:
    """The part of the bill that a distribution requires, in the versions it was tested with.

    CycloneDX' own graph follows optional requirements as well; here extras count where something
    asks for them.
    """
    stated = tomllib.loads(project.read_text())["project"]
    # A node's owner reads the bill of fedsink-core: with the extra `node`.
    of_node = stated.get("optional-dependencies", {}).get("node", [])
    needs = _needs([Requirement(text) for text in [*stated["dependencies"], *of_node]])
    references = {_normal(each["name"]): each["bom-ref"] for each in installed["components"]}
    root = f"{name}=={version}"
    return {
        **{key: installed[key] for key in ("bomFormat", "specVersion", "version")},
        "metadata": {
            "component": {
                "type": "library", "bom-ref": root, "name": name, "version": version,
                "purl": f"pkg:pypi/{name}@{version}",
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
            "tools": installed["metadata"]["tools"],
        },
        "components": [
            each for each in installed["components"] if _normal(each["name"]) in needs
        ],
        "dependencies": [
            {
                "ref": references.get(package, root),
                "dependsOn": sorted(references[other] for other in others),
            }
            for package, others in sorted(needs.items())
        ],
    }  # fmt: skip


def _needs(stated: list[Requirement]) -> dict[str, set[str]]:
    """Requirements of each installed distribution, by name; "" stands for the built one."""
    needs: dict[str, set[str]] = {"": {_normal(each.name) for each in stated}}
    waiting, seen = list(stated), set[tuple[str, frozenset[str]]]()
    while waiting:
        requirement = waiting.pop()
        name, extras = _normal(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            texts = metadata.distribution(name).requires or []
        except metadata.PackageNotFoundError:
            raise CheckError(f"{name}, which a package requires, is not installed here.") from None
        wanted = [
            each
            for each in map(Requirement, texts)
            if each.marker is None
            or any(each.marker.evaluate({"extra": extra}) for extra in (extras or {""}))
        ]
        needs.setdefault(name, set()).update(_normal(each.name) for each in wanted)
        waiting += wanted
    return needs


def _normal(name: str) -> str:
    """PEP 503's form of a distribution's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _git(*arguments: str) -> str:
    return _run("git", *arguments).strip()


def _run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        raise CheckError(f"{' '.join(command[:4])} … failed: {last}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
