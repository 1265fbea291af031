"""A federation of arrays: what it takes, what it leaves, and that it is the run of the keys."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsink
from fedsink.commands.cli import main
from fedsink.conf.acting import compose_config
from fedsink.configuration import Configuration
from fedsink.data import sources
from fedsink.data.sources import load
from fedsink.data.spec import DataSpec
from fedsink.errors import CheckpointError, DataError, FedsinkError
from fedsink.federation import Federation
from fedsink.models import GENERATORS, Mlp
from fedsink.privacy import (
    ClassSchedule,
    CriticClip,
    PrivacyPlan,
    RecordClip,
    Stream,
    UnprotectedPlan,
)
from fedsink.results.verification import CONSISTENT, UNPROTECTED, verdict_on
from fedsink.server.folder import RunFolder, cautions
from fedsink.simulation.experiment import Experiment
from fedsink.simulation.run_identity import RunIdentity
from fedsink.simulation.simulated_run import start
from fedsink.strategies.methods import settings_of
from fedsink.strategies.recipes import GSWGAN, DPSinkhorn, EntropicLDP, Method

from .conftest import Compose, killed_at, weights

PLAN = PrivacyPlan.solve(rate=0.5, clip=RecordClip(1.0), delta=1e-5, sigma=2.0, rounds=4)
SINKHORN = DPSinkhorn({"name": "mlp", "latent_dim": 2, "hidden": [8]}, PLAN, lam=1.0)
OF_CRITICS = replace(PLAN, clip=CriticClip(1.0, 2))
CRITICS = GSWGAN(SINKHORN.generator, OF_CRITICS, critic={"warm": 1, "batch": 2})
LDP = EntropicLDP(SINKHORN.generator, 30.0, rounds=4, batch=8)
BRIEF = {"pictures": 0, "html": False}
METHODS = {"sinkhorn": SINKHORN, "critics": CRITICS, "ldp": LDP}
IMAGES = Stream(b"images").uniform(40, 1, 6, 6).to(torch.float32)
LABELS = torch.arange(40) % 2


def federation(images: Any = IMAGES, labels: Any = LABELS, **more: Any) -> Federation:
    facts = {"clients": 2, "classes": 2, "nominal_records": 40}
    return Federation(images, labels, **{**facts, **more})


def fit(method: Method, folder: Path, *, of: Federation | None = None, **more: Any) -> fedsink.Run:
    return (of or federation()).fit(method, folder, **{"seed": 3, "report": BRIEF, **more})


# --- the run of the keys -------------------------------------------------------------------------

SMALL = ("engine=local", "clients=3", "report.pictures=0", "report.html=false", "seed=3")
KEYS = {
    "sinkhorn": ("rounds=6", "eps=3", "partition=dirichlet"),
    "shared noise": (
        "rounds=4",
        "capacity=auto",
        "strategy.schedule=joint",
        "noise.share=secure_aggregation",
    ),
    "no labels": ("rounds=6", "conditional=false", "adjacency=replace-one"),
    "unprotected": ("rounds=4", "eps=inf"),
    "critics": ("strategy=gs_wgan", "rounds=2", "strategy.critic.warm=2", "strategy.critics=4"),
    "ldp": ("mode=ldp", "rounds=5"),
    "ldp, gaussian": ("mode=ldp", "mechanism=gaussian", "rounds=3", "eps=20"),
}


def method_of(config: Mapping[str, Any], settings: Any) -> Method:
    """The method of a configuration, with every value stated."""
    generator, chosen = config["generator"], config["strategy"]
    if config["mode"] == "ldp":
        return EntropicLDP(
            generator, settings.plan.total_epsilon, config["mechanism"]["name"],
            delta=config["delta"], map=settings.plan.map,
            label_epsilon=settings.plan.label_epsilon, rounds=settings.rounds,
            batch=settings.batch, finite_batch_factor=settings.finite_batch_factor,
            optimizer=chosen["optimizer"],
        )  # fmt: skip
    more = {"view": {k: v for k, v in config["view"].items() if v is not None},
            "optimizer": chosen["optimizer"], "share": settings.share}  # fmt: skip
    if chosen["name"] == "gs_wgan":
        critic = chosen["critic"]
        return GSWGAN(generator, settings.plan, rows=chosen["rows"], fakes=chosen["fakes"],
                      critic=critic, **more)  # fmt: skip
    return DPSinkhorn(
        generator, settings.plan, lam=chosen["lam"], rows=chosen["rows"],
        history=chosen["history"], **more,
    )  # fmt: skip


@pytest.mark.medium
@pytest.mark.parametrize("name", KEYS)
def test_it_trains_the_generator_of_the_same_run_from_keys(tmp_path: Path, name: str) -> None:
    config = compose_config([*SMALL, *KEYS[name]])
    expected = start(config, tmp_path / "keys")
    data, labelled = load(DataSpec.from_config(config["data"])), config["conditional"]
    partition = {k: v for k, v in config["partition"].items() if k not in ("seed", "keep")}
    of = Federation(
        data.values, data.labels if labelled else None, clients=3,
        classes=config["data"]["classes"] if labelled else None, nominal_records=1437,
        partition=partition,
    )  # fmt: skip
    settings = Experiment.of(config, RunIdentity.fresh(3)).server.strategy
    run = fit(method_of(config, settings), tmp_path / "arrays", of=of)
    assert weights(run.folder) == weights(expected)
    stated = json.loads((expected / "privacy.json").read_text())
    assert run.privacy == stated


@pytest.mark.medium
@pytest.mark.parametrize(
    ("method", "keys"),
    [
        (DPSinkhorn("dct_mlp", PLAN), "generator=dct_mlp"),
        (DPSinkhorn("conv", PLAN), "generator=conv"),
        (DPSinkhorn("mlp", UnprotectedPlan(0.2, 9, "batch", ClassSchedule(3))),
         "generator=mlp clip=batch eps=inf"),
        (GSWGAN("mlp", OF_CRITICS), "strategy=gs_wgan generator=mlp strategy.critics=2"),
        (EntropicLDP("mlp", 20.0), "mode=ldp eps=20"),
        (EntropicLDP("mlp", 12.0, "gaussian"), "mode=ldp mechanism=gaussian eps=12"),
        (DPSinkhorn("mlp", PLAN), "records=points"),
        (GSWGAN("mlp", OF_CRITICS), "records=points strategy=gs_wgan strategy.critics=2"),
        (EntropicLDP("mlp", 20.0), "records=points mode=ldp eps=20"),
    ],
)  # fmt: skip
def test_what_is_left_out_is_what_simulate_would_take(method: Method, keys: str) -> None:
    shape = (3,) if "points" in keys else (1, 28, 28)
    typed = ["data=image_folder", "data.root=x", f"data.shape={list(shape)}",
             "data.classes=[a,b,c]", "data.nominal_records=6000", "clients=4"]  # fmt: skip
    config = compose_config([*typed, *keys.split(), "rounds=9"])
    expected: Any = settings_of(Configuration.read(config), "run")
    data = DataSpec("arrays", shape, tuple("abc"), 6000)
    found: Any = method.settings(data, 4, "run")
    if isinstance(method, EntropicLDP):
        expected = replace(expected, rounds=found.rounds)
    else:
        expected = replace(expected, plan=found.plan)
    assert found == expected
    name, options = method.architecture(data, 4)
    stated = {key: value for key, value in config["generator"].items() if key != "name"}
    built = [GENERATORS.build(name, o, shape, 3, generator=None) for o in (options, stated)]
    assert [g.options for g in built] == [built[0].options] * 2


# --- what it takes -------------------------------------------------------------------------------


def bad(**changed: Any) -> Callable[[Path], object]:
    """A fit with some arguments of the federation changed."""
    return lambda folder: fit(SINKHORN, folder, of=federation(**changed))


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no numbers": (bad(images="pictures"), "images is a NumPy array or a tensor of numbers"),
    "one record": (bad(images=IMAGES[0, 0, 0]), "images is (N, channels, height, width)"),
    "no records": (bad(images=IMAGES[:0], labels=LABELS[:0]), "received the shape (0, 1, 6, 6)"),
    "channels last": (bad(images=IMAGES.permute(0, 2, 3, 1)), "images has its channels last"),
    "bytes as floats": (bad(images=IMAGES * 255), "outside the public range [0, 1]: say range="),
    "below black": (bad(images=IMAGES - 0.5), "They are not clipped"),
    "NaN": (bad(images=IMAGES.where(IMAGES > 0.5, torch.nan)), "values are not finite"),
    "12 bits": (bad(images=(IMAGES * 4095).to(torch.int16)), "say range=(black, white)"),
    "beyond white": (bad(images=IMAGES * 5000, range=(0, 4095)), "the public range [0, 4095]"),
    "no range": (bad(range=(1, 1)), "range is (black, white), two numbers of which the second"),
    "labels by name": (bad(labels=["a"] * 40), "labels is a NumPy array or a tensor of numbers"),
    "labels in parts": (bad(labels=LABELS / 2), "labels is a whole number for each of 40 records"),
    "too few labels": (bad(labels=LABELS[:9]), "received torch.int64 of the shape (9,)"),
    "a label too many": (bad(labels=LABELS + 1), "labels holds 1 to 2, and the 2 classes are 0"),
    "no class": (bad(classes=0), "classes must be a whole number of at least 1, not 0"),
    "classes alone": (bad(labels=None), "classes= names what labels tell apart"),
    "too many records": (bad(nominal_records=39), "images holds 40 records, more than the public"),
    "users in parts": (bad(users=np.ones(40) / 2), "users is a whole number or a name for each"),
    "too few users": (bad(users=[1, 2]), "users is a whole number or a name for each of 40"),
    "no users": (bad(partition="by_user"), "partition=by_user deals whole users"),
    "too many clients": (bad(clients=41), "41 clients cannot share 40 records"),
    "no partition": (bad(partition="fair"), "'fair' is unknown; choose one of"),
    "flower": (bad(engine="flower"), "engine is local, ray or auto, not 'flower'."),
    "no engine": (bad(engine="cloud"), "engine is local, ray or auto, not 'cloud'."),
    "a capacity beyond the records": (
        lambda to: fit(DPSinkhorn("mlp", replace(PLAN, capacity=41, nominal_records=10)), to),
        "capacity=41 is more than all of the 40 nominal records",
    ),
    "no such part of a report": (
        lambda to: fit(SINKHORN, to, report={"picture": 1}),
        "Unknown key report.picture; there are",
    ),
    "no observation": (
        lambda to: fit(SINKHORN, to, observation={"latent_range": 0}), "latent_range must be",
    ),
    "no method": (lambda to: fit("sinkhorn", to), "method is a DPSinkhorn, GSWGAN or EntropicLDP"),  # type: ignore[arg-type]
    "no plan": (lambda to: fit(DPSinkhorn("mlp", 3.0), to), "plan is a PrivacyPlan"),  # type: ignore[arg-type]
    "no generator": (lambda to: fit(replace(SINKHORN, generator="gan"), to), "generator='gan' is"),
    "an option": (
        lambda to: fit(replace(SINKHORN, generator={"name": "mlp", "depth": 3}), to),
        "the generator mlp has no option 'depth'",
    ),
    "another shape": (
        lambda to: fit(replace(SINKHORN, generator=Mlp((1, 8, 8), 2)), to),
        "generator makes 2 classes of the shape [1, 8, 8], and the records have 2 of [1, 6, 6]",
    ),
    "lambda": (lambda to: fit(replace(SINKHORN, lam=0.0), to), "lam must be a positive number"),
    "rows": (lambda to: fit(replace(SINKHORN, rows=0), to), "rows must be a whole number"),
    "a clip of critics": (lambda to: fit(replace(SINKHORN, plan=OF_CRITICS), to), "critic"),
    "no critics": (lambda to: fit(replace(CRITICS, plan=PLAN), to), "its plan clip=CriticClip"),
    "epsilon": (lambda to: fit(replace(LDP, epsilon=-1.0), to), "epsilon must be a positive"),
    "a user": (
        lambda to: fit(replace(CRITICS, plan=replace(OF_CRITICS, adjacency="user")), to),
        "The plan protects users, and the federation was not told whose records these are",
    ),
    "secure with a seed": (lambda to: fit(SINKHORN, to, noise="secure"), "leave out seed=3"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_one_sentence_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    act, words = REFUSED[name]
    with pytest.raises(FedsinkError) as told:
        act(tmp_path / "run")
    sentence = str(told.value)
    assert words in sentence
    assert "\n" not in sentence
    assert not re.search(r"\b(strategy|data|noise|engine)\.", sentence)
    assert not (tmp_path / "run").exists()


def test_values_are_those_of_the_range() -> None:
    of_bytes = (IMAGES * 255).round().to(torch.uint8)
    taken, _ = federation(of_bytes)._records.take(torch.arange(40))
    assert torch.equal(taken, of_bytes.to(torch.float32) / 255)
    for images in (of_bytes.numpy().astype(np.int16), of_bytes.to(torch.float64)[:, 0]):
        again, _ = federation(images, range=(0, 255))._records.take(torch.arange(40))
        torch.testing.assert_close(again, taken)
    wide, _ = federation(IMAGES * 8 - 4, range=(-4, 4))._records.take(torch.arange(40))
    torch.testing.assert_close(wide, IMAGES, rtol=0, atol=1e-6)
    points, _ = federation(torch.ones(40, 3) * 7)._records.take(torch.arange(40))
    assert torch.equal(points, torch.ones(40, 3) * 7)  # points keep their range


def test_the_records_of_a_user_stay_together_and_a_name_is_a_number() -> None:
    names = [f"user {number % 8}" for number in range(40)]
    by_name = federation(users=names, partition="by_user")
    by_number = federation(users=by_name._records.users, partition="by_user")
    assert len(set(by_name._records.users.tolist())) == 8  # type: ignore[union-attr]
    assert by_name._records.digest() == by_number._records.digest()


@pytest.mark.medium
def test_users_are_protected_where_they_are_known(tmp_path: Path) -> None:
    users = torch.arange(40) % 8
    plan = replace(OF_CRITICS, adjacency="user")
    of = federation(users=users, partition="by_user")
    run = fit(replace(CRITICS, plan=plan), tmp_path / "run", of=of)
    assert run.privacy["unit"] == "user"
    assert [client["records"] for client in partition_of(run).values()] == [20, 20]


def test_a_user_is_never_dealt_to_several_clients_where_users_are_protected(
    tmp_path: Path,
) -> None:
    users = torch.arange(40) % 8
    method = replace(CRITICS, plan=replace(OF_CRITICS, adjacency="user"))
    for scheme in ("iid", {"name": "dirichlet", "alpha": 1.0}, "by_label"):
        with pytest.raises(DataError, match="to several clients: choose partition=by_user"):
            fit(method, tmp_path / "run", of=federation(users=users, partition=scheme))
    assert not (tmp_path / "run").exists()
    one = federation(users=users, partition="iid", clients=1)
    assert fit(method, tmp_path / "one", of=one).privacy["unit"] == "user"


def partition_of(run: fedsink.Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.folder / "partition.json").read_text())["clients"]
    return found


@pytest.mark.medium
@pytest.mark.parametrize("method", [SINKHORN, LDP], ids=["central", "ldp"])
def test_records_without_labels_have_one_class(tmp_path: Path, method: Method) -> None:
    run = fit(method, tmp_path / "run", of=federation(labels=None, classes=None))
    images, labels = run.sample(7)
    assert images.shape == (7, 1, 6, 6)
    assert not labels.any()
    assert run.privacy["plan"].get("label_epsilon") is None


# --- what it leaves ------------------------------------------------------------------------------


@pytest.mark.medium
def test_what_is_read_off_the_arrays_is_assumed_public(tmp_path: Path) -> None:
    left_out = {"classes": None, "nominal_records": None}
    for name, changed in (
        ("both", left_out),
        ("classes", {"classes": None}),
        ("records", {"nominal_records": None}),
        ("none", {}),
        ("unlabelled", {**left_out, "labels": None}),
    ):
        run = fit(SINKHORN, tmp_path / name, of=federation(**changed))
        stated = run.privacy.get("assumed_public", {"facts": []})
        assert (
            stated["facts"] == [key for key in changed if key in left_out][-2:]
            if name != ("unlabelled")
            else ["nominal_records"]
        )
        verdict = verdict_on(run.folder)
        assert not verdict.reasons
        assert verdict.verdict == UNPROTECTED  # by the seed
        told = "that what was read off the records is public"
        assert (told in verdict.unvouched) == bool(stated["facts"])
        minded = f"Assumed public: {', '.join(stated['facts'])}. "
        assert [minded in line for line in cautions(run.privacy, run.config)] == (
            [True] if stated["facts"] else []
        )


@pytest.mark.medium
def test_secret_noise_leaves_no_trace_of_the_arrays(tmp_path: Path, state: Path) -> None:
    of = federation()
    first, second = (fit(SINKHORN, tmp_path / str(n), of=of, seed=None) for n in range(2))
    assert first.privacy["noise"] == "secret"
    assert verdict_on(first.folder).verdict == CONSISTENT
    digest = of._records.digest()
    for path in first.folder.rglob("*"):
        assert path.is_dir() or digest.encode() not in path.read_bytes(), path
    sealed = [run.config["run"]["arrays"] for run in (first, second)]
    assert sealed[0] != sealed[1]  # so that two runs do not tell that their records are equal
    assert hashlib.sha256(digest.encode()).hexdigest() not in sealed
    assert not [path for path in state.rglob("*") if path.is_file()]  # keys go with the run
    assert not sources._GIVEN


def ended(*line: str) -> object:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as end:
        main(list(line))
    return end.value.code


@pytest.mark.medium
def test_a_run_has_a_report_and_the_commands_say_what_they_cannot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = federation()
    run = fit(SINKHORN, tmp_path / "run", of=of, report={"pictures": 1})
    page = (run.folder / "report.html").read_text()
    assert "DP-Sinkhorn" in page
    assert "Clipped, noised gradients of generated records" in page
    assert list(run.pictures) == [0, 2, 4]
    place = f"run={run.folder}"
    unfinished = tmp_path / "stopped"
    killed_at(2, lambda: fit(SINKHORN, unfinished))
    commands = ("report", f"sample n=3 out={tmp_path}/x.npz", "verify", "card")
    for command, *more in map(str.split, commands):
        assert ended(command, place, *more) == int(command == "verify"), command  # by the seed
    assert ended("compare", f"run=[{run.folder},{unfinished}]", f"out={tmp_path}/x.html") == 0
    for line in (["evaluate", place], ["simulate", f"resume={unfinished}"]):
        capsys.readouterr()
        assert ended(*line) == 2
        assert "there fedsink.Federation continues it, by the same fit" in capsys.readouterr().err
    with pytest.raises(FedsinkError, match="arrays of a Python program"):
        fedsink.resume(unfinished)


@pytest.mark.medium
def test_it_is_tested_on_arrays(tmp_path: Path) -> None:
    data = load(DataSpec.from_config(compose_config([])["data"]))
    first, rest = data.take(torch.arange(1100)), data.take(torch.arange(1100, 1437))
    of = Federation(*first, classes=10, nominal_records=1437, clients=2)
    run = fit(DPSinkhorn("dct_mlp", PLAN), tmp_path / "run", of=of)
    figures = of.evaluate(run, *rest, n=100).figures
    assert figures["n"] == 100
    assert run.evaluations
    with pytest.raises(FedsinkError, match="was not fitted to this federation"):
        federation().evaluate(run, IMAGES, LABELS)


@pytest.mark.medium
def test_it_needs_no_library_of_the_commands(tmp_path: Path) -> None:
    """A lean install has neither Hydra nor what draws a report: the run is complete without it."""
    code = """
    import sys
    lacking = "hydra", "omegaconf", "sklearn", "matplotlib", "torchvision"
    sys.modules.update(dict.fromkeys(lacking))
    import torch
    from fedsink.federation import Federation
    from fedsink.privacy import PrivacyPlan, RecordClip
    from fedsink.strategies.recipes import DPSinkhorn
    plan = PrivacyPlan.solve(rate=0.5, clip=RecordClip(1.0), delta=1e-5, sigma=2.0, rounds=2)
    of = Federation(torch.rand(20, 1, 6, 6), clients=2)
    run = of.fit(DPSinkhorn("mlp", plan, lam=1.0), sys.argv[1])
    assert "ray" not in sys.modules
    print(run.finished, len(run.sample(4)[0]))
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "True 4\n"
    assert re.search(r"report\.html needs the (Python )?package \w+", done.stderr)


