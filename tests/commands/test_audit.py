from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsink.audit.distinguisher import Finding
from fedsink.audit.plays import AuditResult
from fedsink.commands import audit
from fedsink.commands.audit import run
from fedsink.errors import ConfigError, FedsinkError

_QUICK = ["mode=central", "rate=1", "rounds=2", "trials=40", "canaries=50"]


def test_the_bounds_stand_beside_the_claims(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(_QUICK) == 0
    out = capsys.readouterr().out
    head, _, one_run, threshold, trade_off, verdict = out.splitlines()
    assert head.split("  ")[0] == "audited"
    assert "ε claimed" in head
    assert "ε proved" in head
    assert threshold.split("  ")[0] == "80 plays of one record, q = 1"
    assert "  threshold  " in threshold
    assert "  Gaussian trade-off  " in trade_off
    assert one_run.startswith("1 run of 50 canaries, q = 1")
    assert all("1.000" in row and "0.983333" in row for row in (threshold, trade_off, one_run))
    assert verdict == "Replies hold nothing but their noised values."


@pytest.mark.medium
def test_clients_that_share_their_noise(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*_QUICK, "clients=4", "colluders=1"]) == 0
    out = capsys.readouterr().out
    assert "80 plays of one record, sum of 4, 1 collude, q = 1 " in out
    assert "1 run of 50 canaries, sum of 4, 1 collude, q = 1 " in out
    assert " 1.171 " in out  # ε at √(3/4) of the noise
    assert "Replies hold nothing but their noised values." in out
    with pytest.raises(ConfigError, match="colluders=4 of clients=4 leave nobody"):
        run([*_QUICK, "clients=4", "colluders=4"])


@pytest.mark.medium
@pytest.mark.parametrize("adjacency", ["add-remove", "user", "client"])
def test_critics(adjacency: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "audit.json"
    options = ["critics=2", f"adjacency={adjacency}", "rounds=2", "trials=40", f"json={file}"]
    assert run(["mode=central", "clip=critic", *options]) == 0
    out = capsys.readouterr().out
    unit = {"add-remove": "record"}.get(adjacency, adjacency)
    for method in ("threshold", "Gaussian trade-off"):
        [row] = [
            line
            for line in out.splitlines()
            if line.startswith(f"80 plays of one {unit}, q = 1 ") and method in line
        ]
        assert "  1.000  " in row
    assert "Replies hold nothing but their noised values." in out
    record = json.loads(file.read_text())
    assert record["answer"] == "gs_wgan"
    plan = record["plan"]
    assert (plan["rate"], plan["adjacency"], plan["clip"]["critics"]) == (1.0, adjacency, 2)


@pytest.mark.medium
def test_a_rate_below_one_is_audited_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mode=central", "rate=0.3", "rounds=2", "trials=40"]) == 0
    out = capsys.readouterr().out
    assert "80 plays of one record, q = 0.3" in out
    assert "80 plays of one record, q = 1 " in out


@pytest.mark.medium
@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_local_mode(mechanism: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mode=ldp", f"mechanism={mechanism}", "eps=2", "trials=100"]) == 0
    out = capsys.readouterr().out
    assert "200 plays of one record " in out
    assert "200 plays of two records " in out
    assert ("Gaussian trade-off" in out) is (mechanism == "gaussian")


@pytest.mark.medium
def test_a_claim_that_cannot_be_refuted_is_said_to_be_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["mode=ldp", "eps=35", "trials=100"]) == 0
    out = capsys.readouterr().out
    assert "cannot refute ε = 35: the most they could prove is 3.51." in out


@pytest.mark.medium
def test_the_seed_decides_and_the_file_holds_what_was_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "audit.json"
    shown = []
    for seed in (1, 1):
        assert run([*_QUICK, f"seed={seed}", f"json={file}"]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert [path.name for path in tmp_path.iterdir()] == ["audit.json"]
    record = json.loads(file.read_text())
    assert record["seed"] == 1
    assert record["leaks"] == []
    assert record["plan"]["rounds"] == 2
    assert [finding["violated"] for finding in record["findings"]] == [False] * 3


def test_a_refuted_claim_is_exit_1_and_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding("80 plays, q = 1", "threshold", 1.0, 2.5, 0.95, 6.0)
    found = AuditResult([finding], ("Replies differ in fields['batch'].",))
    monkeypatch.setattr(audit, "audit", lambda *_, **__: found)
    assert run(_QUICK) == 1
    said = capsys.readouterr()
    assert (
        "a claim is refuted: 80 plays, q = 1 (threshold) prove ε ≥ 2.5, and 1 was claimed; "
        "the chance of that with a correct mechanism is at most 0.05." in said.err
    )
    assert "fedsink: Replies differ in fields['batch']." in said.err
    assert "Replies hold more than their noised values." in said.out


@pytest.mark.medium
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eps=1"], "mode must be central or ldp, received None"),
        (["mode=gan"], "mode must be central or ldp, received 'gan'"),
        (["mode=ldp", "canaries=5"], "canaries has no meaning with mode=ldp"),
        (["mode=central", "mechanism=laplace"], "mechanism has no meaning with mode=central"),
        (["mode=central", "clip=image"], "clip must be record, batch or critic, not 'im"),
        (["mode=central", "critics=3"], "critics has no meaning with clip=record"),
        (
            ["mode=central", "rate=1", "adjacency=replace-one"],
            "no canaries under adjacency=replace",
        ),
        (["mode=central", "adjacency=person"], "adjacency=person: choose one of add-remove"),
        (["mode=central", "clip=critic", "canaries=9", "trials=16"], "no canaries of one run"),
        (["mode=central", "clip=batch", "canaries=9", "trials=16"], "would share one clip=batch"),
        (["mode=central", "answer=privatize_once"], "answer=privatize_once belongs to mode=ldp"),
        (["mode=ldp", "answer=dp_sinkhorn"], "answer=dp_sinkhorn belongs to mode=central"),
        (["mode=central", "answer=dp_sinkhron"], "Did you mean dp_sinkhorn?"),
        (["mode=ldp", "critics=3"], "critics has no meaning with mode=ldp"),
        (["mode=ldp", "mechanism=coin"], "mechanism must be laplace or gaussian"),
        (["mode=ldp", "delta=1e-5"], "delta has no meaning with mechanism=laplace"),
        (["mode=central", "trials=15"], "trials=15: must be at least 16"),
        (["mode=central", "json=nowhere/x.json"], "expected a file in an existing folder"),
        (["mode=central", "trial=9"], "Did you mean trials?"),
        (["mode=central", "clip=critic", "rate=0"], "rate must lie in"),
        (["mode=central", "clip=critic", "rate=1.5"], "rate must lie in"),
        (["mode=central", "trials=40", "rate=2"], "rate must lie in"),
        (["mode=central", "trials=40", "eps=-1"], "eps"),
        (["mode=central", "trials=40", "delta=1"], "delta must lie in"),
        (["mode=central", "trials=40", "confidence=1"], "confidence must lie in"),
        (["mode=central", "trials=40", "confidence=2"], r"must lie in \(0, 1\), received 2"),
        (["mode=central", "trials=40", "answer=gs_wgan"], "needs the critic clip, not the record"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(FedsinkError, match=message.replace("?", r"\?")):
        run(arguments)
