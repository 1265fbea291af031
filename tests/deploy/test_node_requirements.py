"""A node installs only its requirements, and works without other packages."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from flwr.app import Message

from fedsink.commands import AT_A_NODE, COMMANDS
from fedsink.flower_internals import become
from fedsink.protocol.dp_sinkhorn import Objective

from ..support.hospital import CLASSES, SHAPE, hospital
from ..support.requests import gradient_request, plan_of

ROOT = Path(__file__).resolve().parent.parent.parent

_WITHOUT = """
import sys

MISSING = {
    "ray", "hydra", "omegaconf", "sklearn", "matplotlib", "jinja2", "torchvision", "geomloss",
    "pykeops", "opacus", "ot", "h5py",
}

sys.modules.update(dict.fromkeys(MISSING))  # find_spec finds None, and an import fails
try:
    import torchvision
except ModuleNotFoundError:
    pass
else:
    sys.exit("the test does not block what it should")
"""

_COMMAND = """
from fedsink.cli import main
main(sys.argv[1:])
"""

_ANSWER = """
import json, pickle
from fedsink.clients import runner

config = json.loads(sys.argv[1])
code, said = runner.opened(config)
assert code == 0, said
reply = runner.answered(config, pickle.load(open(sys.argv[2], "rb")))
assert not reply.has_error(), reply.error
loaded = {name.partition(".")[0] for name, module in sys.modules.items() if module is not None}
print(json.dumps(sorted(loaded)))
"""


def without(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT + code, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )


def requirements(folder: Path) -> dict[str, str]:
    named = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["dependencies"]
    cut = [line.replace("[simulation]", "") for line in named]
    places = [min(line.find(mark) % 99 for mark in "<>=") for line in cut]
    return {line[:place]: line[place:] for line, place in zip(cut, places, strict=True)}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_with(*names: str | Iterable[str]) -> set[str]:
    """Returns these distributions and everything they bring, without extras."""
    reached: set[str] = set()
    waiting = [canonical(n) for name in names for n in ([name] if isinstance(name, str) else name)]
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


@pytest.mark.slow
def test_the_commands_of_a_node_work_without_what_a_node_does_not_install(tmp_path: Path) -> None:
    done = without(_COMMAND, "node", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: fedsink node" in done.stdout
    policy = hospital(tmp_path)
    become(1, 1)
    request = gradient_request(plan_of("record"), Objective(0.5, len(CLASSES)), shape=SHAPE)
    message = Message(request.to_record(), dst_node_id=1, message_type="train.dp_sinkhorn")
    (tmp_path / "message").write_bytes(pickle.dumps(message))
    config = f'{{"policy": "{policy}", "partition-id": 0, "num-partitions": 1}}'
    done = without(_ANSWER, config, str(tmp_path / "message"))
    assert done.returncode == 0, done.stderr
    known = metadata.packages_distributions()
    used = {canonical(d) for name in json.loads(done.stdout) for d in known.get(name, ())}
    assert {"torch", "flwr", "dp-accounting", "safetensors"} <= used
    # torch takes two of them where they are installed; the others share protobuf's, google.
    optional = {"fedsink", "opt-einsum", "tqdm", "google-auth", "google-api-core"}
    optional |= {"googleapis-common-protos"}
    assert used - optional <= installed_with(requirements(ROOT / "deploy/node"), "opendp")
    done = without(_COMMAND, "ledger", "show", f"policy={policy}")
    assert done.returncode == 0, done.stderr
    assert "1 of 50" in done.stdout


@pytest.mark.slow
def test_every_command_works_at_a_node_or_says_what_it_needs(tmp_path: Path) -> None:
    real = {  # more than the help, which all of them have
        "account": ["rate=0.2", "sigma=1.9", "rounds=3"],
        "audit": ["mode=central", "eps=10", "trials=50"],
    }
    words_of = {"--shell-completion": ["install=bash"], "operator": [f"key={tmp_path / 'key'}"]}
    for command in [*COMMANDS, "--shell-completion"]:
        words = words_of.get(command, [f"run={tmp_path}"])
        if command in AT_A_NODE:
            done = without(_COMMAND, command, *real.get(command, ["--help"]))
            assert done.returncode == 0, (command, done.stderr)
        else:
            done = without(_COMMAND, command, *words)
            told = rf"fedsink: fedsink {command} needs the Python package \w+, which is not "
            assert re.match(told, done.stderr), (command, done.stderr)
            assert done.stderr.count("\n") == 1
            assert done.returncode == 2


@pytest.mark.slow
def test_a_dataset_of_a_simulation_says_what_it_needs() -> None:
    code = """
from fedsink.data.sources import load
from fedsink.data.spec import DataSpec
load(DataSpec("digits", (1, 8, 8), tuple("0123456789"), 1437))
"""
    done = without(code)
    message = "ConfigError: data.name=digits needs the Python package sklearn"
    assert message in done.stderr.splitlines()[-1]


def test_the_nodes_requirements_are_among_fedsinks() -> None:
    """flwr brings cryptography and httpx."""
    node, all_ = (requirements(ROOT / p) for p in ("deploy/node", "."))
    own = {name: version for name, version in node.items() if name not in ("cryptography", "httpx")}
    assert own == {name: all_[name] for name in own}
    assert not {"ray", "hydra-core", "scikit-learn", "matplotlib", "torchvision", "geomloss",
                "pykeops", "opacus"} & node.keys()  # fmt: skip
    assert "flwr" in node
