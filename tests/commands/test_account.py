from __future__ import annotations

import re

import pytest

from fedsink.commands.account import run
from fedsink.errors import ConfigError, PrivacyError

_F2 = ["rate=0.2", "sigma=2.291", "rounds=4000", "classes=10"]
_BATCH = ["rate=0.025", "sigma=0.848", "rounds=16000", "classes=10", "clip=batch"]
_MNIST = ["rate=0.00083333333333333333", "sigma=1.1"]
_REFERENCE = ["rate=0.2", "sigma=1.712", "rounds=2000", "classes=10"]


def _table(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, dict[str, float]]:
    assert run(arguments) == 0
    head, _, *rows = capsys.readouterr().out.split("\n\n")[0].splitlines()
    split = [row.split() for row in rows]
    return head.split()[1], {row[0]: float(row[1].replace(",", "")) for row in split}


def _local(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    assert run(arguments) == 0
    _, _, *rows = capsys.readouterr().out.splitlines()
    return dict(re.split(r"\s{2,}", row.strip(), maxsplit=1) for row in rows)


@pytest.mark.medium
def test_epsilon_of_a_known_plan_by_every_accountant(capsys: pytest.CaptureFixture[str]) -> None:
    solved, found = _table(capsys, *_REFERENCE)
    assert solved == "eps"
    assert found["pld"] == pytest.approx(9.16, abs=0.005)
    assert found["pld"] <= found["prv"] * 1.01
    assert found["rdp"] == pytest.approx(9.97, abs=0.01)
    assert found["rdp-opacus"] == pytest.approx(found["rdp"], rel=0.01)
    assert found["rdp-classic"] > found["rdp"]


@pytest.mark.medium
def test_libraries_and_adjacency_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    run([*_REFERENCE, "accountant=rdp-opacus"])
    out = capsys.readouterr().out
    assert "Opacus" in out
    assert out.endswith("Adjacency: zero-out/add-remove of one labelled record at one client.\n")
    run([*_REFERENCE, "accountant=pld", "adjacency=client", "clip=batch"])
    assert "Adjacency: zero-out/add-remove of all records of one client" in capsys.readouterr().out


@pytest.mark.medium
def test_delta_is_1e_5_unless_given(capsys: pytest.CaptureFixture[str]) -> None:
    quick = [*_REFERENCE, "accountant=pld"]
    assert _table(capsys, *quick) == _table(capsys, *quick, "delta=1e-5")
    assert _table(capsys, *quick, "delta=1e-6")[1]["pld"] > 9.5


@pytest.mark.medium
@pytest.mark.quick("sigma")
@pytest.mark.parametrize("missing", ["rate", "sigma", "rounds", "delta"])
def test_what_is_left_out_is_solved_for(capsys: pytest.CaptureFixture[str], missing: str) -> None:
    given = [a for a in _REFERENCE if not a.startswith(f"{missing}=")] + ["eps=9.1607"]
    solved, found = _table(capsys, *given, "accountant=pld")
    assert solved == missing
    truth = {"rate": 0.2, "sigma": 1.712, "rounds": 2000, "delta": 1e-5}[missing]
    room = 2e-2 if missing in ("rounds", "delta") else 2e-3
    assert found["pld"] == pytest.approx(truth, rel=room)


@pytest.mark.medium
@pytest.mark.quick("arguments[0-9]-*", "arguments17-*")
@pytest.mark.parametrize(
    ("arguments", "accountant", "eps"),
    [
        # The reference table.
        ([*_MNIST, "rounds=100000"], "rdp-classic", 1.502),
        ([*_MNIST, "rounds=1000000"], "rdp-classic", 4.997),
        ([*_MNIST, "rounds=3400000"], "rdp-classic", 9.925),
        ([*_MNIST, "rounds=100000"], "rdp", 1.243),
        ([*_MNIST, "rounds=1000000"], "rdp-opacus", 4.444),
        ([*_MNIST, "rounds=3400000"], "rdp", 9.085),
        ([*_MNIST, "rounds=100000"], "pld", 1.138),
        ([*_MNIST, "rounds=1000000"], "pld", 4.114),
        ([*_MNIST, "rounds=3400000"], "pld", 8.463),
        # The recipes under each adjacency, at several clients and without amplification.
        (_F2, "pld", 9.168),
        ([*_F2, "adjacency=replace-one"], "pld", 19.996),
        ([*_F2, "persons=2"], "pld", 13.94),
        ([*_F2, "persons=3"], "pld", 18.0),
        ([*_F2, "persons=10"], "pld", 40.35),
        ([*_F2, "capacity=190", "records=600"], "pld", 9.168),
        (["rate=1", *_F2[1:]], "pld", 74.52),
        (_BATCH, "pld", 9.0896),
        ([*_BATCH, "adjacency=replace-one"], "pld", 12.169),
        (["rate=1", *_BATCH[1:]], "pld", 1312.71),
        # Theorem 4.1's reading, and GS-WGAN with the batch selected together.
        ([_MNIST[0], "sigma=0.55", "rounds=3400000"], "rdp-classic", 69.94),
        (["rate=0.001", "sigma=0.18915", "rounds=20000"], "pld", 329.4),
        ([*_MNIST, "rounds=100000"], "prv", 1.147),
        ([*_MNIST, "rounds=1000000"], "prv", 4.120),
        ([*_MNIST, "rounds=3400000"], "prv", 8.464),
        (["rate=0.001", "sigma=0.18915", "rounds=20000", "adjacency=replace-one", "clip=batch"],
         "pld", 346.7),
        (["rate=0.001", "sigma=0.094575", "rounds=20000"], "pld", 2058),
    ],
)  # fmt: skip
def test_reference_numbers(
    capsys: pytest.CaptureFixture[str], arguments: list[str], accountant: str, eps: float
) -> None:
    _, found = _table(capsys, *arguments, f"accountant={accountant}")
    assert found == {accountant: pytest.approx(eps, rel=1e-3, abs=6e-4)}


_CRITICS = ["clip=critic", "sigma=2.236", "rounds=20"]


@pytest.mark.parametrize(
    ("arguments", "eps"),
    [
        # R uses of critics are one Gaussian, whatever a record changes.
        (_CRITICS, 10.0),
        ([*_CRITICS, "rate=1"], 10.0),
        ([*_CRITICS, "adjacency=replace-one"], 10.0),
        ([*_CRITICS, "adjacency=user", "critics=40"], 10.0),
        ([*_CRITICS, "adjacency=client"], 10.0),
        (["clip=critic", "sigma=89.44", "rounds=20", "adjacency=client", "critics=40"], 10.0),
        (["clip=critic", "sigma=2.236", "rounds=999", "turns=50"], 10.0),
        (["clip=critic", "sigma=2.236", "rounds=999", "turns=50", "adjacency=client"], 10.0),
        ([*_CRITICS, "persons=2"], 15.5),
        ([*_CRITICS, "persons=3"], 20.1),
        ([*_CRITICS, "persons=10"], 46.2),
        # The published rows: 20 uses in turn, and 36 of the client that is picked most.
        (["clip=critic", "sigma=1.07", "rounds=20", "rows=32"], 379.4),
        (["clip=critic", "sigma=1.07", "rounds=20000", "turns=1000", "rows=32"], 379.4),
        (["clip=critic", "sigma=1.07", "rounds=36", "rows=32", "adjacency=client"], 637.4),
    ],
)  # fmt: skip
def test_reference_numbers_of_critics(
    capsys: pytest.CaptureFixture[str], arguments: list[str], eps: float
) -> None:
    _, found = _table(capsys, *arguments, "accountant=pld")
    assert found == {"pld": pytest.approx(eps, rel=3e-3)}


@pytest.mark.parametrize(
    ("missing", "truth"), [("sigma", 1.07), ("rounds", 20_000), ("delta", 1e-5)]
)
@pytest.mark.parametrize("adjacency", ["add-remove", "client"])
def test_what_is_left_out_of_the_account_of_critics_is_solved_for(
    capsys: pytest.CaptureFixture[str], missing: str, truth: float, adjacency: str
) -> None:
    known = ["sigma=1.07", "rounds=20000", "delta=1e-5"]
    given = [a for a in known if not a.startswith(f"{missing}=")]
    rest = ["eps=379.42", "clip=critic", "turns=1000", "rows=32", f"adjacency={adjacency}"]
    solved, found = _table(capsys, *given, *rest, "accountant=pld")
    assert solved == missing
    assert found["pld"] == pytest.approx(truth, rel=1e-2)


def test_every_accountant_knows_critics(capsys: pytest.CaptureFixture[str]) -> None:
    solved, found = _table(capsys, *_CRITICS)
    assert solved == "eps"
    assert list(found) == ["pld", "prv", "rdp", "rdp-opacus", "rdp-classic"]
    assert found["pld"] == min(found.values())


@pytest.mark.quick("rdp*")
@pytest.mark.parametrize(
    ("accountant", "rounds"), [("rdp-classic", 3_446_203), ("rdp", 3_986_344), ("pld", 4_467_993)]
)
def test_the_largest_number_of_rounds_within_ten(
    capsys: pytest.CaptureFixture[str], accountant: str, rounds: int
) -> None:
    solved, found = _table(capsys, *_MNIST, "eps=10", f"accountant={accountant}")
    assert solved == "rounds"
    assert found[accountant] == pytest.approx(rounds, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "quantity", "value"),
    [
        (["mechanism=gaussian", "sensitivity=40", "eps=25", "delta=1e-4"], "sigma", 9.174),
        (["mechanism=gaussian", "sensitivity=40", "eps=30"], "sigma", 8.065),
        (["mechanism=gaussian", "sensitivity=40", "eps=35"], "sigma", 7.247),
        (["mechanism=gaussian", "sensitivity=40", "eps=25", "calibration=equation5"],
         "sigma", 9.647),
        (["mechanism=gaussian", "sensitivity=40", "eps=35", "calibration=equation5"],
         "sigma", 7.549),
        (["mechanism=gaussian", "sensitivity=2", "sigma=1.276"], "eps", 6.55),
        (["mechanism=laplace", "sensitivity=2.41421356", "sigma=0.4"], "eps", 6.04),
        (["mechanism=laplace", "sensitivity=1568", "sigma=3"], "eps", 522.7),
        (["mechanism=laplace", "sensitivity=1568", "sigma=7"], "eps", 224),
        (["mechanism=laplace", "sensitivity=280", "eps=35"], "sigma", 8),
        (["mechanism=laplace", "sensitivity=2", "eps=35", "label_eps=5", "classes=10"],
         "sigma", 2 / 30),
        (["mechanism=laplace", "sensitivity=2", "sigma=0.4", "label_eps=5", "classes=10"],
         "eps", 10),
        (["mechanism=laplace", "sensitivity=2", "eps=5", "shuffle=400000"],
         "eps after a trusted shuffler of 400,000 reports, delta=1e-06", 0.352),
    ],
)  # fmt: skip
def test_local_reference_numbers(
    capsys: pytest.CaptureFixture[str], arguments: list[str], quantity: str, value: float
) -> None:
    found = _local(capsys, *arguments)
    assert float(found[quantity]) == pytest.approx(value, rel=1e-3)
    assert found["adjacency"].startswith("replacement of one labelled record")


