"""Starts from public data: what trains them, what privacy.json says, and what they never see."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsink.conf.acting import compose_config
from fedsink.data.sources import load
from fedsink.data.sources.shapes import OTHER_FORMS, TONES
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, FedsinkError
from fedsink.models import load as load_generator
from fedsink.server.folder import RunFolder, note_sums, sha256_of, store_config, stored_config
from fedsink.simulation import public_start
from fedsink.simulation.simulated_run import resume, start

from ..support import picture_files

SHORT = (
    "rounds=2",
    "clients=2",
    "seed=0",
    "engine=local",
    "report.pictures=0",
    "report.html=false",
)
CRITICS = "strategy=gs_wgan strategy.critics=2 strategy.critic.steps=1 strategy.critic.warm=1"
METHODS = {
    "sinkhorn": "mode=central",
    "joint": "mode=central strategy.schedule=joint noise.share=secure_aggregation",
    "client": "mode=central adjacency=client rate=1.0 capacity=2000 eps=1000",
    "published": "mode=central clip=batch strategy.lam=0.5 strategy.self_term=semi_debiased",
    "gs_wgan": f"mode=central {CRITICS}",
    "gs_wgan_published": f"mode=central {CRITICS} clients=1 strategy.critics=1 "
    "strategy.published=true strategy.row_sigma=1.07 strategy.critic.mismatch=0.0",
    "parameter_gradient": "mode=central strategy=parameter_gradient",
    "unconditional": "mode=central conditional=false",
    "ldp_laplace": "mode=ldp",
    "ldp_gaussian": "mode=ldp mechanism=gaussian",
    "shuffled": "mode=ldp shuffler=trusted eps=2",
}


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def composed(*keys: str) -> dict[str, Any]:
    typed = {key.partition("=")[0] for key in keys}
    return compose_config([*(k for k in SHORT if k.partition("=")[0] not in typed), *keys])


def stated(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "privacy.json").read_text())
    return read


def weights(folder: Path) -> bytes:
    return (folder / "generator.safetensors").read_bytes()


@pytest.mark.medium
@pytest.mark.quick("sinkhorn")
@pytest.mark.parametrize("method", METHODS)
def test_every_method_starts_from_public_data_at_no_epsilon(method: str, tmp_path: Path) -> None:
    keys = METHODS[method].split()
    plain = start(composed(*keys), tmp_path / "plain")
    started = start(composed(*keys, "start=public"), tmp_path / "started")
    assert weights(started) != weights(plain)
    promise = stated(started)
    said = promise.pop("start")
    assert promise == stated(plain)  # ε and everything else
    glyphs = load(DataSpec("glyphs", (1, 8, 8), tuple("0123456789"), 20_000))
    assert said["records"] == len(glyphs)
    assert said["data_sha256"] == glyphs.digest()
    assert said["generator_sha256"] == sha256_of(started / "start" / "generator.safetensors")
    assert "vouches for: no ε was spent" in said["meaning"]
    inner = stated(started / "start")
    assert inner["public"] == {
        key: said[key] for key in ("data", "records", "classes", "data_sha256", "generator_sha256")
    }
    if keys[0] == "mode=central":
        assert inner["epsilon"] is None
        assert inner["sigma"] == 0.0
    else:
        assert inner["epsilon"] == 35.0
        assert said["map"] == inner["map"]


@pytest.mark.parametrize(("eps", "started"), [(2.0, 35.0), (60.0, 60.0)])
def test_a_local_start_has_little_noise_and_never_more_than_the_run(
    eps: float, started: float
) -> None:
    config = composed("mode=ldp", f"eps={eps}", "start=public")
    assert public_start.public_run(config)["eps"] == started


@pytest.mark.medium
@pytest.mark.parametrize(
    "keys",
    [
        ("public.data=digits",),
        ("mode=ldp", "data=half_circle", "public.data=half_circle"),
        ("data=shapes", "public.data=shapes"),
    ],
)
def test_records_of_the_clients_are_not_public(keys: Sequence[str], tmp_path: Path) -> None:
    said = refused(tmp_path, "start=public", *keys)
    assert "of the public records are records of the clients, bit by bit" in said


def test_a_hundredth_of_the_clients_records_may_be_public_however_many_are() -> None:
    """A large public set is no excuse: what counts is the part of the private records in it."""
    private = composed()["data"]
    held = sorted(public_start._rows(private))
    others = {number.to_bytes(16) for number in range(100 * len(held))}
    allowed = len(held) // 100
    public_start._refuse_private(others.union(held[:allowed]), private)
    for many in (others, set()):
        with pytest.raises(ConfigError, match=f"{allowed + 1} of the public records are records"):
            public_start._refuse_private(many.union(held[: allowed + 1]), private)


@pytest.mark.medium
def test_the_start_is_the_same_whatever_the_private_data_are(tmp_path: Path) -> None:
    for seed, name in enumerate(("one", "other")):
        picture_files.write_classes(tmp_path / name, ["x", "y"], seed=seed)
    folders = [
        start(
            composed(
                *("data=image_folder", f"data.root={tmp_path / name}", "data.classes=[x,y]"),
                *("data.nominal_records=60", "data.shape=[1,8,8]", f"clients={clients}"),
                *("start=public", "public.classes=[Aa,7]"),
            ),
            tmp_path / f"run-{name}",
        )
        for name, clients in (("one", 2), ("other", 3))
    ]
    assert weights(folders[0] / "start") == weights(folders[1] / "start")
    assert weights(folders[0]) != weights(folders[1])
    assert stated(folders[0])["start"]["classes"] == ["Aa", "7"]


@pytest.mark.slow
def test_round_0_has_the_weights_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = []
    monkeypatch.setattr(
        "fedsink.server.loop.snapshot",
        lambda strategy, folder, classes: (
            first.append((folder.path, strategy.round, deepcopy(strategy.generator.state_dict())))
            or folder.path
        ),
    )
    folder = start(composed("start=public"), tmp_path / "run")
    began = next(state for path, round, state in first if path == folder and round == 0)
    for name, tensor in load_generator(folder / "start").state_dict().items():
        assert torch.equal(began[name], tensor)


@pytest.mark.slow
@pytest.mark.parametrize("before", ["start", "run"])
def test_a_run_that_was_killed_continues_with_its_start(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Ends a run like kill -9."""

    keys = composed("start=public", "report.checkpoint_seconds=0")
    whole = start(keys, tmp_path / "whole")
    log = RunFolder.log

    def logged(folder: RunFolder, record: dict[str, Any]) -> None:
        log(folder, record)
        if record["round"] == 1 and (folder.path.name == "start") == (before == "start"):
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "log", logged)
        with pytest.raises(Killed):
            start(keys, tmp_path / "killed")
    if before == "start":  # and like a kill before its config.yaml
        (tmp_path / "killed" / "start" / "config.yaml").unlink()
    assert weights(resume(tmp_path / "killed")) == weights(whole)
    assert stated(tmp_path / "killed") == stated(whole)


