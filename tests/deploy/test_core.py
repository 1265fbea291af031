"""fedsink-core, with and without its extra `node`: what works, and what says what it needs."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from fedsink.commands import COMMANDS, NEEDS
from fedsink.flower_internals import become
from fedsink.protocol.dp_sinkhorn import Objective

from ..support.hospital import CLASSES, SHAPE, hospital
from ..support.requests import gradient_request, plan_of

ROOT = Path(__file__).resolve().parent.parent.parent
LEAVES_OUT = {
    "": {"flwr", "httpx", "rich", "hydra", "ray", "sklearn", "matplotlib", "torchvision"},
    "node": {"hydra", "ray", "sklearn", "matplotlib", "torchvision", "geomloss", "pykeops"},
}
"""Some of the modules that fedsink-core leaves out, by its extra."""

_WITHOUT = """
import json, sys
from importlib.machinery import PathFinder

missing = json.loads(sys.argv.pop(1))


class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        there = name.partition(".")[0] not in missing
        return super().find_spec(name, path, target) if there else None


sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""

_MODULES = """
import pkgutil
from importlib import import_module
import fedsink

failed = {}
for module in pkgutil.walk_packages(fedsink.__path__, "fedsink.", onerror=lambda name: None):
    if not module.name.endswith("__main__"):
        try:
            import_module(module.name)
        except ModuleNotFoundError as error:
            failed[module.name] = error.name.partition(".")[0]
print(json.dumps(failed))
"""

_NAMES = """
import fedsink

refused = {}
for name in fedsink.__all__:
    try:
        getattr(fedsink, name)
    except fedsink.errors.MissingPackageError as error:
        refused[name] = str(error)
print(json.dumps(refused))
"""

_COMMANDS = """
import contextlib, io
from fedsink.commands.cli import main

outcomes = {}
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as told, contextlib.redirect_stdout(None):
        try:
            main(words)
        except SystemExit as ended:
            outcomes[words[0]] = [ended.code, told.getvalue()]
print(json.dumps(outcomes))
"""

_ANSWER = """
import pickle
from fedsink.clients import runner

config = json.loads(sys.argv[1])
code, said = runner.opened(config)
assert code == 0, said
reply = runner.answered(config, pickle.load(open(sys.argv[2], "rb")))
assert not reply.has_error(), reply.error
"""

_LIBRARY = """
import tempfile, torch, fedsink as fs

x, y = torch.rand(20, 4, requires_grad=True), torch.rand(30, 4)
fs.SinkhornLoss.matched_to(fs.Laplace(diameter=2.0, epsilon=6.0))(x, y).backward()
assert x.grad.abs().sum() > 0
plan = fs.PrivacyPlan.solve(rate=0.5, clip=fs.RecordClip(1.0), rounds=3, eps=3, delta=1e-5)
for step in plan.steps(fs.NoiseKey.secret()):
    rows = torch.rand(len(step.sample(40)), 4)
    assert step.release(plan.clip.sum(rows)).shape == (4,)
"""

_FEDERATION = """
import sys, torch, fedsink as fs

images, labels = torch.rand(40, 1, 4, 4), torch.arange(40) % 2
plan = fs.PrivacyPlan.solve(rate=0.5, clip=fs.RecordClip(1.0), rounds=2, eps=3, delta=1e-3)
run = fs.Federation(images, labels, clients=2, classes=2, nominal_records=40, engine="local").fit(
    fs.DPSinkhorn("mlp", plan, lam=2.0), folder=sys.argv[1]
)
assert run.finished and len(run.sample(4)[0]) == 4 and run.privacy["epsilon"] < 3.1
fs.load(sys.argv[1]).generator
"""