def test_the_label_takes_its_share_of_eps(capsys: pytest.CaptureFixture[str]) -> None:
    found = _local(
        capsys, "mechanism=gaussian", "sensitivity=2", "eps=25", "label_eps=5", "classes=10"
    )
    assert (found["eps"], found["eps of the image"], found["delta"]) == ("25", "20", "0.0001")
    assert found["eps of the label"] == "5 (kept with probability 0.9428)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*_F2, "eps=3", "delta=1e-5"], "missing: none of them"),
        (["rate=0.2"], "missing: sigma, rounds, eps"),
        ([*_F2, "adjacency=swap"], "adjacency=swap: choose one of add-remove, replace-one, user"),
        ([*_F2, "clip=layer"], "clip=layer: choose one of record, batch, critic"),
        (["clip=critic", "sigma=1"], "one of sigma, rounds, eps, or .* missing: rounds, eps"),
        ([*_CRITICS, "rate=0.1", "rows=4"], "the row clip has only rate=1, received rate=0.1"),
        ([*_CRITICS, "rate=0.1", "accountant=rdp"], "no bound for parts that are asked at"),
        ([*_CRITICS, "classes=10"], "the critic clip has no class schedule"),
        ([*_CRITICS, "classes=10", "turns=5"], "the critic clip has no class schedule"),
        ([*_CRITICS, "capacity=5"], "the critic clip draws no batch of records"),
        ([*_CRITICS, "rows=32", "critics=2"], "the row clip accounts for one critic, not for 2"),
        ([*_F2, "turns=5"], "turns belongs to clip=critic, received turns=5 and clip=record"),
        ([*_BATCH, "critics=5"], "critics belongs to clip=critic"),
        ([*_F2, "rows=5"], "rows belongs to clip=critic"),
        ([*_F2, "accountant=gdp"], "accountant='gdp' is unknown; choose one of pld, prv, rdp"),
        ([*_F2, "adjacency=replace-one", "accountant=rdp"], "rdp accountant has no bound under"),
        ([*_F2, "adjacency=client"], "client adjacency with the record clip needs a capacity"),
        ([*_F2, "capacity=100"], "needs nominal_records, the public number of records"),
        ([*_F2, "capacity=120", "records=600"], "a capacity of 120 overflows with a probability"),
        ([*_F2, "person=2"], "Unknown key 'person'. Did you mean persons?"),
        (["mechanism=exponential", "sensitivity=1", "eps=1"], "choose laplace or gaussian"),
        (["mechanism=laplace", "eps=1"], "sensitivity is missing"),
        (["mechanism=laplace", "sensitivity=1"], "Give eps .* or sigma"),
        (["mechanism=laplace", "sensitivity=1", "eps=1", "sigma=1"], "one of the two"),
        (["mechanism=laplace", "sensitivity=1", "eps=1", "delta=1e-5"], "pure ε and has no delta"),
        (["mechanism=laplace", "sensitivity=1", "eps=1", "label_eps=1"], "go together"),
        (["mechanism=laplace", "sensitivity=1", "eps=1", "label_eps=1", "classes=2"],
         "label_eps=1 leaves nothing of eps=1"),
        (["mechanism=gaussian", "sensitivity=1", "sigma=1", "calibration=analytic"],
         "leave it out where sigma is given"),
        (["mechanism=gaussian", "sensitivity=1", "eps=1", "calibration=classical"],
         "calibration 'classical' is unknown"),
        (["mechanism=gaussian", "sensitivity=1", "eps=1", "shuffle=1000000"], "pure ε₀"),
        (["mechanism=laplace", "sensitivity=2", "eps=35", "shuffle=60000"], "valid up to ε₀ = 6.2"),
        (["mechanism=laplace", "sensitivity=1", "eps=1", "shuffle_delta=1e-6"], "needs shuffle=N"),
        (["mechanism=laplace", "sensitivity=1", "eps=1", "rate=0.1"], "Unknown key 'rate'"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises((ConfigError, PrivacyError), match=message):
        run(arguments)


@pytest.mark.medium
def test_no_epsilon_is_negative_and_what_is_left_out_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, found = _table(capsys, "rate=0.001", "sigma=1.5", "rounds=10", "delta=0.01")
    assert list(found) == ["pld", "prv", "rdp", "rdp-opacus", "rdp-classic"]
    assert min(found.values()) == 0
    assert run(["rate=0.1", "sigma=0.001", "rounds=10"]) == 0
    assert "\nprv is left out, as its " in capsys.readouterr().out
