"""The keys of a configuration stand in one list, and each of them is read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedsink.commands.hydra_keys import known_keys
from fedsink.commands.simulate import _EXAMPLES
from fedsink.conf.acting import compose_config
from fedsink.configuration import Configuration, NoiseSettings
from fedsink.deployment.deployed_run import DeployEngine
from fedsink.server.loop import LoopSettings
from fedsink.server.running import ServerSettings
from fedsink.simulation.engine import EngineSettings
from fedsink.simulation.experiment import Experiment
from fedsink.simulation.run_identity import RunIdentity
from fedsink.strategies.base.trainer import OptimizerSettings
from fedsink.strategies.dp_sinkhorn.self_term import SelfTermSettings
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhornSettings
from fedsink.strategies.privatize_once import PrivatizeOnceSettings

from .conftest import CONF, FOLDERS

PACKAGE = CONF.parent
ROOT = PACKAGE.parent


class Watched(Mapping[str, Any]):
    """A group that writes down which of its keys were read, in full."""

    def __init__(self, values: Mapping[str, Any], read: set[str], where: str = "") -> None:
        self._values, self._read, self._where = values, read, where

    def __getitem__(self, key: str) -> Any:
        value, name = self._values[key], f"{self._where}{key}"
        self._read.add(name)
        return Watched(value, self._read, f"{name}.") if isinstance(value, Mapping) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def keys_of(values: Mapping[str, Any], where: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield f"{where}{key}"
        if isinstance(value, Mapping):
            yield from keys_of(value, f"{where}{key}.")


@cache
def attributes() -> set[str]:
    """Every name that the package reads off an object, except where a class checks its own."""
    names: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        checks = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name == "__post_init__"
            for inner in ast.walk(node)
        }
        names |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Load)
            and id(node) not in checks
        }
    return names


@pytest.mark.medium
def test_the_yaml_and_the_class_have_the_same_keys() -> None:
    known = {field.name for field in fields(Configuration) if field.init}
    modes = [set(compose_config([f"mode={mode}"])) for mode in ("central", "ldp")]
    assert modes[0] == modes[1] == known - {"run"}  # which a run folder adds


@pytest.mark.medium
@pytest.mark.parametrize(
    "cls",
    [
        Configuration, NoiseSettings, ServerSettings, LoopSettings, EngineSettings, DeployEngine,
        DPSinkhornSettings, PrivatizeOnceSettings, SelfTermSettings, OptimizerSettings,
    ],
)  # fmt: skip
def test_nothing_is_stated_that_nothing_reads(cls: type[Any]) -> None:
    known = {field.name for field in fields(cls)}
    if cls is Configuration:
        known -= {"resume", "run", "scales"}  # read before there is a configuration
    assert known <= attributes()


@pytest.mark.parametrize(
    ("overrides", "of_the_other_mode"),
    [
        ("mode=central", ("map", "mechanism.label_eps")),
        ("mode=central strategy=parameter_gradient", ("map", "mechanism.label_eps")),
        ("mode=ldp", ("view",)),
        ("mode=ldp mechanism=gaussian shuffler=trusted", ("view",)),
    ],
)
def test_every_option_of_a_group_is_read(
    tmp_path: Path, overrides: str, of_the_other_mode: tuple[str, ...]
) -> None:
    config, read = compose_config([*overrides.split(), "seed=0", "rounds=20"]), set[str]()
    Experiment.of(Watched(config, read), RunIdentity.fresh(0))
    unread = sorted(set(keys_of(config)) - read)
    # Values of a recipe are read by the interpolations of other groups.
    assert [key for key in unread if not key.startswith(("recipe", *of_the_other_mode))] == []


@pytest.mark.medium
def test_the_keys_in_help_and_docs_exist() -> None:
    known = set(known_keys())
    for path in (path for folder in FOLDERS for path in folder.glob("*/*.yaml")):
        options = yaml.safe_load(path.read_text()) or {}
        whole = path.read_text().startswith("# @package _global_")
        known |= {key if whole else f"{path.parent.name}.{key}" for key in keys_of(options)}
    block = re.search(r"Keys you type most:\n(.*?)\n\n", _EXAMPLES, re.DOTALL)
    assert block is not None
    shown = {key for line in block[1].splitlines() for key in line[:20].replace(",", " ").split()}
    assert {key for key in shown if not key.startswith("hydra.")} <= known
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        typed = re.findall(r"(?<![\w.])([a-z_]+(?:\.[a-z_]+)+)=", path.read_text())
        assert {key for key in typed if not key.startswith("hydra.")} <= known, path.name
