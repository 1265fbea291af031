"""Whole runs in process: their files, their statements, and stops."""

from __future__ import annotations

import gc
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from fedsink.clients.node import Node
from fedsink.clients.records.pool import Pool
from fedsink.clients.records.shard import Shard
from fedsink.conf.acting import compose_config
from fedsink.data.sources import SOURCES, Split, forget
from fedsink.data.spec import DataSpec
from fedsink.errors import CheckpointError, ClientError, ConfigError, DataError, FedsinkError
from fedsink.privacy import PrivacyPlan, SecretKey
from fedsink.results.pages.model_card import model_card
from fedsink.server.finished import finished_record
from fedsink.server.folder import RunFolder
from fedsink.simulation.experiment import Experiment
from fedsink.simulation.run_identity import RunIdentity, key_folder, kind_of_noise
from fedsink.simulation.simulated_run import resume, start
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhornSettings

from .conftest import Compose, Config, Configure, killed_at, weights

_CENTRAL_KEYS = {
    "model", "epsilon", "delta", "unit", "adjacency", "mechanism", "accountant", "clip",
    "clip_bound", "sensitivity", "sigma", "noise_std", "rate", "rounds", "schedule",
    "rounds_per_record", "clients", "noise", "noise_meaning", "protected", "not_protected",
    "adjacency_name", "accountant_library", "capacity", "epsilon_unamplified", "sample_secrecy",
    "trade_off",
}  # fmt: skip
_LDP_KEYS = {
    "model", "epsilon", "delta", "unit", "adjacency", "mechanism", "accountant", "epsilon_image",
    "epsilon_label", "map", "sensitivity", "sensitivity_norm", "sigma", "rounds",
    "rounds_per_record", "clients", "training", "noise", "noise_meaning", "protected",
    "not_protected",
}  # fmt: skip


def _same_identity(monkeypatch: pytest.MonkeyPatch, secret: bytes) -> None:
    """Two runs with the same secret key, which the operating system would never give."""
    monkeypatch.setattr("fedsink.privacy.randomness.keys.os.urandom", lambda n: secret[:n])
    monkeypatch.setattr(
        RunIdentity,
        "fresh",
        classmethod(lambda cls, seed: cls("same", 5, key_folder() / "same.key")),
    )


def _keys(state: Path) -> list[Path]:
    return list(state.rglob("*.*"))


def _json(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def _rounds(folder: Path) -> list[int]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["round"] for line in lines]


# --- what a run leaves ---------------------------------------------------------------------------


@pytest.mark.medium
def test_a_run_with_a_seed_is_the_same_twice_and_says_that_its_noise_is_reproducible(
    composed: Compose, tmp_path: Path, state: Path
) -> None:
    config = composed("seed=3")
    one, two = (start(config, tmp_path / name) for name in ("one", "two"))
    assert weights(one) == weights(two)
    assert _json(one, "privacy.json") == _json(two, "privacy.json")
    assert _json(one, "privacy.json")["noise"] == "reproducible"
    assert "seed" in _json(one, "privacy.json")["noise_meaning"]
    assert _keys(state) == []
    other = start(composed("seed=4"), tmp_path / "three")
    assert weights(one) != weights(other)


@pytest.mark.medium
def test_a_run_without_a_seed_has_noise_of_its_own_and_forgets_its_key(
    composed: Compose, tmp_path: Path, state: Path
) -> None:
    config = composed("rounds=5", "mode=ldp")
    one, two = (start(config, tmp_path / name) for name in ("one", "two"))
    assert weights(one) != weights(two)
    stated = _json(one, "privacy.json")
    assert stated["noise"] == "secret"
    assert "outside the run folder" in stated["noise_meaning"]
    assert _keys(state) == []


@pytest.mark.medium
def test_while_it_runs_the_key_is_private_and_outside_the_folder(
    composed: Compose, tmp_path: Path, state: Path
) -> None:
    killed_at(3, lambda: start(composed(), tmp_path / "run"))
    (key,) = state.rglob("*.key")
    assert key.stat().st_mode & 0o777 == 0o600
    secret = SecretKey.load(key).secret
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            assert secret not in path.read_bytes()
            assert secret.hex().encode() not in path.read_bytes()


