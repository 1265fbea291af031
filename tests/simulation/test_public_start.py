"""Starts from public data: what a run says of them, and which generators are none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsink.conf.acting import compose_config
from fedsink.data.sources import load
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, FedsinkError
from fedsink.models import load as load_generator
from fedsink.server.folder import RunFolder, note_sums, sha256_of, store_config, stored_config
from fedsink.simulation import simulated_run
from fedsink.simulation.simulated_run import resume, start

from .conftest import killed_at, weights

SHORT = (
    "rounds=2", "clients=2", "seed=0", "engine=local", "report.pictures=0", "report.html=false",
)  # fmt: skip
PUBLIC = ("public=true", "clients=1", "data.name=glyphs", "data.nominal_records=20000")
CRITICS = "strategy=gs_wgan strategy.critics=2 strategy.critic.steps=1 strategy.critic.warm=1"
METHODS = {
    "sinkhorn": ("", ""),
    "joint": ("strategy.schedule=joint", "noise.share=secure_aggregation"),
    "client": ("rate=1.0", "adjacency=client capacity=1437 eps=1000"),
    "published": ("clip=batch strategy.lam=0.5 strategy.self_term=semi_debiased", ""),
    "gs_wgan": (CRITICS, ""),
    "gs_wgan_published": (
        f"{CRITICS} strategy.critics=1 strategy.critic.mismatch=0.0",
        "clients=1 strategy.published=true strategy.row_sigma=1.07",
    ),
    "parameter_gradient": ("strategy=parameter_gradient", ""),
    "unconditional": ("conditional=false", ""),
    "ldp_laplace": ("mode=ldp", ""),
    "ldp_gaussian": ("mode=ldp mechanism=gaussian", ""),
    "shuffled": ("mode=ldp", "shuffler=trusted eps=2"),
}
"""Keys of the start and of the run, and keys of the run alone."""


def composed(*keys: str) -> dict[str, Any]:
    typed = {key.partition("=")[0]: key for key in (*SHORT, *keys)}
    return compose_config(list(typed.values()))


def of_public(*keys: str) -> dict[str, Any]:
    return composed(*PUBLIC, "eps=35" if "mode=ldp" in keys else "eps=inf", *keys)


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A start that no test changes."""
    return start(of_public(), tmp_path_factory.mktemp("glyphs") / "run")


@pytest.fixture
def own(glyphs: Path, tmp_path: Path) -> Path:
    """The same for a test that changes it."""
    copy: Path = shutil.copytree(glyphs, tmp_path / "own")
    return copy


def stated(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "privacy.json").read_text())
    return read


def refused(tmp_path: Path, *keys: str) -> str:
    with pytest.raises(FedsinkError) as error:
        start(composed(*keys), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    return str(error.value)


@pytest.mark.medium
@pytest.mark.quick("sinkhorn")
@pytest.mark.parametrize("method", METHODS)
def test_every_method_starts_from_public_data_at_no_epsilon(method: str, tmp_path: Path) -> None:
    both, alone = (keys.split() for keys in METHODS[method])
    source = start(of_public(*both), tmp_path / "source")
    plain = start(composed(*both, *alone), tmp_path / "plain")
    started = start(composed(*both, *alone, f"start={source}"), tmp_path / "started")
    assert weights(started) != weights(plain)
    promise = stated(started)
    said = promise.pop("start")
    assert promise == stated(plain)  # ε and everything else
    drawn = load(DataSpec("glyphs", (1, 8, 8), tuple("0123456789"), 20_000))
    assert said["records"] == len(drawn)
    assert said["data_sha256"] == drawn.digest()
    assert said["generator_sha256"] == sha256_of(source / "generator.safetensors")
    assert "vouches for: no ε was spent" in said["meaning"]
    inner = stated(source)
    assert inner["public"] == {
        key: said[key] for key in ("data", "records", "classes", "data_sha256", "generator_sha256")
    }
    assert ("map" in said) == (both[:1] == ["mode=ldp"])
    assert said.get("map") == inner.get("map")


@pytest.mark.medium
@pytest.mark.parametrize(
    "keys", [("data=digits",), ("mode=ldp", "data=half_circle"), ("data=shapes",)]
)
def test_records_of_the_clients_are_not_public(keys: Sequence[str], tmp_path: Path) -> None:
    source = start(composed("public=true", "clients=1", *keys), tmp_path / "source")
    said = refused(tmp_path, f"start={source}", *keys)
    assert "of the start's records are records of the clients, bit by bit" in said
    (source / "config.yaml").unlink()  # the data are not at hand any more
    start(composed(f"start={source}", *keys), tmp_path / "again")


@pytest.mark.medium
def test_a_start_of_an_earlier_version_is_compared_as_well(own: Path, tmp_path: Path) -> None:
    """It had its source's classes apart, under `relabel`, and the run's in their place."""
    folder = RunFolder(own)
    classes = composed()["data"]["classes"]
    relabel = {"classes": classes, "taken": classes}
    old = {**composed()["data"], "classes": ["a"], "relabel": relabel}
    store_config(folder, stored_config(folder) | {"data": old, "public": {"data": "digits"}})
    assert "are records of the clients, bit by bit" in refused(tmp_path, f"start={own}")


def test_a_hundredth_of_the_clients_records_may_be_public_however_many_are() -> None:
    """A large public set is no excuse: what counts is the part of the private records in it."""
    private = DataSpec.from_config(composed()["data"])
    held = sorted(simulated_run._rows(private))
    others = {number.to_bytes(16) for number in range(100 * len(held))}
    allowed = len(held) // 100
    simulated_run._refuse_shared(others.union(held[:allowed]), private)
    for many in (others, set()):
        with pytest.raises(ConfigError, match=f"{allowed + 1} of the start's records are records"):
            simulated_run._refuse_shared(many.union(held[: allowed + 1]), private)


@pytest.mark.slow
def test_round_0_has_the_weights_of_the_start(
    glyphs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = []
    monkeypatch.setattr(
        "fedsink.server.loop.snapshot",
        lambda strategy, folder, classes: (
            first.append((strategy.round, deepcopy(strategy.generator.state_dict()))) or folder.path
        ),
    )
    start(composed(f"start={glyphs}"), tmp_path / "run")
    began = next(state for round, state in first if round == 0)
    for name, tensor in load_generator(glyphs).state_dict().items():
        assert torch.equal(began[name], tensor)


@pytest.mark.medium
def test_a_run_that_was_killed_continues_without_the_folder_of_its_start(
    own: Path, tmp_path: Path
) -> None:
    keys = composed(f"start={own}", "report.checkpoint_seconds=0")
    whole = start(keys, tmp_path / "whole")
    killed_at(1, lambda: start(keys, tmp_path / "killed"))
    own.rename(tmp_path / "gone")
    assert weights(resume(tmp_path / "killed")) == weights(whole)
    assert stated(tmp_path / "killed") == stated(whole)
    again = start(composed(f"start={whole / 'start'}"), tmp_path / "again")  # its own copy
    assert stated(again) == stated(whole)


@pytest.mark.medium
@pytest.mark.quick("ldp")
@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["mode=ldp", "eps=20"], "its ε composes with no other"),
        (["clients=20", "noise.share=secure_aggregation"], "its ε composes with no other"),
        (["eps=inf"], "names a plan that protects nothing"),
    ],
    ids=["ldp", "shared", "unprotected"],
)
def test_a_private_run_whose_epsilon_composes_with_no_other_is_no_start(
    keys: Sequence[str], words: str, tmp_path: Path
) -> None:
    """Those of the central mode are `test_private_start.py`'s."""
    private = start(composed(*keys), tmp_path / "private")
    assert "public" not in stated(private)
    said = refused(tmp_path, f"start={private}")
    assert f"start={private}" in said
    assert words in said