# --- stop and continue ---------------------------------------------------------------------------


def interrupted(method: Method, folder: Path, **more: Any) -> None:
    """A fit that Ctrl-C stops in its second round."""
    log = RunFolder.log

    def logged(self: RunFolder, record: dict[str, Any]) -> None:
        log(self, record)
        if record["round"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "log", logged)
        with pytest.raises(KeyboardInterrupt, match="Continue with the same fit") as stopped:
            fit(method, folder, **more)
    assert repr(str(folder)) in str(stopped.value)
    with pytest.raises(CheckpointError, match=r"continue with the same fedsink\.Fed"):
        fedsink.load(folder).sample(1)


@pytest.mark.parametrize("name", METHODS)
def test_a_fit_that_was_stopped_is_continued_by_the_same_call(tmp_path: Path, name: str) -> None:
    method = METHODS[name]
    whole = fit(method, tmp_path / "whole")
    interrupted(method, tmp_path / "run")
    run = fit(method, tmp_path / "run")
    assert weights(run.folder) == weights(whole.folder)
    assert [line["round"] for line in run.metrics] == [1, 2, 3, 4]
    killed_at(3, lambda: fit(method, tmp_path / "killed"))
    assert weights(fit(method, tmp_path / "killed").folder) == weights(whole.folder)


