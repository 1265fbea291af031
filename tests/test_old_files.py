"""Files of earlier versions work or are refused in a sentence, and an unknown one is never empty.

`old_runs` holds a run folder of each method, `old_runs/start` the public start of a run, and
`gs_wgan/states` what its clients had beside their keys. The code of commit f95cfb49 wrote them by

    fedsink simulate clients=2 rounds=4 seed=0 generator.hidden=[8] report.html=false \\
        report.pictures=0 mode=…

with strategy.history=1, `strategy=gs_wgan strategy.critics=1 strategy.critic.hidden=2
strategy.critic.history=1`, `strategy=parameter_gradient strategy.history=1`, map.block=2, and
`start=public public.rounds=2`; `checkpoint` and `states` are of round 2. The first pictures, and of
the start also its checkpoint and partition.json, were left out. The old ledger is
`clients/owner/ledger/ledger-3.sql`.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as tensors_of
from safetensors.torch import save

from fedsink.clients.masking import Masking, Sessions, simulated_identity, simulated_peers
from fedsink.clients.owner.ledger.ledger import Ledger
from fedsink.clients.owner.policy_file import read_policy
from fedsink.clients.owner.replies import ReplyStore
from fedsink.clients.owner.states import State
from fedsink.commands.cli import main
from fedsink.errors import FedsinkError, LedgerError
from fedsink.protocol.aggregation import KEYS
from fedsink.secagg.parameters import Parameters, Rules
from fedsink.server import checkpoint
from fedsink.server.folder import RunFolder, store_config, stored_config

from .support.policies import limits, policy

OLD = Path(__file__).parent / "old_runs"
METHODS = ("dp_sinkhorn", "gs_wgan", "parameter_gradient", "privatize_once")
TENSORS = {"w": torch.arange(3.0)}
KEY = bytes(32)


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Copies an old folder, and its clients' states to where they lay."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))

    def copy(name: str) -> Path:
        shutil.copytree(OLD / name, tmp_path / name)
        if (states := tmp_path / name / "states").is_dir():
            keys = tmp_path / "home/fedsink/keys"
            keys.mkdir(parents=True)
            run = stored_config(RunFolder(tmp_path / name))["run"]
            shutil.move(states, keys / f"{run['name']}.states")
        return tmp_path / name

    return copy


@pytest.fixture
def fedsink(capsys: pytest.CaptureFixture[str]) -> Callable[[str], tuple[int, str, str]]:
    """Plays a command line; returns its exit code and what it said."""

    def play(line: str) -> tuple[int, str, str]:
        code: Any = 0
        try:
            main(line.split())
        except SystemExit as left:
            code = left.code or 0
        said = capsys.readouterr()
        return code, said.out, said.err

    return play


@pytest.mark.medium
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.quick("gs_wgan", "privatize_once")
def test_an_old_run_is_read_like_a_new_one(copied, fedsink, method):
    copied(method)
    code, verdict, _ = fedsink(f"verify run={method}")
    assert (code, verdict.partition("\n")[0]) == (1, f"unprotected: {method}")  # by a seed's noise
    for line in (
        f"report run={method}",
        f"sample run={method} n=3 out={method}.npz",
        f"evaluate run={method} n=100 reference=false",
        f"card run={method}",
    ):
        code, _, error = fedsink(line)
        assert code == 0, error
    code, _, error = fedsink(f"simulate start={method} hydra.run.dir=new")
    assert code == 2
    of_another = "Train a start with the keys of this run"  # which are not those of the old one
    composes = "its ε composes with no other" if method == "privatize_once" else of_another
    assert composes in error


@pytest.mark.medium
def test_old_runs_are_compared(copied, fedsink):
    code, table, _ = fedsink(f"compare run=[{','.join(map(str, map(copied, METHODS)))}]")
    assert code == 0
    assert "strategy=parameter_gradient" in table
    assert "mode=ldp" in table


@pytest.mark.parametrize("method", METHODS)
def test_an_old_run_that_stopped_does_not_go_on_with_other_random_numbers(copied, fedsink, method):
    folder = copied(method)
    for name in ("metrics.json", "generator.safetensors", "generator.json", "SHA256SUMS"):
        (folder / name).unlink()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    code, _, error = fedsink(f"simulate resume={method}")
    assert code == 2
    assert "is of format 1, and this fedsink reads 2: use a fedsink that reads it" in error
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.medium
def test_an_old_public_start_says_how_to_make_a_new_one(copied, fedsink):
    """It does not name its weights, so that nothing says what they were trained on."""
    copied("start")
    code, _, error = fedsink("simulate generator.hidden=[8] start=start hydra.run.dir=new")
    assert code == 2
    assert "generator_sha256" in error
    assert "train it again" in error
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("log", "csv", "log=csv is gone: metrics.jsonl"),
        ("log", ["csv", "tensorboard"], "log=csv is gone: metrics.jsonl"),
        ("data.corrupt", {"kind": "invert"}, "data.corrupt is gone: examples/debug_inverted.py"),
        ("study", {"name": "compare"}, "holds a study of an earlier version: name the folder of"),
    ],
)
def test_an_old_run_with_a_key_that_is_gone_does_not_go_on_without_it(
    copied, fedsink, key, value, words
):
    folder = RunFolder(copied("dp_sinkhorn"))
    folder.metrics.unlink()
    config = stored_config(folder)
    group, _, name = key.rpartition(".")
    (config[group] if group else config)[name] = value
    store_config(folder, config)
    code, _, error = fedsink("simulate resume=dp_sinkhorn")
    assert code == 2
    assert words in error


def test_a_critics_state_of_another_format_is_not_trained_anew(copied):
    copied("gs_wgan")
    states = sorted(Path("home").rglob("*.state"))
    assert len(states) == 2
    for path in states:
        assert _state(path.parent).before(3) is not None
        _reformat(path, f"{path.parent.name}/{path.name}", 2)
        with pytest.raises(FedsinkError, match="is of format 2, and this fedsink"):
            _state(path.parent).before(3)


# Every kind of file, with a number of its format: none, its own, an unknown one.


def _state(folder: Path) -> State:
    return State(folder, at_once=True, rewinds=False, simulated=False)


def _reformat(path: Path, place: str, number: int | None) -> None:
    """Writes another number into a file of tensors, under a checksum that holds."""
    from fedsink.clients.owner.replies import _CHECKSUM_BYTES, _checksum

    stated = None if number is None else {"format": str(number)}
    payload = save(tensors_of(path.read_bytes()[_CHECKSUM_BYTES:]), stated)
    path.write_bytes(_checksum(payload, place) + payload)


def state(folder: Path, number: int | None) -> object:
    place = folder / "of one client"
    kept = _state(place)
    kept.put(1, TENSORS)
    _reformat(place / "1.state", "of one client/1.state", number)
    return kept.before(2)


def reply(folder: Path, number: int | None) -> object:
    store = ReplyStore(folder)
    store.put(KEY, TENSORS)
    _reformat(folder / f"{KEY.hex()}.reply", KEY.hex(), number)
    return store.get(KEY)


def session(folder: Path, number: int | None) -> object:
    def asked() -> bytes:
        rules = Rules(simulated_peers(3), 3)
        masking = Masking(0, simulated_identity(0), rules, Sessions(folder))
        return masking.answer(KEYS, Parameters("run", "1", (0, 1, 2), 32, 6, 3), b"")

    first = asked()
    [path] = (folder / "open").iterdir()
    _restate(path, number)
    return asked() == first


def _restate(path: Path, number: int | None) -> None:
    content = json.loads(path.read_text())
    content.pop("format", None)
    path.write_text(json.dumps(content if number is None else {**content, "format": number}))


def server_state(folder: Path, number: int | None) -> object:
    checkpoint.save(folder, TENSORS, {"round": 1})
    path = folder / "state.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    stated = header["__metadata__"]
    del stated["format"]
    if number is None:
        stated["sha256"] = checkpoint._digest(TENSORS, "", stated["values"])
    else:
        stated["format"] = str(number)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
    return checkpoint.load(folder)[1] == {"round": 1}


def run_folder(folder: Path, number: int | None) -> object:
    run = RunFolder(folder)
    store_config(run, {"eps": 1.0})
    lines = [line for line in run.config.read_text().splitlines() if "format" not in line]
    stated = [] if number is None else [f"format: {number}"]
    run.config.write_text("\n".join([*stated, *lines]))
    return stored_config(run) == {"eps": 1.0}


def policy_file(folder: Path, number: int | None) -> object:
    path = folder / "policy.toml"
    text = policy(budget={kind: limits(1.0) for kind in ("add-remove", "replace-one")})
    path.write_text(text if number is None else f"format = {number}\n{text}")
    return read_policy(path)


def ledger(folder: Path, number: int | None) -> object:
    path = folder / "ledger.sqlite"
    Ledger(path).close()
    if number is not None:
        with sqlite3.connect(path) as connection:
            connection.execute(f"PRAGMA user_version={number}")
    return Ledger(path)


KINDS = (state, reply, session, server_state, run_folder, policy_file, ledger)


@pytest.mark.parametrize("number", [None, 0, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_format_is_refused_and_never_read_as_empty(tmp_path, kind, number):
    """And nobody is told to begin another file: an empty ledger would have a whole budget."""
    if number is None and kind is not server_state:  # as earlier versions wrote it
        assert kind(tmp_path, None)
        return
    words = rf"is of format {1 if number is None else number}, and this fedsink"
    with pytest.raises(FedsinkError, match=words) as refused:
        kind(tmp_path, number)
    assert "use a fedsink that reads it, or restore it" in str(refused.value)
    if kind in (state, reply, session, ledger):
        assert isinstance(refused.value, LedgerError)  # not what makes a node begin anew