def requirements(folder: Path, extra: str = "") -> dict[str, str]:
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(project["optional-dependencies"][extra] if extra else ())]
    cut = [line.replace("[simulation]", "") for line in lines]
    places = [min(line.find(mark) % 99 for mark in "<>=") for line in cut]
    return {line[:place]: line[place:] for line, place in zip(cut, places, strict=True)}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_with(names: set[str]) -> set[str]:
    """Returns these distributions and everything they bring, without extras."""
    reached: set[str] = set()
    waiting = [canonical(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # of another system
        waiting += [
            canonical(re.split(r"[^\w.-]", line)[0]) for line in lines if "extra ==" not in line
        ]
    return reached


@cache
def left_out(extra: str) -> list[str]:
    """Lists the modules installed here that an environment of fedsink-core does not have."""
    there = installed_with(set(requirements(ROOT / "packages/core", extra))) | {"fedsink"}
    missing = {
        module
        for module, names in metadata.packages_distributions().items()
        if not {canonical(name) for name in names} & there
    }
    assert missing >= LEAVES_OUT[extra] - {"pykeops"}
    return sorted(missing)


def without(
    code: str, *arguments: str, extra: str = "node", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT + code, json.dumps(left_out(extra)), *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )


def told(code: str, *arguments: str, extra: str = "node", cwd: Path | None = None) -> Any:
    done = without(code, *arguments, extra=extra, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_its_requirements_are_few_and_among_fedsinks() -> None:
    core, node, all_ = (
        requirements(ROOT / place, extra)
        for place, extra in (("packages/core", ""), ("packages/core", "node"), (".", ""))
    )
    assert len(core) <= 8
    assert node.keys() - core.keys() == {"flwr", "httpx", "rich"}
    assert node == {name: all_[name] for name in node}


@pytest.mark.medium
@pytest.mark.parametrize("extra", ["", "node"])
def test_no_module_imports_what_is_left_out_but_those_that_say_so(extra: str) -> None:
    failed = told(_MODULES, extra=extra)
    of_hydra = re.compile(
        r"fedsink\.(conf|deployment\.deployed_run|commands\.(simulate|suggest|hydra_keys))"
    )
    of_node = re.compile(
        r"fedsink\.(flower_internals|(audit|clients|commands|deployment|results|server|simulation"
        r"|strategies)\..*|federation)"
    )
    for module, package in failed.items():
        if package in ("hydra", "omegaconf"):
            assert of_hydra.fullmatch(module), module
        else:
            assert extra == ""
            assert package in ("flwr", "httpx")
            assert of_node.fullmatch(module), module


@pytest.mark.medium
@pytest.mark.parametrize("extra", ["", "node"])
def test_every_name_of_the_library_is_there_or_says_what_it_needs(extra: str) -> None:
    refused = told(_NAMES, extra=extra)
    of_runs = {"Federation", "DPSinkhorn", "EntropicLDP", "GSWGAN", "guard"}
    assert refused.keys() == (of_runs if extra == "" else set())
    for sentence in refused.values():
        assert sentence == (
            "this needs the Python package flwr, which is not installed here: fedsink brings it, "
            "and so does fedsink-core[node] (docs/install.md)."
        )


@pytest.mark.medium
def test_losses_and_plans_need_only_core() -> None:
    assert without(_LIBRARY, extra="").stderr == ""


@pytest.mark.medium
def test_a_federation_runs_with_the_extra(tmp_path: Path) -> None:
    done = without(_FEDERATION, str(tmp_path / "run"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "report.html needs the Python package matplotlib" in done.stderr


@pytest.mark.slow
def test_a_node_answers_with_the_extra(tmp_path: Path) -> None:
    policy = hospital(tmp_path)
    become(1, 1)
    request = gradient_request(plan_of("record"), Objective(0.5, len(CLASSES)), shape=SHAPE)
    message = Message(request.to_record(), dst_node_id=1, message_type="train.dp_sinkhorn")
    (tmp_path / "message").write_bytes(pickle.dumps(message))
    config = f'{{"policy": "{policy}", "partition-id": 0, "num-partitions": 1}}'
    done = without(_ANSWER, config, str(tmp_path / "message"))
    assert done.returncode == 0, done.stderr
    shown = without("from fedsink.commands.cli import main\nmain(['ledger', 'show', sys.argv[1]])",
                    f"policy={policy}")  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert "1 of 50" in shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["", "node"])
def test_every_command_works_or_says_what_it_needs(tmp_path: Path, extra: str) -> None:
    run = _finished(tmp_path)
    real = {
        "account": ["rate=0.2", "sigma=1.9", "rounds=3"],
        "audit": ["mode=central", "eps=10", "trials=50", "confidence=0.999"],
        "operator": [f"key={tmp_path / 'key'}"],
        "compare": [f"run=[{run},{shutil.copytree(run, tmp_path / 'again')}]"],
        "sample": [f"run={run}", f"out={tmp_path / 'a.npz'}", "n=3"],
        "simulate": ["mode=central"],
        "suggest": ["data.shape=[1,8,8]"],
        "deploy": [f"app={ROOT / 'deploy'}", "superlink=b", "mode=central"],
        "--shell-completion": ["install=bash"],
        **{name: ["--help"] for name in ("node", "ledger", "fetch")},
    }
    lines = [[name, *real.get(name, [f"run={run}"])] for name in [*COMMANDS, "--shell-completion"]]
    needs = {**NEEDS, "--shell-completion": "hydra", "card": "huggingface_hub"}
    if not extra:
        needs["report"] = "flwr"
    if extra:
        needs["evaluate"] = "sklearn"  # the run's data
    names = {"hydra": "hydra-core", "huggingface_hub": "huggingface-hub"}
    outcomes = told(_COMMANDS, json.dumps(lines), extra=extra, cwd=tmp_path)
    for name, (code, said) in outcomes.items():
        if needs.get(name) in left_out(extra) and real.get(name) != ["--help"]:
            package = names.get(needs[name], needs[name])
            assert re.fullmatch(f"fedsink: .* needs the Python package {package}\\b.*\n", said), (
                name, said
            )  # fmt: skip
            assert code == 2
        else:
            assert code == 0, (name, said)


def _finished(folder: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "fedsink", "simulate", "mode=central", "engine=local", "rounds=3",
         "clients=2", "report.pictures=0"],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return folder / done.stdout.splitlines()[-1]


@pytest.mark.medium
def test_a_dataset_of_a_simulation_says_what_it_needs() -> None:
    code = """
from fedsink.data.sources import load
from fedsink.data.spec import DataSpec
load(DataSpec("digits", (1, 8, 8), tuple("0123456789"), 1437))
"""
    done = without(code)
    message = "ConfigError: data.name=digits needs the Python package sklearn"
    assert message in done.stderr.splitlines()[-1]