@pytest.mark.medium
@pytest.mark.parametrize("seed", [3, None])
def test_only_the_same_arrays_and_arguments_continue_a_run(
    tmp_path: Path, seed: int | None
) -> None:
    folder = tmp_path / "run"
    interrupted(SINKHORN, folder, seed=seed)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    other = IMAGES.clone()
    other[7, 0, 2, 2] = 0.5
    users = torch.zeros(40, dtype=torch.int64)
    told = {
        "began with other arrays": (federation(other), federation(labels=1 - LABELS),
                                    federation(users=users)),
        "began with clients=2": (federation(clients=3),),
        "began with partition.": (federation(partition="unequal"), federation(partition_seed=1)),
        "began with data.nominal_records=40": (federation(nominal_records=41),),
        "began with data.classes": (federation(classes=["a", "b"]),),
    }  # fmt: skip
    for words, federations in told.items():
        for one in federations:
            with pytest.raises(CheckpointError, match=words):
                fit(SINKHORN, folder, of=one, seed=seed)
    plan = replace(PLAN, noise_multiplier=1.0)
    for method in (replace(SINKHORN, lam=2.0), replace(SINKHORN, plan=plan), CRITICS, LDP):
        with pytest.raises(CheckpointError, match="this fit has"):
            fit(method, folder, seed=seed)
    with pytest.raises(CheckpointError, match="began with seed"):
        fit(SINKHORN, folder, seed=4)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    fit(SINKHORN, folder, seed=seed)
    with pytest.raises(FedsinkError, match=r"has ended: open it by fedsink\.load"):
        fit(SINKHORN, folder, seed=seed)


@pytest.mark.medium
def test_a_run_of_the_commands_is_no_federations(composed: Compose, tmp_path: Path) -> None:
    killed_at(10, lambda: start(composed("seed=3"), tmp_path / "run"))
    with pytest.raises(FedsinkError, match=r"is continued by fedsink\.resume"):
        fit(SINKHORN, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_ray_trains_what_this_process_trains(tmp_path: Path, name: str) -> None:
    on_ray = federation(clients=4, engine={"name": "ray", "actors": 2})
    here = fit(METHODS[name], tmp_path / "local", of=federation(clients=4))
    there = fit(METHODS[name], tmp_path / "ray", of=on_ray)
    for (key, values), (same, others) in zip(
        here.generator.state_dict().items(), there.generator.state_dict().items(), strict=True
    ):
        assert key == same
        torch.testing.assert_close(others, values, rtol=0, atol=1e-6)
    assert here.privacy == there.privacy
    assert there.config["engine"]["name"] == "ray"
    assert asdict(on_ray.data)["root"] not in (there.folder / "config.yaml").read_text()