@pytest.mark.slow
def test_a_start_serves_other_runs(tmp_path: Path) -> None:
    first = start(composed("start=public"), tmp_path / "first")
    again = start(composed(f"start={first / 'start'}"), tmp_path / "again")
    assert weights(again) == weights(first)
    assert stated(again) == stated(first)
    (first / "start").rename(tmp_path / "gone")
    assert weights(resume(again)) == weights(first)


def refused(tmp_path: Path, *keys: str) -> str:
    with pytest.raises(FedsinkError) as error:
        start(composed(*keys), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    return str(error.value)


@pytest.mark.medium
@pytest.mark.quick("central")
@pytest.mark.parametrize(
    ("keys", "spent"),
    [
        (["eps=3"], "ε = 2.99"),
        (["mode=ldp", "eps=20"], "ε = 20"),
        (["eps=inf"], "nothing protects them"),
        (["start=public"], "ε = 9.99"),
    ],
    ids=["central", "ldp", "unprotected", "started"],
)
def test_a_private_run_is_no_start(keys: Sequence[str], spent: str, tmp_path: Path) -> None:
    private = start(composed(*keys), tmp_path / "private")
    said = refused(tmp_path, f"start={private}")
    assert f"start={private} was trained on private data" in said
    assert spent in said
    assert ("start=" + str(private / "start") in said) == ("start=public" in keys)


@pytest.mark.medium
@pytest.mark.parametrize("sums", [False, True])
def test_a_private_generator_over_a_public_one_is_no_start(tmp_path: Path, sums: bool) -> None:
    """By the hash in privacy.json: the files' own sums can be renewed, or be gone."""
    first = start(composed("start=public"), tmp_path / "first")
    adopted = start(composed(f"start={first / 'start'}"), tmp_path / "again") / "start"
    for name in ("generator.safetensors", "generator.json"):
        (adopted / name).write_bytes((first / name).read_bytes())  # of private data
    assert f"{adopted / 'generator.safetensors'} has another SHA-256" in refused(
        tmp_path, f"start={adopted}"
    )
    (adopted / "SHA256SUMS").unlink()
    if sums:
        note_sums(adopted)
    said = refused(tmp_path, f"start={adopted}")
    assert "generator.safetensors is not what its privacy.json says was trained on public" in said


@pytest.mark.medium
def test_a_private_run_does_not_call_itself_public(tmp_path: Path) -> None:
    relabelled = composed("eps=3")
    classes = relabelled["data"]["classes"]
    relabelled["data"]["relabel"] = {"classes": classes, "taken": None}
    with pytest.raises(
        ConfigError, match=r"data\.relabel belongs to public data: say start=public"
    ):
        start(relabelled, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_start_that_records_of_the_clients_trained_is_refused(tmp_path: Path) -> None:
    inner = start(composed("start=public"), tmp_path / "first") / "start"
    trained = RunFolder(inner)
    store_config(trained, stored_config(trained) | {"data": composed()["data"]})
    said = refused(tmp_path, f"start={inner}")
    assert "of the public records are records of the clients, bit by bit" in said
    trained.config.unlink()  # the data are not at hand any more
    start(composed(f"start={inner}"), tmp_path / "again")


@pytest.mark.slow
def test_what_is_no_start_is_named(tmp_path: Path) -> None:
    assert "has no readable privacy.json" in refused(tmp_path, f"start={tmp_path}")
    first = start(composed("start=public"), tmp_path / "first") / "start"
    assert "its generator is dct_mlp, and this run's mlp" in refused(
        tmp_path, f"start={first}", "generator=mlp"
    )
    assert "its number of classes is 10, and this run's 1" in refused(
        tmp_path, f"start={first}", "conditional=false"
    )
    privacy = (first / "privacy.json").read_text()
    (first / "privacy.json").write_text(privacy.replace("20000", "20001"))
    assert "privacy.json has another SHA-256 than" in refused(tmp_path, f"start={first}")
    (first / "privacy.json").write_text(privacy)
    content = bytearray(weights(first))
    content[-1] ^= 1
    (first / "generator.safetensors").write_bytes(bytes(content))
    assert "has another SHA-256 than SHA256SUMS says" in refused(tmp_path, f"start={first}")
    (first / "generator.safetensors").unlink()
    assert "its run has not ended" in refused(tmp_path, f"start={first}")


@pytest.mark.medium
def test_a_start_that_draws_one_picture_is_refused_before_round_1(tmp_path: Path) -> None:
    steps = ("strategy.optimizer.lr=1.0", "strategy.optimizer.warmup=0", "public.rounds=20")
    keys = composed("start=public", "generator=conv", *steps)
    with pytest.raises(FedsinkError, match="draws the same picture for every class and latent"):
        start(keys, tmp_path / "black")
    assert not (tmp_path / "black" / "generator.safetensors").exists()
    black = f"start={tmp_path / 'black' / 'start'}"
    assert "draws the same picture" in refused(tmp_path, black, "generator=conv")


@pytest.mark.medium
@pytest.mark.quick("keys0-*", "keys5-*")
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["public.data=nowhere"], "public.data is .*glyphs.*, not 'nowhere'"),
        (["public.data=mnist", "public.root=/nowhere"], "start=public, public.data=mnist: "),
        (["public.data=image_folder"], "public.root=None must name a folder of pictures"),
        (["public.data=femnist"], "public.data=femnist: .*public.root"),
        (["public.data=shapes"], "public.data=shapes: shapes has 3 channels"),
        (["public.rounds=0"], "public.rounds must be null or a whole number of at least 1"),
        (["public.classes=[0,1]"], "public.classes names 2 classes, one for each of the run's 10"),
        (
            ["public.data=digits", "public.classes=[9,8,7,6,5,4,3,2,1,10]"],
            "The public data have no class '10': choose public.classes among 0, 1",
        ),
        (["public.classes=[0,0,1,2,3,4,5,6,7,8]"], "public.data=glyphs: .*0"),
        (["public.classes=all"], "public.classes is null or a list of names, not 'all'"),
    ],
)
def test_bad_values_are_named_and_leave_nothing(
    keys: Sequence[str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        start(composed("start=public", *keys), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.medium
def test_keys_of_a_public_start_act_only_with_it() -> None:
    with pytest.raises(ConfigError, match=r"public.rounds=3 changes nothing .* start=public"):
        compose_config(["public.rounds=3"])
    with pytest.raises(ConfigError, match=r"public.root=/a changes nothing .* read from files"):
        compose_config(["start=public", "public.root=/a"])


@pytest.mark.slow
def test_classes_stand_for_the_run_s_by_name_in_order_or_at_random(tmp_path: Path) -> None:
    picture_files.write_classes(tmp_path / "own", ["cat", "dog", "emu"])
    (tmp_path / "own" / "train" / ".ipynb_checkpoints").mkdir()
    own = (f"public.root={tmp_path / 'own'}", "public.data=image_folder")

    def taken(*keys: str) -> list[str] | None:
        values = public_start.public_run(composed("start=public", *keys))
        found: list[str] | None = values["data"]["relabel"]["taken"]
        return found

    digits = [str(number) for number in range(10)]
    assert taken() == digits
    assert taken("public.classes=[A,B,C,D,E,F,G,H,I,J]") == list("ABCDEFGHIJ")
    assert taken(*own) is None
    folder = ("data=image_folder", "data.root=/private", "data.classes=[dog,emu]")
    assert taken(*folder, "data.nominal_records=9", "data.shape=[3,8,8]", *own) == ["dog", "emu"]
    assert taken("data=fashion_mnist") is None


@pytest.mark.medium
def test_shapes_start_from_other_shapes(tmp_path: Path) -> None:
    others = [f"{tone} {form}" for form in OTHER_FORMS for tone in TONES]
    keys = ("start=public", "public.data=shapes", f"public.classes=[{','.join(others)}]")
    started = start(composed("data=shapes", "public.rounds=2", *keys), tmp_path / "run")
    said = stated(started)["start"]
    drawn = load(DataSpec("shapes", (3, 32, 32), tuple(others), 20_000))
    assert (said["classes"], said["data_sha256"]) == (others, drawn.digest())
