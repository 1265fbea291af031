"""A local mechanism is a module and two YAML files, and an entry point where a package adds it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedsink.clients.node import close_nodes
from fedsink.commands.account import run as account
from fedsink.commands.audit import run as audit
from fedsink.conf.acting import compose_config
from fedsink.simulation.simulated_run import start

MODULE = '''
"""Laplace noise, and what is noised is rounded to a grid: post-processing."""
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedsink.privacy import Laplace


@dataclass(frozen=True)
class Rounded(Laplace):
    name: ClassVar[str] = "rounded"

    def privatize(self, values, stream):
        return torch.round(super().privatize(values, stream), decimals=1)
'''
CHOICE = "name: rounded\nlabel_eps: ${recipe.label_eps}\n"
RECIPE = """
eps: 35.0
delta: 0.0
rounds: 400
rate: 1.0
label_eps: null
map: {name: pooled_power, norm: l1}
batch: 100
finite_batch_factor: null
lr: 2.0e-3
generator: {latent_dim: 4, hidden: [16, 16]}
by_eps: {eps: [35], label_eps: [5], block: [6], finite_batch_factor: [1.0]}
"""


@pytest.fixture
def _installed(
    install_package: Callable[[dict[str, str], str], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    install_package(
        {
            "plugin.py": MODULE,
            "conf/mechanism/rounded.yaml": CHOICE,
            "conf/recipe/default/ldp/rounded/images.yaml": RECIPE,
        },
        "[fedsink.local_mechanisms]\nrounded = plugin:Rounded\n",
    )
    yield
    close_nodes()


@pytest.mark.medium
@pytest.mark.usefixtures("_installed")
def test_it_runs_and_its_statement_and_account_know_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f"hydra.searchpath=[file://{tmp_path / 'site' / 'plugin' / 'conf'}]"
    keys = ["mode=ldp", "mechanism=rounded", "clients=2", "rounds=2", "engine=local", "seed=0"]
    folder = start(
        compose_config([where, *keys, "report.pictures=0", "report.html=false"]), tmp_path / "run"
    )
    privacy = json.loads((folder / "privacy.json").read_text())
    assert privacy["mechanism"] == "rounded + randomized response on the label"
    assert (privacy["epsilon"], privacy["delta"]) == (pytest.approx(35.0), 0.0)
    assert privacy["training"]["matched_cost"] == {"cost": "l1", "lam": privacy["sigma"]}

    arguments = ["mechanism=rounded", f"sensitivity={privacy['sensitivity']!r}", "eps=30"]
    assert account(arguments) == 0
    assert f"{privacy['sigma']:.6g}" in capsys.readouterr().out
    assert audit(["mode=ldp", "mechanism=rounded", "trials=40"]) == 0
    assert "80 plays of one record " in capsys.readouterr().out
