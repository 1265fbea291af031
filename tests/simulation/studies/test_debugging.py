"""The debugging task: selected clients, the report, and visibility of the defect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedsink.clients.node import close_nodes
from fedsink.conf.acting import compose_config
from fedsink.data.corruption import Corruption
from fedsink.data.sources import load
from fedsink.data.sources.femnist import CHARACTERS
from fedsink.errors import ConfigError, FedsinkError
from fedsink.server.finished import open_run
from fedsink.server.folder import RunFolder, stored_config
from fedsink.simulation.simulated_run import start
from fedsink.simulation.studies.debugging import Debugging, auc, border

from ...support.writers import Writers, write_leaf
from .conftest import small


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_the_border_is_the_mean_of_the_outer_columns_and_turns_round_with_the_picture() -> None:
    images = torch.zeros(2, 1, 4, 4)
    images[1, 0, :, 0] = 1.0  # one of both columns
    images[1, 0, 1, 1:3] = 1.0  # ink in the middle says nothing
    assert border(images).tolist() == [0.0, 0.5]
    assert border(1 - images).tolist() == [1.0, 0.5]
    assert border(torch.ones(3, 3, 8, 8)).tolist() == [1.0] * 3


_VALUES = st.lists(st.integers(0, 5), min_size=1, max_size=30)  # with many ties


@pytest.mark.medium
@given(_VALUES, _VALUES)
def test_the_auc_is_that_of_a_roc_curve(high: list[int], low: list[int]) -> None:
    from sklearn.metrics import roc_auc_score

    labels = [1] * len(high) + [0] * len(low)
    area = auc(torch.tensor(high, dtype=torch.float32), torch.tensor(low, dtype=torch.float32))
    assert area == pytest.approx(roc_auc_score(labels, high + low))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"clean": 1.5}, r"study\.clean must be in \[0, 1\], not 1\.5"),
        ({"suspect": "x"}, r"study\.suspect must be in \[0, 1\], not 'x'"),
        ({"suspect": 0.9}, r"study\.suspect=0\.9 must be below study\.clean=0\.9: no client is"),
        ({"pictures": 0}, r"study\.pictures must be a whole number of at least 1, not 0"),
        ({"seed": -1}, r"study\.seed must be a whole number of at least 0, not -1"),
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Debugging(**{"clean": 0.9, "suspect": 0.5, **values})


@pytest.mark.slow
def test_the_populations_are_selected_by_accuracy_and_nobody_holds_records_in_both(
    played: Path,
) -> None:
    plan = stored_config(RunFolder(played))["plan"]
    accuracies = plan["notes"]["accuracies"]
    kept = {name: plan["runs"][name]["partition"]["keep"] for name in ("clean", "suspects")}
    assert kept["clean"] == [k for k, value in accuracies.items() if value >= 0.9]
    assert kept["suspects"] == [k for k, value in accuracies.items() if value <= 0.5]
    assert sorted(accuracies) == list(range(40))
    # Digits are so easy that the classifier tells both apart without a mistake.
    inverted = Corruption("invert", 0.5, 0).chosen(40)
    assert not inverted & set(kept["clean"])
    assert set(kept["suspects"]) == inverted

    whole = compose_config(["clients=40", "rounds=1", "seed=0", "engine=local"])
    dealt = read(start(whole, played.parent / "whole") / "partition.json")["clients"]
    for name, numbers in kept.items():
        partition = read(played / name / "partition.json")
        assert len(partition["clients"]) == 40
        for client, held in partition["clients"].items():
            assert held == dealt[client] if int(client) in numbers else held["records"] == 0
        assert partition["corrupted"] == ([] if name == "clean" else numbers)


@pytest.mark.medium
@pytest.mark.quick("()-True")
@pytest.mark.parametrize(
    ("overrides", "charged"), [((), True), (("adjacency=add-remove",), False)], ids=str
)
def test_the_selection_is_charged_where_clients_are_the_unit(
    played: Path, overrides: tuple[str, ...], charged: bool
) -> None:
    if overrides:
        played = start(small("rounds=1", *overrides), played.parent / "records")
    selection = read(played / "debug.json")["selection"]
    assert selection["charged"] is charged
    expected = "and for the selection" if charged else "A change of one record may move its client"
    assert expected in selection["meaning"]
    assert " ".join((played / "debug.txt").read_text().split()).endswith(selection["meaning"])


@pytest.mark.medium
def test_the_runs_are_ordinary_ones_with_noise_of_their_own(played: Path) -> None:
    assert {path.name for path in played.iterdir()} == {
        "clean", "suspects", "config.yaml", "debug.json", "debug.txt", "debug.png",
    }  # fmt: skip
    for name, seed in (("clean", 0), ("suspects", 1)):
        run = open_run(str(played / name))
        assert run.config["study"] is None
        assert run.config["seed"] == seed
        assert run.draw(3, 0)[0].shape == (3, 1, 8, 8)
    assert small("seed=null")["seed"] is None


@pytest.mark.medium
def test_the_report_says_what_the_generators_drew_and_what_it_costs(played: Path) -> None:
    report = read(played / "debug.json")
    borders = {
        name: border(open_run(str(played / name)).draw(50, 0)[0]) for name in ("clean", "suspects")
    }
    assert report["auc"] == auc(borders["suspects"], borders["clean"])
    for name, inverted in (("clean", 0.0), ("suspects", 1.0)):
        row = report["populations"][name]
        privacy = read(played / name / "privacy.json")
        assert row["inverted_clients"] == inverted
        assert row["inverted_pictures"] == float((borders[name] > 0.5).double().mean())
        assert row["clients"] == 20
        assert len(privacy["clients"]) == 40
        assert (row["epsilon"], row["unit"]) == (privacy["epsilon"], "client")
        assert 9.9 < row["epsilon"] <= 10.0
    assert report["populations"]["clean"]["accuracy"] > 0.9
    assert report["populations"]["suspects"]["accuracy"] < 0.5
    text = (played / "debug.txt").read_text()
    assert f"{report['auc']:.4f}" in text
    with Image.open(played / "debug.png") as picture:
        pixels = np.asarray(picture)
    assert pixels.shape[0] > 10 * 48
    assert pixels.shape[1] > 2 * 5 * 48


@pytest.mark.medium
@pytest.mark.quick("overrides[02]-*")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("data.corrupt=null",), r"No client's accuracy is at most study\.suspect=0\.5: those of"),
        (("data.corrupt.share=1",), r"No client's accuracy is at least study\.clean=0\.9: those"),
        (
            ("data=half_circle", "data.corrupt=null", "noise.share=local", "rounds=2"),
            "study.name=debugging looks at pictures, and the records of half_circle have shape",
        ),
    ],
)
def test_what_cannot_be_selected_or_run_is_refused_and_leaves_nothing(
    tmp_path: Path, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(FedsinkError, match=message):
        start(small(*overrides), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_selection_within_a_selection(tmp_path: Path) -> None:
    odd = list(range(1, 40, 2))
    folder = start(small(f"partition.keep={odd}", "rounds=1"), tmp_path / "run")
    inverted = Corruption("invert", 0.5, 0).chosen(40)
    runs = stored_config(RunFolder(folder))["plan"]["runs"]
    assert runs["suspects"]["partition"]["keep"] == [k for k in odd if k in inverted]
    assert set(runs["clean"]["partition"]["keep"]) <= set(odd) - inverted


def legible(words: dict[str, str], seed: int) -> Writers:
    """Characters as fixed patterns of ink on paper that a classifier can learn, with some noise."""
    random = np.random.default_rng(seed)
    pictures = {}
    for user, text in words.items():
        grey = np.full((len(text), 28, 28), 255)
        for place, character in enumerate(text):
            pattern = np.random.default_rng(ord(character)).integers(0, 2, (4, 4)).repeat(4, 0)
            noise = random.integers(0, 60, (16, 16))
            grey[place, 6:22, 6:22] = 255 - np.clip(pattern.repeat(4, 1) * 200 + noise, 0, 255)
        pictures[user] = grey, [CHARACTERS.index(character) for character in text]
    return pictures


@pytest.fixture
def writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """LEAF's files of twelve writers who wrote the same characters."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = {f"f{number:04}_00": "01Ab" * 3 for number in range(12)}
    for seed, split in enumerate(("train", "test")):
        write_leaf(tmp_path / "leaf", split, legible(words, seed))
    yield tmp_path / "leaf"
    close_nodes()
    load.cache_clear()


