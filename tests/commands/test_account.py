from __future__ import annotations

import pytest

from fedsink.commands.account import run

_REFERENCE = ["rate=0.2", "sigma=1.712", "rounds=2000", "classes=10"]


def _table(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, dict[str, float]]:
    assert run(arguments) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    values = {name: float(value.replace(",", "")) for name, value in (row.split() for row in rows)}
    return head.split()[1], values


def test_epsilon_of_a_known_plan_by_three_accountants(capsys: pytest.CaptureFixture[str]) -> None:
    solved, found = _table(capsys, *_REFERENCE)
    assert solved == "eps"
    assert found["pld"] == pytest.approx(9.16, abs=0.005)
    assert found["pld"] <= found["prv"] * 1.01
    assert found["rdp"] == pytest.approx(9.97, abs=0.01)


def test_delta_is_1e_5_unless_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert _table(capsys, *_REFERENCE) == _table(capsys, *_REFERENCE, "delta=1e-5")
    _, other = _table(capsys, *_REFERENCE, "delta=1e-6")
    assert other["pld"] > 9.5


@pytest.mark.parametrize("missing", ["rate", "sigma", "rounds"])
def test_what_is_left_out_is_solved_for(capsys: pytest.CaptureFixture[str], missing: str) -> None:
    given = [a for a in _REFERENCE if not a.startswith(f"{missing}=")]
    solved, found = _table(capsys, *given, "eps=9.1607")
    assert solved == missing
    truth = {"rate": 0.2, "sigma": 1.712, "rounds": 2000}[missing]
    assert found["pld"] == pytest.approx(truth, rel=2e-2 if missing == "rounds" else 2e-3)
    # RDP is the most careful of the three.
    more = {"rate": -1, "sigma": 1, "rounds": -1}[missing]
    assert more * found["rdp"] > more * found["pld"]


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == run(["--help"]) == 0
    assert "Example: fedsink account rate=" in capsys.readouterr().out