@pytest.mark.medium
def test_the_records_of_a_run_are_read_once(
    composed: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, splits = SOURCES.find("digits"), []

    def counted(spec: DataSpec, split: Split) -> Any:
        splits.append(split)
        return reader(spec, split)

    monkeypatch.setitem(SOURCES, "digits", counted)
    forget()
    start(composed("seed=0", "rounds=2", "clients=2"), tmp_path / "run")
    forget()
    assert splits == ["train"]


@pytest.mark.medium
def test_partition_json_counts_every_record_once(composed: Compose, tmp_path: Path) -> None:
    folder = start(composed("rounds=2", "mode=ldp", "seed=0", "clients=3"), tmp_path / "run")
    clients = _json(folder, "partition.json")["clients"]
    assert sorted(clients) == ["0", "1", "2"]
    assert sum(client["records"] for client in clients.values()) == 1437


# --- privacy.json --------------------------------------------------------------------------------


def _stated(settings: Experiment) -> dict[str, Any]:
    return settings.server.strategy.statement(kind_of_noise(settings.node))


@pytest.mark.medium
def test_the_central_statement_is_the_accountants(configured: Configure) -> None:
    settings = configured("eps=3", "seed=0", "clients=3")
    stated = _stated(settings)
    strategy = settings.server.strategy
    assert isinstance(strategy, DPSinkhornSettings)
    plan: PrivacyPlan = strategy.plan
    assert set(stated) == _CENTRAL_KEYS
    assert (stated["model"], stated["accountant"], stated["unit"]) == ("central", "pld", "record")
    assert stated["adjacency"] == "zero-out/add-remove of one labelled record at one client"
    assert stated["epsilon"] == plan.epsilon("pld") <= 3
    assert stated["delta"] == plan.delta == 1e-5
    assert stated["sigma"] == plan.noise_multiplier
    assert stated["noise_std"] == pytest.approx(plan.noise_multiplier * plan.clip.sensitivity)
    assert (stated["rate"], stated["rounds"], stated["rounds_per_record"]) == (0.2, 20, 2)
    assert [c["client"] for c in stated["clients"]] == [0, 1, 2]
    assert {c["epsilon"] for c in stated["clients"]} == {stated["epsilon"]}
    assert {c["uses_per_record"] for c in stated["clients"]} == {2}


@pytest.mark.slow
def test_a_run_with_shared_noise_is_the_same_in_two_engines_and_says_what_it_assumes(
    composed: Compose, configured: Configure, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ("clients=21", "capacity=auto", "rounds=8", "seed=1", "eps=3")
    shared = (*whole, "noise.share=secure_aggregation")
    folders = [
        start(composed(*shared, *engine), tmp_path / engine[0])
        for engine in (("engine=local",), ("engine=ray", "engine.num_cpus=1"))
    ]
    lines = [line for line in capsys.readouterr().err.splitlines() if "noise.share" in line]
    assert len(lines) == 2
    assert lines[0] == lines[1]
    assert re.match(r"noise.share=secure_aggregation: ε = 3 holds for sums of 2 or 3 rep", lines[0])

    stated, again = (_json(folder, "privacy.json") for folder in folders)
    usual = _stated(configured(*whole))
    assert stated == again
    of_run = {"fedsink", "method", "plan"}
    of_sums = {"epsilon_without_aggregator", "noise_share", "noise_draw"}
    assert set(stated) - set(usual) - of_run == of_sums
    assert (stated["epsilon"], stated["sigma"]) == (usual["epsilon"], usual["sigma"])
    assert stated["epsilon_without_aggregator"] > 1.5 * stated["epsilon"]

    local, ray = (
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in folders
    )
    for ours, theirs in zip(local, ray, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert ours["signal_to_noise"] == pytest.approx(theirs["signal_to_noise"], abs=1e-3)


@pytest.mark.medium
@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_the_local_statement_adds_image_and_label(configured: Configure, mechanism: str) -> None:
    settings = configured("mode=ldp", f"mechanism={mechanism}", "eps=20", "clients=3")
    stated = _stated(settings)
    assert set(stated) == _LDP_KEYS
    assert (stated["model"], stated["unit"]) == ("ldp", "record")
    assert stated["adjacency"] == "replace-one"
    assert stated["epsilon"] == pytest.approx(20)
    assert stated["epsilon"] == pytest.approx(stated["epsilon_image"] + stated["epsilon_label"])
    assert stated["delta"] == (0.0 if mechanism == "laplace" else 1e-4)
    assert mechanism in stated["mechanism"]
    assert (stated["rounds_per_record"], stated["clients"]) == (1, 3)
    training = stated["training"]
    assert training["matched"] is True
    assert training["finite_batch_factor"] == pytest.approx(0.9)
    assert training["lam"] == pytest.approx(0.9 * training["matched_cost"]["lam"])


def test_without_labels_the_local_statement_names_none(configured: Configure) -> None:
    stated = _stated(configured("mode=ldp", "eps=20", "conditional=false"))
    assert stated["epsilon_label"] is None
    assert stated["epsilon"] == stated["epsilon_image"] == pytest.approx(20)
    assert "label" not in stated["mechanism"]


def test_an_unmatched_run_is_reported_so(configured: Configure) -> None:
    settings = configured("mode=ldp", "strategy.lam=1.0", "strategy.unmatched=true")
    training = _stated(settings)["training"]
    assert training["matched"] is False
    assert training["lam"] != training["matched_cost"]["lam"]


@pytest.mark.medium
@pytest.mark.parametrize("mode", ["central", "ldp"])
def test_the_words_say_what_is_protected_from_whom(configured: Configure, mode: str) -> None:
    stated = _stated(configured(f"mode={mode}"))
    assert "against every" in stated["protected"]
    assert "server" in stated["protected"]
    assert "takes part" in stated["not_protected"]


# --- stop and continue ----------------------------------------------------------------------------


@pytest.mark.medium
@pytest.mark.quick("central-seed=null", "ldp-seed=3")
@pytest.mark.parametrize("seed", ["seed=3", "seed=null"])
@pytest.mark.parametrize("mode", ["central", "ldp"])
def test_a_killed_run_goes_on_to_the_same_bits(
    composed: Compose,
    tmp_path: Path,
    state: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: str,
    mode: str,
) -> None:
    if seed == "seed=null":
        _same_identity(monkeypatch, b"k" * 32)
    # A checkpoint after every round except the last two before the kill.
    config = composed(seed, f"mode={mode}", "rounds=12", "report.checkpoint_seconds=0")
    whole = start(config, tmp_path / "whole")
    killed_at(5, lambda: start(config, tmp_path / "run"))
    # The log ran ahead of the checkpoint: rounds are redone.
    killed_at(8, lambda: resume(tmp_path / "run"))
    stopped = _json(tmp_path / "run", "privacy.json")
    assert not (tmp_path / "run" / "metrics.json").exists()
    assert resume(tmp_path / "run") == tmp_path / "run"
    assert weights(tmp_path / "run") == weights(whole)
    assert _rounds(tmp_path / "run") == list(range(1, 13))
    assert _json(tmp_path / "run", "privacy.json") == stopped == _json(whole, "privacy.json")
    ends = [_json(folder, "metrics.json") for folder in (tmp_path / "run", whole)]
    assert ends[0]["epsilon"] == ends[1]["epsilon"] == stopped["epsilon"]
    assert _keys(state) == []


@pytest.mark.medium
def test_a_run_killed_before_its_first_checkpoint_starts_again(
    composed: Compose, tmp_path: Path
) -> None:
    config = composed("seed=3", "rounds=6")
    whole = start(config, tmp_path / "whole")
    killed_at(2, lambda: start(config, tmp_path / "run"))
    assert _rounds(tmp_path / "run") == [1, 2]
    resume(tmp_path / "run")
    assert weights(tmp_path / "run") == weights(whole)
    assert _rounds(tmp_path / "run") == list(range(1, 7))


@pytest.mark.medium
def test_a_finished_run_is_left_as_it_is(composed: Compose, tmp_path: Path, state: Path) -> None:
    folder = start(composed("rounds=3"), tmp_path / "run")
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    assert resume(folder) == folder
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before


def _stopped(composed: Compose, path: Path, *more: str) -> Path:
    killed_at(3, lambda: start(composed("rounds=6", "report.checkpoint_seconds=0", *more), path))
    return path


@pytest.mark.medium
def test_without_its_key_a_stopped_run_is_over(
    composed: Compose, tmp_path: Path, state: Path
) -> None:
    folder = _stopped(composed, tmp_path / "run")
    (key,) = state.rglob("*.key")
    key.unlink()
    with pytest.raises(CheckpointError, match=r"secret noise key .* is missing"):
        resume(folder)


@pytest.mark.medium
def test_two_processes_never_run_in_one_folder(
    composed: Compose, tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second begins while the first has made its folder, or has stopped in it."""
    config, place = composed("seed=0"), tmp_path / "run"
    fresh, tried = RunFolder.fresh.__func__, []  # type: ignore[attr-defined]

    def passed(cls: type[RunFolder], path: Path) -> RunFolder:
        return cls(path) if tried else fresh(cls, path)  # as it was before the first began

    log = RunFolder.log

    def logged(folder: RunFolder, record: dict[str, Any]) -> None:
        log(folder, record)
        if not tried:
            tried.append(record["round"])
            for again in (lambda: start(config, place), lambda: resume(place)):
                with pytest.raises(ClientError, match=r"Another process runs in .*run: wait"):
                    again()

    monkeypatch.setattr(RunFolder, "fresh", classmethod(passed))
    monkeypatch.setattr(RunFolder, "log", logged)
    assert start(config, place) == place
    assert tried
    alone = start(config, tmp_path / "alone")
    assert weights(place) == weights(alone)
    assert _json(place, "metrics.json")["rounds"] == _json(alone, "metrics.json")["rounds"]


@pytest.mark.medium
def test_what_cannot_be_resumed_is_refused_in_one_sentence(
    composed: Compose, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"holds no fedsink run \(no config\.yaml\)"):
        resume(tmp_path / "nothing")
    folder = _stopped(composed, tmp_path / "run", "seed=1")
    config = folder / "config.yaml"
    text = config.read_text()

    stored = yaml.safe_load(text)
    stored["strategy"]["lam"] = 2.0
    config.write_text(yaml.safe_dump(stored))
    with pytest.raises(CheckpointError, match=r"another configuration: config\.yaml was changed"):
        resume(folder)
    for broken in ("", "- 1", "run: 3", "{a: [", text.replace("run:", "ran:")):
        config.write_text(broken)
        with pytest.raises(FedsinkError) as caught:
            resume(folder)
        assert "\n" not in str(caught.value)

    config.write_text(text)
    state = folder / "checkpoint" / "state.safetensors"
    good = state.read_bytes()
    for bad in (good[: len(good) // 2], good[:-1] + bytes([good[-1] ^ 1]), b""):
        state.write_bytes(bad)
        with pytest.raises(CheckpointError) as caught:
            resume(folder)
        assert "\n" not in str(caught.value)
        assert "state.safetensors" in str(caught.value)
    state.write_bytes(good)
    assert resume(folder) == folder


# --- what is refused leaves nothing --------------------------------------------------------------


@pytest.mark.medium
@pytest.mark.quick("clients=*", "eps=*", "data=mnist*")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("clients=1438", r"1438 clients cannot share 1437 records"),
        ("generator=dcgan", r"dcgan makes images of 28.28 or 32.32"),
        ("generator.hidden=x", "dct_mlp needs whole sizes from 1 to"),
        ("generator.latent_dim=0", r"latent_dim of at least 1"),
        ("data.classes=[a,b]", r"label \d is outside the 2 classes of data.classes"),
        ("data.shape=[1,16,16]", r"records have shape \(1, 8, 8\)"),
        ("data=mnist data.root=/no/such/folder", r"/no/such/folder.* does not hold"),
        ("eps=0", r"eps must be"),
    ],
)
def test_bad_input_leaves_neither_folder_nor_key(
    composed: Compose, tmp_path: Path, state: Path, overrides: str, message: str
) -> None:
    with pytest.raises(FedsinkError, match=message) as caught:
        start(composed(*overrides.split()), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    assert _keys(state) == []


def test_a_folder_that_holds_something_is_not_touched(composed: Compose, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"not .*empty.*resume="):
        start(composed("seed=0"), tmp_path / "run")
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["mine.txt"]


def test_a_disk_that_fails_leaves_neither_folder_nor_key(
    composed: Compose, tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: RunFolder, path: Path, content: Config) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(RunFolder, "write", full)
    with pytest.raises(OSError, match="No space left"):
        start(composed(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert _keys(state) == []


def test_a_client_that_fails_ends_the_run_and_keeps_its_reason_to_itself(
    composed: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any) -> None:
        raise RuntimeError("private: record 17 is odd")

    monkeypatch.setattr("fedsink.clients.records.pool.Pool.draw", fails)
    with pytest.raises(ClientError, match=r"client 0 failed; its own log says why") as caught:
        start(composed("seed=0"), tmp_path / "run")
    assert "private" not in str(caught.value)
    assert (tmp_path / "run" / "config.yaml").exists()  # it can be resumed


@pytest.mark.medium
@pytest.mark.quick("True")
@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_a_run_stays_in_memory_for_the_next_one(
    composed: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A sweep's runs follow one another in one process, and on one GPU."""
    # pytest keeps log records, with all frames.
    monkeypatch.setattr(logging.getLogger("fedsink.clients"), "disabled", True)
    kept = []
    if fails:

        def refuse(*arguments: Any) -> None:
            raise RuntimeError("no noise")

        monkeypatch.setattr("fedsink.privacy.randomness.noise.Stream.add_gaussian", refuse)
        monkeypatch.setattr("fedsink.privacy.plan.add_gaussian_each", refuse)
        with pytest.raises(ClientError) as caught:
            start(composed("seed=0"), tmp_path / "run")
        kept.append(caught)  # as a sweep keeps its failures, with their frames
    else:
        start(composed("seed=0"), tmp_path / "run")
    gc.collect()
    alive = [thing for thing in gc.get_objects() if isinstance(thing, Node | Shard | Pool)]
    assert alive == []


@pytest.mark.medium
def test_a_simulation_says_what_became_of_its_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    classes = [f"class {number}" for number in range(12)]
    for number, label in enumerate([0] * 9 + [1]):
        path = tmp_path / "own" / classes[label] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 4), (9 * number, 0, 0)).save(path)
    keys = [
        *("data=image_folder", "data.shape=[1,4,4]", f"data.root={tmp_path / 'own'}"),
        *(f"data.classes={classes}", "data.nominal_records=10", "engine=local", "clients=1"),
        *("rounds=1", "seed=0", "report.html=false", "report.pictures=0"),
    ]
    said = []
    for name, more in (("one", ()), ("again", ()), ("bare", ("conditional=false",))):
        start(compose_config([*keys, *more]), tmp_path / name)
        said.append(capsys.readouterr().err.split("ε =")[0].splitlines())
    pictures = [
        "image_folder: All pictures are of another size than data.shape says (4 wide, 4 high), "
        "most often 6 wide and 4 high: scaled until it is covered, and cropped at the centre, "
        "which cuts off up to 33 %.",
        "image_folder: All pictures are in colour, made grey.",
    ]
    assert said[0] == [
        *pictures,
        "image_folder: 10 of 12 classes hold no record: class 2, class 3, class 4, class 5, class "
        "6, class 7, class 8, class 9, ….",
        "image_folder: 1 of 12 classes holds only one record: class 1.",
    ]
    assert said[1:] == [said[0], pictures]
    folder = b"".join(path.read_bytes() for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert b"made grey" not in folder
    with pytest.raises(
        DataError, match=r"10 records were read, more than the public data\.nominal"
    ):
        start(compose_config([*keys, "data.nominal_records=9"]), tmp_path / "more")
    assert not (tmp_path / "more").exists()


@pytest.mark.medium
def test_a_promise_that_says_little_is_told_on_screen_in_the_report_and_in_the_card(
    composed: Compose, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ("delta=0.9", "sigma=1", "rounds=2", "seed=0", "report.html=true")
    folder = start(composed(*keys), tmp_path / "run")
    err = capsys.readouterr().err
    assert "Mind: δ = 0.9 is no less than one record in 1,437" in err
    assert "Mind: ε = 0 does not say" in err
    page = (folder / "report.html").read_text("utf-8")
    card = model_card(*finished_record(str(folder)), "mit")
    for words in ("δ = 0.9 is no less than one record in 1,437", "ε = 0 does not say that nothing"):
        assert page.count(words) == card.count(words) == 1
    assert "At ε = 0 nothing could be learned" not in page
