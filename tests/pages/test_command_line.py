from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from fedsink.conf.acting import compose_config
from fedsink.conf.loading import application, choices
from fedsink.pages.command_line import HIDDEN, CommandLine, shown_settings

EXPERIMENTS = [
    "digits_eps10", "mnist_eps1", "fashion_eps10", "gs_wgan_published_digits",
    "mnist_ldp_laplace35", "reshetova_mnist_gaussian35", "dp_sinkhorn_celeba",
    "half_circle_laplace",
]  # fmt: skip


def _again(line: CommandLine) -> dict[str, Any]:
    words = shlex.split(line.command)
    assert words[:2] == ["fedsink", "simulate"]
    return compose_config(words[2:])


def _run(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration as it is stored, without notes on its origin."""
    return {key: value for key, value in config.items() if key not in ("scale", "scales", "paper")}


@pytest.mark.medium
@pytest.mark.quick("digits_eps10")
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_command_gives_the_configuration_of_an_experiment_again(experiment: str) -> None:
    embedded = experiment.startswith(("digits", "half_circle")) or "published_digits" in experiment
    place = [] if embedded else ["data.root=FOLDER"]
    config = compose_config([f"experiment={experiment}", *place])
    line = CommandLine.of({**config, "run": {"name": "x", "server_seed": 3}})
    assert _run(_again(line)) == _run(config)
    assert "experiment" not in line.command


@pytest.mark.medium
@pytest.mark.quick("overrides0")
@pytest.mark.parametrize(
    "overrides",
    [
        ["mode=central", "eps=inf", "engine=ray", "seed=0", "engine.actors=7"],
        ["mode=central", "data=femnist_62", "data.root=FOLDER", "partition=by_user",
         "noise=secure", "capacity=auto"],
        ["mode=central", "strategy=parameter_gradient", "clip=batch", "view=pixel"],
        ["mode=ldp", "mechanism=laplace", "eps=20", "map=l1_ball", "generator=dcgan"],
        ["mode=central", "partition.keep=[0,3]",
         "data.corrupt={kind: invert, share: 0.5, seed: 1}"],
        ["mode=central", "data.classes=['a b','it\\'s','null','1','ü,}',a\\\\]"],
        ["mode=central", "+strategy.new='x y'", "delta=1e-7", "strategy.optimizer.betas=[0.1,1]"],
        ["mode=central", "~strategy.optimizer.ema"],
    ],
)  # fmt: skip
def test_the_command_gives_any_configuration_again(overrides: list[str]) -> None:
    config = compose_config(overrides)
    assert _run(_again(CommandLine.of(config))) == _run(config)


@pytest.mark.medium
def test_a_run_of_the_recipe_differs_in_nothing() -> None:
    line = CommandLine.of(compose_config(["mode=central", "data=mnist", "engine=local"]))
    assert line.differences == ()
    assert line.command == "fedsink simulate mode=central data=mnist engine=local"


@pytest.mark.medium
def test_an_engine_that_was_chosen_is_left_to_be_chosen_again() -> None:
    config = compose_config(["mode=central", "~strategy.optimizer.ema"])
    config["engine"] = {
        "name": "local", "timeout": None, "threads": 1, "device": "cpu", "chosen": "10 clients"
    }  # fmt: skip
    line = CommandLine.of(config)
    assert line.command == "fedsink simulate mode=central data=digits '~strategy.optimizer.ema'"
    assert [d.key for d in line.differences] == ["strategy.optimizer.ema"]


@pytest.mark.medium
def test_differences_say_what_is_usual() -> None:
    line = CommandLine.of(compose_config(["mode=central", "eps=1", "strategy.rows=9"]))
    told = {d.key: (d.value, d.usual) for d in line.differences}
    assert told == {"eps": ("1", "null"), "strategy.rows": ("9", "5")}


@pytest.mark.medium
def test_a_deployment_is_repeated_by_its_own_command() -> None:
    config = compose_config(["engine=deploy", "data.root=null", "mode=ldp", "eps=20"])
    command = CommandLine.of(config).command
    assert command == "fedsink deploy app=APP superlink=SUPERLINK mode=ldp data=digits eps=20"


HOSTILE = {
    "data.root": "/srv/ward 7/pictures",
    "data.clients_file": "/home/ann/users.csv",
    "policy": "~/policy.toml",
    "engine.address": "10.0.0.7:6379",
}


@pytest.mark.medium
def test_no_place_is_told() -> None:
    config = compose_config(["mode=central", "data=mnist", "engine=ray"])
    for key, value in HOSTILE.items():
        *groups, last = key.split(".")
        table = config
        for group in groups:
            table = table[group]
        table[last] = value
    config["generator"]["table"] = {"file": "/root/t"}
    config["generator"]["weights"] = "C:\\Users\\ann\\w.bin"
    config["view"]["files"] = ["/root/a", "b"]
    config["run"] = {"name": "n", "key_file": "/root/.local/state/fedsink/keys/n.key"}
    line = CommandLine.of(config)
    told = json.dumps([line.command, *map(vars, line.differences), shown_settings(config)])
    for part in ("/srv", "ward", "ann", "users.csv", "policy.toml", "10.0.0", "root/", ".key"):
        assert part not in told
    assert shown_settings(config)["data.root"] == HIDDEN
    assert "data.root=FOLDER" in line.command
    assert "policy=FILE" in line.command


@pytest.mark.slow
def test_the_command_is_found_inside_a_task_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["fedsink", "mode=ldp", f"hydra.run.dir={tmp_path}"])
    told = []

    def task(config: Any) -> None:
        told.append(choices("mode"))
        told.append(CommandLine.of(compose_config(["mode=ldp"])).command)
        told.append(config.mode)

    application(task)()
    assert told == [["central", "ldp"], "fedsink simulate mode=ldp data=digits", "ldp"]
