"""`fedsink ledger` as a node's owner meets it."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path

import pytest

from fedsink.clients.answers.central import central_charge
from fedsink.clients.owner.ledger.charge import Budget, Use
from fedsink.clients.owner.ledger.ledger import Ledger
from fedsink.commands.ledger import run
from fedsink.errors import ConfigError, LedgerError
from fedsink.privacy import ClassSchedule, PrivacyPlan, RecordClip
from fedsink.protocol.signing import ChargeStatement, NodeIdentityKey

from ..support.policies import CENTRAL, limits, policy

PLAN = PrivacyPlan(0.2, 2.0, 30, RecordClip(1.0), ClassSchedule(3), 1e-6)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "state" / "ledger.sqlite"
    ledger = Ledger(path)
    ledger.bind("ward", b"fingerprint")
    charge = central_charge(PLAN)
    held = ledger.reserve("ward", "night-3", charge, Budget(10.0, 1e-5), "lab", "gradient")
    ledger.note_refused("BadSignatureError")
    ledger.note_refused("BadSignatureError")
    ledger.note_refused("BudgetError")
    ledger.claim(held, b"fingerprint", [Use(t, t % 3, b"digest") for t in range(1, 8)])
    ledger.close()
    return path


def test_show_prints_accounts_and_runs(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", f"file={file}"]) == 0
    head, _, account, _, run_head, _, run_line, _, refused = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["lineage", "adjacency", "ceiling"]
    epsilon = PLAN.epsilon()
    for word in ("ward", "add-remove", "10.000", "1e-05", f"{epsilon:.3f}",
                 f"{10 - epsilon:.3f}", "9e-06"):  # fmt: skip
        assert word in account.split()
    assert run_head.split()[:3] == ["run", "asked", "by"]
    assert {"lab", "gradient", time.strftime("%Y-%m-%d", time.gmtime())} <= {*run_line.split()}
    assert refused == "Refused today (UTC): BadSignature 2, Budget 1."
    assert run_line.startswith("night-3")
    assert "7 of 30" in run_line


def test_the_policy_names_its_ledger(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "policy.toml").write_text(
        policy(budget={"add-remove": limits(10.0, 1e-5)}, mechanisms=CENTRAL)
    )
    assert run(["show", f"policy={tmp_path / 'policy.toml'}"]) == 0
    assert "night-3" in capsys.readouterr().out


def test_an_empty_ledger_is_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Ledger(tmp_path / "new.sqlite").close()
    assert run(["show", f"file={tmp_path / 'new.sqlite'}"]) == 0
    nothing = "Nothing has been charged yet.\n\nRefused today (UTC): nothing.\n"
    assert capsys.readouterr().out == nothing


def test_check_is_1_for_a_broken_ledger(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", f"file={file}"]) == 0
    assert capsys.readouterr().out == f"{file} is sound.\n"
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE accounts SET epsilon=0.01")
    assert run(["check", f"file={file}"]) == 1
    assert "account of ward (add-remove) has spent more than" in capsys.readouterr().out
    with pytest.raises(LedgerError, match=r"is damaged .* restore it from a backup"):
        run(["show", f"file={file}"])


def test_export_is_json_without_fingerprints(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", f"file={file}"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert run(["export", f"file={file}", f"out={tmp_path / 'out.json'}"]) == 0
    assert json.loads((tmp_path / "out.json").read_text()) == printed
    [account] = printed["accounts"]
    assert account["runs"][0]["event"]["class"] == "SelfComposedDpEvent"
    assert b"fingerprint".hex() not in json.dumps(printed)


def test_nothing_is_changed(file: Path) -> None:
    before = {f.name: f.read_bytes() for f in file.parent.iterdir() if f.suffix == ".sqlite"}
    for action in ("show", "check", "export"):
        run([action, f"file={file}"])
    after = {f.name: f.read_bytes() for f in file.parent.iterdir() if f.suffix == ".sqlite"}
    assert before == after


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list"], "fedsink ledger show, check, export, statement, forget-states; received 'list'"),
        (["show"], "by policy= or by file=, one of the two"),
        (["show", "file=a", "policy=b"], "by policy= or by file=, one of the two"),
        (["show", "fil=a"], r"Unknown key 'fil'. Did you mean file\?"),
        (["show", "file=a", "out=b"], "out= belongs to fedsink ledger export, not to show"),
    ],
)
def test_bad_command_lines_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(arguments)


def test_a_ledger_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(
        LedgerError, match=r"No such file: .*none\.sqlite\. A node makes its ledger"
    ):
        run(["show", f"file={tmp_path / 'none.sqlite'}"])
    assert list(tmp_path.iterdir()) == []


def _owners(folder: Path) -> Path:
    """A policy with two budgets, whose node has answered nothing yet."""
    owners = folder / "policy.toml"
    budget = {"add-remove": limits(10.0, 1e-5), "user": limits(3.0, 1e-6)}
    owners.write_text(policy(budget=budget, mechanisms=CENTRAL))
    return owners


def test_before_any_run_nothing_is_charged_and_all_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owners = _owners(tmp_path)
    assert run(["show", f"policy={owners}"]) == 0
    first, _, head, _, *accounts = capsys.readouterr().out.splitlines()
    assert first == "Nothing has been charged yet."
    assert head.split()[0] == "lineage"
    assert [line.split() for line in accounts] == [
        ["ward", "add-remove", "10.000", "1e-05", "0.000", "0.000", "10.000", "1e-05"],
        ["ward", "user", "3.000", "1e-06", "0.000", "0.000", "3.000", "1e-06"],
    ]
    assert run(["check", f"policy={owners}"]) == 0
    assert "Nothing has been charged yet" in capsys.readouterr().out
    assert run(["export", f"policy={owners}"]) == 0
    assert json.loads(capsys.readouterr().out) == {"format": "fedsink ledger 2", "accounts": []}
    assert [path.name for path in tmp_path.iterdir()] == ["policy.toml"]


def test_a_budget_that_no_run_has_used_is_left_whole(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owners = _owners(tmp_path)
    assert run(["show", f"policy={owners}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[2:4]] == [["ward", "add-remove"], ["ward", "user"]]
    assert lines[3].split()[-2:] == ["3.000", "1e-06"]
    assert lines[2].split()[-2:] != ["10.000", "1e-05"]


def test_critics_are_forgotten_and_no_charge_is(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owners = tmp_path / "policy.toml"
    owners.write_text(policy(budget={"add-remove": limits(10.0, 1e-5)}, mechanisms=CENTRAL))
    for run_of in ("one", "two"):
        (folder := tmp_path / "state" / "states" / run_of).mkdir(parents=True)
        (folder / "3.state").write_bytes(b"weights")
    before = file.read_bytes()
    assert run(["forget-states", str(owners)]) == 0
    assert capsys.readouterr().out == "2 states of ward are removed.\n"
    assert not list((tmp_path / "state" / "states").iterdir())
    assert file.read_bytes() == before
    assert run(["forget-states", str(owners)]) == 0
    assert capsys.readouterr().out == "0 states of ward are removed.\n"
    with pytest.raises(ConfigError, match="names one policy file"):
        run(["forget-states"])


def test_an_owner_signs_what_a_run_was_charged_or_that_it_was_charged_nothing(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owners = tmp_path / "policy.toml"
    words = policy(budget={"add-remove": limits(10.0, 1e-5)}, mechanisms=CENTRAL)
    owners.write_text(words)
    keys = ("statement", f"policy={owners}", "client=1", "clients=2")
    for name in ("night-3", "night-4"):
        assert run([*keys, f"run={name}"]) == 0
        said, key = ChargeStatement.verified(json.loads(capsys.readouterr().out))
        assert key == NodeIdentityKey.at(tmp_path / "state").shown
        assert (said.run, said.client, said.clients, said.noise) == (name, 1, 2, "secret")
        if name == "night-4":
            assert said.charges == ()
        else:
            [charge] = said.charges
            assert (charge.epsilon, charge.rounds) == (pytest.approx(PLAN.epsilon()), 7)
            assert charge.plan == {"mode": "central", **PLAN.to_dict()}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ((), "policy= is missing"),
        (("policy=p", "run=r"), "client= is missing"),
        (("policy=p", "run=r", "client=2", "clients=2"), "client=2 is none of clients=2"),
        (("policy=p", "run="), "run=: fedsink gives no run such a name"),
        (("policy=p", "run=../x"), "run=../x: fedsink gives no run such a name"),
    ],
)
def test_a_statement_names_run_and_client(keys: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(["statement", *keys])
