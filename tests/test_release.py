"""Statements of a release about itself, and the files that `.ci/release.py` makes."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedsink

ROOT = Path(__file__).resolve().parent.parent


def test_the_citation_has_what_the_format_requires() -> None:
    citation: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert {"message", "title", "authors", "version", "license"} <= citation.keys()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["license"] == project["license"]
    for work in (citation, *citation["references"]):
        assert isinstance(work["title"], str)
        assert work["type"] in ("software", "conference-paper", "article")
        assert work["authors"]
        for author in work["authors"]:
            assert author.keys() in ({"name"}, {"family-names", "given-names"})


def test_one_version_stands_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    deployment = tomllib.loads((ROOT / "deploy" / "pyproject.toml").read_text())["project"]
    assert citation["version"] == deployment["version"] == fedsink.__version__
    for path in (ROOT / "pyproject.toml", ROOT / "packages" / "core" / "pyproject.toml"):
        assert tomllib.loads(path.read_text())["project"]["dynamic"] == ["version"]


def test_the_way_to_report_a_defect_names_no_address() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    assert "private vulnerability reporting" in text
    assert re.findall(r"\S+@\S+|https?://\S+", text) == []


class Checkout:
    """Clone whose version has a heading in the changelog, and the recipe's output on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.dist = folder, folder.parent / "dist"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)

    def write(self, name: str, old: str, new: str) -> None:
        path = self.folder / name
        content = path.read_text()
        assert old in content
        path.write_text(content.replace(old, new, 1))

    def commit(self) -> None:
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        command = ["git", *identity, "commit", "--quiet", "--all", "--message", "A release"]
        subprocess.run(command, cwd=self.folder, check=True)

    def release(self) -> subprocess.CompletedProcess[str]:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        return subprocess.run(
            [sys.executable, ".ci/release.py", str(self.dist)],
            cwd=self.folder, env=environment, capture_output=True, text=True, timeout=540,
        )  # fmt: skip


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("this is not a git checkout")
    for module in ("build", "hatchling"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    return Checkout(tmp_path / "clone")


@pytest.mark.slow
def test_a_version_without_a_heading_in_the_changelog_is_refused(checkout: Checkout) -> None:
    done = checkout.release()
    if f"## [{fedsink.__version__}]" not in (checkout.folder / "CHANGELOG.md").read_text():
        assert done.returncode == 1
        assert "CHANGELOG.md has no heading" in done.stderr
    checkout.write("CITATION.cff", f"version: {fedsink.__version__}", "version: 99.0.0")
    assert "CITATION.cff states version 99.0.0" in checkout.release().stderr


@pytest.mark.slow
def test_a_release_has_wheels_sdist_bills_and_checksums(checkout: Checkout) -> None:
    if importlib.util.find_spec("cyclonedx_py") is None:
        pytest.skip("cyclonedx-bom is not installed: pip install '.[docs]'")
    version = fedsink.__version__
    checkout.write("CHANGELOG.md", "## [Unreleased]", f"## [{version}] - 2026-01-01")
    assert "the tree differs from its commit" in checkout.release().stderr
    checkout.commit()
    done = checkout.release()
    assert done.returncode == 0, done.stderr
    dist = checkout.dist
    files = {
        f"fedsink-{version}-py3-none-any.whl", f"fedsink-{version}.tar.gz",
        f"fedsink_core-{version}-py3-none-any.whl",
        f"fedsink_papers-{version}-py3-none-any.whl",
        f"fedsink-{version}.cdx.json", f"fedsink-core-{version}.cdx.json",
        f"fedsink-papers-{version}.cdx.json",
    }  # fmt: skip
    assert {path.name for path in dist.iterdir()} == files | {"SHA256SUMS"}

    lines = (dist / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert sums == {n: hashlib.sha256((dist / n).read_bytes()).hexdigest() for n in files}

    moment = subprocess.run(
        ["git", "log", "-1", "--format=%cd", "--date=format-local:%Y"],
        cwd=checkout.folder, env={**os.environ, "TZ": "UTC"}, capture_output=True, text=True,
    )  # fmt: skip
    with zipfile.ZipFile(dist / f"fedsink-{version}-py3-none-any.whl") as wheel:
        assert {info.date_time[0] for info in wheel.infolist()} == {int(moment.stdout)}

    whole, core = (
        json.loads((dist / f"{name}-{version}.cdx.json").read_text())
        for name in ("fedsink", "fedsink-core")
    )
    for bill in (whole, core):
        assert bill["bomFormat"] == "CycloneDX"
        assert bill["metadata"]["component"]["version"] == version
        references = {each["bom-ref"] for each in bill["components"]}
        assert all(set(each["dependsOn"]) <= references for each in bill["dependencies"])
    names = [{each["name"].lower() for each in bill["components"]} for bill in (whole, core)]
    assert {"torch", "ray", "hydra-core", "cryptography"} <= names[0]
    assert {"torch", "cryptography", "flwr", "httpx"} <= names[1]
    assert not names[1] & {"ray", "hydra-core", "scikit-learn", "matplotlib"}
    assert not names[0] & {"pytest", "ruff", "mkdocs"}
    assert "is not empty" in checkout.release().stderr
