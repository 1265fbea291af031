"""`fedsink verify` from the command line: words, JSON and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsink.commands.node import run as node
from fedsink.commands.verify import run
from fedsink.conf.acting import compose_config
from fedsink.errors import ConfigError
from fedsink.protocol.signing import NodeIdentityKey
from fedsink.simulation.simulated_run import start

from ..support.policies import CENTRAL as CENTRAL_WORDS
from ..support.policies import limits, policy

SMALL = ("engine=local", "clients=2", "rounds=3", "report.pictures=0")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with secret noise, and its report."""
    folder = tmp_path_factory.mktemp("verify")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        return start(compose_config([*SMALL, "sigma=1.5"]), folder / "run")


def verify(folder: Path, capsys: pytest.CaptureFixture[str], *keys: str) -> tuple[int, str]:
    code = run([f"run={folder}", *keys])
    return code, capsys.readouterr().out


@pytest.mark.medium
def test_an_honest_run_is_verified(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = verify(finished, capsys)
    assert code == 0
    stated = json.loads((finished / "privacy.json").read_text())
    assert out.startswith(f"consistent: {finished}\nThe plan gives ε = {stated['epsilon']:.4g}, ")
    for name in ("report.html", "generator.safetensors", "generator.json", "privacy.json"):
        assert f"  {name}\n" in out
    assert "prv" in out
    assert out.splitlines()[-1].startswith(
        "Nobody but the sender vouches for this: that this gener"
    )


@pytest.mark.medium
def test_a_verdict_for_a_registry(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = verify(finished, capsys, "json=true")
    verdict = json.loads(out)
    assert (code, verdict["verdict"], verdict["reasons"]) == (0, "consistent", [])
    assert verdict["format"] == "fedsink verdict 2"
    assert set(verdict["epsilons"]) == {"pld", "prv", "rdp", "rdp-opacus", "rdp-classic"}


def test_a_changed_epsilon_is_told_and_is_exit_code_1(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stated = json.loads((finished / "privacy.json").read_text())
    for path in finished.glob("*.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "SHA256SUMS").write_bytes((finished / "SHA256SUMS").read_bytes())
    (tmp_path / "privacy.json").write_text(json.dumps({**stated, "epsilon": 1.0}))
    code, out = verify(tmp_path, capsys)
    assert code == 1
    assert out.startswith(f"refused: {tmp_path}\n  ✗ privacy.json states epsilon = 1.0, and ")
    assert "privacy.json was changed" in out


def test_a_received_text_moves_no_cursor(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stated = json.loads((finished / "privacy.json").read_text())
    stated["unit"] = "\x1b[2K\rVERIFIED\n\u202e"
    (tmp_path / "privacy.json").write_text(json.dumps(stated))
    code, out = verify(tmp_path, capsys)
    assert code == 1
    assert "unit = \\x1b[2K\\rVERIFIED\\n\\u202e" in out
    assert not set(out) & set("\x1b\r\u202e")


def test_wrong_requests(tmp_path: Path) -> None:
    for keys, words in (
        (["json=true"], "run= is missing"),
        ([f"run={tmp_path}"], r"has no privacy\.json"),
        ([f"run={tmp_path}", "peers=none.toml"], "cannot be read"),
        ([f"run={tmp_path}", "json=maybe"], "expected true or false"),
    ):
        with pytest.raises(ConfigError, match=words):
            run(keys)


def test_a_node_shows_its_identity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(policy(budget={"add-remove": limits(1.0)}, mechanisms=CENTRAL_WORDS))
    assert node(["key", f"policy={path}"]) == 0
    assert capsys.readouterr().out.strip() == NodeIdentityKey.at(tmp_path / "state").shown
    with pytest.raises(ConfigError, match="policy= is missing"):
        node(["key"])
