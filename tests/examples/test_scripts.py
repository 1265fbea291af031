"""The scripts that play several runs; their pages are scenes (tests/docs)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ..support.scripts import script

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TINY = {"seed": 0, "rounds": 2, "report.pictures": 0, "report.html": False}


def test_a_border_and_the_area_under_a_curve() -> None:
    debug = script(EXAMPLES / "debug_inverted.py")
    images = torch.zeros(2, 1, 4, 4)
    images[1, ..., 0] = images[1, ..., 3] = 1.0
    assert debug.border(images).tolist() == [0.0, 1.0]
    assert debug.auc(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0])) == 0.875


@pytest.mark.slow
def test_two_generators_show_a_defect_and_nobody_holds_records_in_both(tmp_path: Path) -> None:
    debug = script(EXAMPLES / "debug_inverted.py")
    report = debug.main(tmp_path, devices=40, pictures=50, **TINY)
    held = {
        name: {
            int(client)
            for client, what in json.loads((tmp_path / name / "partition.json").read_text())[
                "clients"
            ].items()
            if what["records"]
        }
        for name in ("clean", "suspects")
    }
    assert not held["clean"] & held["suspects"]
    for name, inverted in (("clean", 0.0), ("suspects", 1.0)):
        row = report[name]
        assert (row["clients"], row["inverted clients"]) == (len(held[name]), inverted)
        assert row["unit"] == "client"
        assert 9.9 < row["ε"] <= 10.0
    weights = (tmp_path / "clean" / "generator.safetensors").stat().st_mtime_ns
    again = debug.main(tmp_path, devices=40, pictures=50, **TINY)
    assert again["auc"] == report["auc"]
    assert (tmp_path / "clean" / "generator.safetensors").stat().st_mtime_ns == weights
    assert (tmp_path / "debug.png").is_file()


@pytest.mark.slow
def test_methods_are_run_evaluated_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare = script(EXAMPLES / "compare_methods.py")
    compare.main(tmp_path, images=20, clients=2, engine="local", **TINY)
    assert {path.name for path in tmp_path.iterdir()} == {*compare.METHODS, "compare.html"}
    assert "CNN %" in capsys.readouterr().out