@pytest.mark.medium
@pytest.mark.parametrize("sums", [False, True])
def test_a_private_generator_over_a_public_one_is_no_start(
    own: Path, tmp_path: Path, sums: bool
) -> None:
    """By the hash in privacy.json: the files' own sums can be renewed, or be gone."""
    private = start(composed(), tmp_path / "private")
    for name in ("generator.safetensors", "generator.json"):
        (own / name).write_bytes((private / name).read_bytes())
    assert f"{own / 'generator.safetensors'} has another SHA-256" in refused(
        tmp_path, f"start={own}"
    )
    (own / "SHA256SUMS").unlink()
    if sums:
        note_sums(own)
    said = refused(tmp_path, f"start={own}")
    assert "generator.safetensors is not what its privacy.json says was trained on public" in said


@pytest.mark.medium
@pytest.mark.parametrize("key", ["start=/elsewhere", "policy=/elsewhere.toml"])
def test_a_private_run_does_not_call_itself_public(key: str, tmp_path: Path) -> None:
    said = refused(tmp_path, "seed=null", "public=true", key)
    assert "it goes without policy= and start=, and here are" in said
    assert key.partition("=")[2] in said


@pytest.mark.medium
def test_what_is_no_start_is_named(own: Path, tmp_path: Path) -> None:
    assert "has no readable privacy.json" in refused(tmp_path, f"start={tmp_path}")
    assert "its generator is dct_mlp, and this run's mlp" in refused(
        tmp_path, f"start={own}", "generator=mlp"
    )
    assert "its number of classes is 10, and this run's 1" in refused(
        tmp_path, f"start={own}", "conditional=false"
    )
    privacy = (own / "privacy.json").read_text()
    (own / "privacy.json").write_text(privacy.replace("20000", "20001"))
    assert "privacy.json has another SHA-256 than" in refused(tmp_path, f"start={own}")
    (own / "privacy.json").write_text(privacy)
    content = bytearray(weights(own))
    content[-1] ^= 1
    (own / "generator.safetensors").write_bytes(bytes(content))
    assert "has another SHA-256 than SHA256SUMS says" in refused(tmp_path, f"start={own}")
    (own / "generator.safetensors").unlink()
    assert "its run has not ended" in refused(tmp_path, f"start={own}")


@pytest.mark.medium
def test_a_start_that_draws_one_picture_is_refused_before_round_1(tmp_path: Path) -> None:
    steps = ("strategy.optimizer.lr=1.0", "strategy.optimizer.warmup=0", "rounds=20")
    black = start(of_public("generator=conv", *steps), tmp_path / "black")
    assert "draws the same picture for every class and latent" in refused(
        tmp_path, f"start={black}", "generator=conv"
    )


@pytest.mark.medium
def test_a_run_within_a_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"start=public is gone.* fedsink simulate public=true"):
        compose_config(["start=public"])
    with pytest.raises(ConfigError, match="start=public is gone"):
        start(composed() | {"start": "public"}, tmp_path / "stored")
    relabelled = composed()
    relabelled["data"]["relabel"] = {"classes": relabelled["data"]["classes"], "taken": None}
    with pytest.raises(ConfigError, match=r"data\.relabel is gone: data\.classes names"):
        start(relabelled, tmp_path / "relabelled")
