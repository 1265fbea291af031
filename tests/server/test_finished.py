from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedsink.data.maps import L2Ball, Map, PooledPower
from fedsink.data.spec import DataSpec
from fedsink.errors import CheckpointError, ConfigError
from fedsink.models import Observation, build, save
from fedsink.models.observation import LowPassNoise
from fedsink.server import finished
from fedsink.server.finished import FinishedRun, shown_map
from fedsink.server.folder import RunFolder, store_config

SHAPE = (1, 4, 4)


def of_run(folder: Path, prior: list[float], map: Map | None = None, wide: float = 1.0) -> Any:
    generator = build("mlp", SHAPE, len(prior), latent_dim=2, hidden=[8])
    data = DataSpec("tiny", SHAPE, tuple("abc"[: len(prior)]), 40)
    observation = Observation(latent_range=wide)
    return FinishedRun(
        RunFolder(folder), {}, generator, data, torch.tensor(prior), map, observation
    )


def test_pictures_are_those_of_the_band_that_was_released(tmp_path):
    """In local mode; elsewhere the generator had no gradient."""
    prior, ball = [0.5, 0.5], L2Ball(SHAPE, 0.5)
    whole, labels = of_run(tmp_path, prior).draw(20, 3)
    cut, same = of_run(tmp_path, prior, ball).draw(20, 3)
    assert torch.equal(labels, same)
    assert torch.equal(cut, ball.render(ball(whole)))
    assert not torch.allclose(cut, whole, atol=0.01)


def test_the_wider_of_two_bands_is_shown():
    """A public start may have learnt more of a picture than private records tell."""
    narrow, wide = (PooledPower((1, 4, 4), block) for block in (2, 3))
    assert shown_map({}) is None
    assert shown_map({"model": "ldp", "map": narrow.to_dict()}) == narrow
    for own, start in ((narrow, wide), (wide, narrow)):
        stated = {"map": own.to_dict(), "start": {"map": start.to_dict()}}
        assert shown_map({"model": "ldp", **stated}) == wide
        assert shown_map({"model": "central", "start": stated["start"]}) is None


@pytest.mark.parametrize("start", [None, 5, "map", [1], {}, {"map": None}, {"records": 3}])
def test_a_start_without_a_map_shows_the_run_s_own_band(start):
    own = PooledPower((1, 4, 4), 2)
    assert shown_map({"model": "ldp", "map": own.to_dict(), "start": start}) == own
    assert shown_map({"model": "ldp", "start": start}) is None


def test_pictures_are_drawn_beside_others_as_in_training(tmp_path, monkeypatch):
    """A BatchNorm sees the mix of all classes, and not only the labels asked for."""
    seen: dict[str, Any] = {}

    def sample(generator: Any, n: int, labels: Tensor, stream: Any, **options: Any) -> Tensor:
        seen.update(options)
        return torch.zeros(n, *SHAPE)

    monkeypatch.setattr(finished, "sample", sample)
    run = of_run(tmp_path, [0.75, 0.25], wide=1.5)
    run.draw(10, 0, classes=["b"])
    assert seen["mix"].tolist() == [0.75, 0.25]
    assert seen["latent_range"] == 1.5


def test_labels_follow_the_prior_or_are_balanced(tmp_path):
    run = of_run(tmp_path, [0.7, 0.2, 0.1])
    counts = torch.bincount(run.draw(2000, 0)[1], minlength=3) / 2000
    assert torch.allclose(counts, run.prior, atol=0.05)
    some = torch.bincount(run.draw(900, 0, classes=["c", "b"])[1], minlength=3) / 900
    assert torch.allclose(some, torch.tensor([0.0, 2 / 3, 1 / 3]), atol=0.06)
    balanced = run.draw(20, 0, balanced=True)[1]
    assert torch.bincount(balanced).tolist() == [7, 7, 6]
    assert not torch.equal(balanced, torch.arange(20) % 3)  # in no order that a split could follow


def test_classes_that_say_nothing_of_their_frequency_are_refused(tmp_path):
    run = of_run(tmp_path, [1.0, 0.0, 0.0])
    with pytest.raises(ConfigError, match=r"No record of b or c .*: say balanced=true"):
        run.draw(10, 0, classes=["b", "c"])
    counts = torch.bincount(run.draw(10, 0, classes=["b", "c"], balanced=True)[1])
    assert counts.tolist() == [0, 5, 5]
    with pytest.raises(ConfigError, match="names no class"):
        run.draw(10, 0, classes=[])


def test_the_seed_decides_the_pictures(tmp_path):
    run = of_run(tmp_path, [0.5, 0.5])
    drawn = [run.draw(20, seed, balanced=True) for seed in (0, 0, 1)]
    for part in range(2):
        assert torch.equal(drawn[0][part], drawn[1][part])
        assert not torch.equal(drawn[0][part], drawn[2][part])


def test_pictures_are_observed(tmp_path):
    bare = of_run(tmp_path, [0.5, 0.5])
    noisy = replace(bare, observation=Observation(noise=LowPassNoise(std=0.1)))
    (images, labels), (observed, same) = (run.draw(200, 0) for run in (bare, noisy))
    assert torch.equal(labels, same)
    assert float((observed - images).std()) == pytest.approx(0.1, rel=0.2)


@pytest.mark.parametrize(
    "prior",
    [None, [], 0.5, ["a"], [True, 1.0], [[0.5], 0.5], [math.nan], [-1.0, 2.0], [10**400], [0.0]],
)
def test_a_prior_that_is_none_is_damage(tmp_path, prior):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.config.write_text("mode: central")
    folder.privacy.write_text("{}")
    folder.metrics.write_text(json.dumps({"label_prior": prior}))
    with pytest.raises(CheckpointError, match=r"label_prior in metrics\.json is no list"):
        finished.finished_record(str(folder.path))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, None),
        ({"data": {"shape": [1, 3000, 3000]}}, "at most 4,194,304 values"),
        (
            {"data": {"shape": [1, 5, 4]}},
            r"its generator is for the shape \[1, 4, 4\], and its data",
        ),
        ({"prior": [0.5, 0.25, 0.25]}, "its generator has 2 classes, and its label_prior 3"),
        (
            {"map": [1, 5, 5]},
            r"its map is for the shape \[1, 5, 5\], and its data have \[1, 4, 4\]",
        ),
        ({"map": [1, 100_000, 100_000]}, "at most 4,194,304 values"),
    ],
)
def test_sizes_of_a_received_run_agree(tmp_path, change, told):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    data = {"name": "x", "shape": list(SHAPE), "classes": ["a", "b"], "nominal_records": 40}
    store_config(folder, {"mode": "ldp", "data": data | change.get("data", {})})
    map = {"name": "pooled_power", "shape": change.get("map", SHAPE), "block": 2}
    folder.write(folder.privacy, {"model": "ldp", "map": map})
    folder.write(folder.metrics, {"label_prior": change.get("prior", [0.5, 0.5])})
    save(build("mlp", SHAPE, 2, latent_dim=2, hidden=[8]), folder.path)
    if told is None:
        assert len(finished.open_run(str(folder.path)).draw(3, 0)[0]) == 3
    else:
        with pytest.raises(CheckpointError, match=f"is damaged: .*{told}"):
            finished.open_run(str(folder.path))