@pytest.mark.slow
def test_federated_emnist_by_writer(writers: Path, tmp_path: Path) -> None:
    config = compose_config(
        [
            "experiment=debug_inverted_femnist", f"data.root={writers}", "clients=12", "rounds=1",
            "seed=0", "study.pictures=40", "report.pictures=0", "report.html=false",
        ]
    )  # fmt: skip
    assert len(config["data"]["classes"]) == 36
    report = read(start(config, tmp_path / "run") / "debug.json")
    assert {name: row["clients"] for name, row in report["populations"].items()} == {
        "clean": 6, "suspects": 6,
    }  # fmt: skip
    for name, inverted in (("clean", 0.0), ("suspects", 1.0)):
        row = report["populations"][name]
        assert (row["inverted_clients"], row["unit"]) == (inverted, "client")
        held = read(tmp_path / "run" / name / "partition.json")["clients"].values()
        assert sorted(client["records"] for client in held) == [0] * 6 + [12] * 6


@pytest.mark.slow
def test_the_defect_shows_on_digits(tmp_path: Path) -> None:
    config = compose_config(
        ["experiment=debug_inverted", "seed=1", "report.pictures=0", "report.html=false"]
    )
    report = read(start(config, tmp_path / "run") / "debug.json")
    assert report["auc"] >= 0.99
    clean, suspects = report["populations"]["clean"], report["populations"]["suspects"]
    assert (clean["epsilon"], suspects["epsilon"]) == pytest.approx((10, 10), abs=1e-3)
    assert clean["inverted_clients"] < 0.05
    assert clean["inverted_pictures"] < 0.05
    assert 0.8 < suspects["inverted_clients"] < 1.0  # some clean clients are suspects too
    assert suspects["inverted_pictures"] > 0.95
