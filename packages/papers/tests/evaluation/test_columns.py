from __future__ import annotations

import math

import pytest
from fedsink_papers.evaluation.columns import Columns, Figure, Spread

from fedsink.results.evaluation.sets import TrainingSet
from tests.support.clouds import blobs


def test_every_column_is_drawn_for_every_seed_and_names_its_size():
    drawings = []

    def drawn(name, at_most):
        def draw(size, seed):
            drawings.append((name, size, seed))
            return TrainingSet.of(blobs(min(size, at_most), seed), classes=3, origin="synthetic")

        return draw

    columns = Columns(drawn("synthetic", 100), drawn("real", 30), drawn("class means", 12))
    lines: list[str] = []
    figures = columns.measure(
        lambda data, seed: {"seed": seed, "size": len(data)},
        seeds=(4, 5),
        size=40,
        fractions=["size"],
        report=lines.append,
    )
    assert drawings == [
        (name, 40, seed) for name in ("synthetic", "real", "class means") for seed in (4, 5)
    ]
    seed, size = figures["seed"], figures["size"]
    assert seed.synthetic.values == seed.real.values == seed.class_means.values == (4, 5)
    assert (size.synthetic.size, size.real.size, size.class_means.size) == (40, 30, 12)
    assert (size.fraction, seed.fraction) == (True, False)
    assert len(lines) == 6


def test_a_column_that_is_not_wanted_is_left_out():
    columns = Columns(
        lambda size, seed: TrainingSet.of(blobs(size, seed), classes=3, origin="synthetic")
    )
    figure = columns.measure(lambda data, seed: {"one": 1.0}, seeds=(0,), size=20)["one"]
    assert figure.real is None
    assert figure.class_means is None


def test_mean_and_sample_deviation():
    spread = Spread((0.8, 0.9, 1.0), 60)
    assert spread.mean == pytest.approx(0.9)
    assert spread.sd == pytest.approx(0.1)
    assert spread.to_dict() == {
        "mean": spread.mean,
        "sd": spread.sd,
        "values": [0.8, 0.9, 1.0],
        "size": 60,
    }


def test_one_run_has_no_deviation():
    assert Spread((0.5,), 10).sd is None
    assert Spread((0.5,), 10).text() == "0.500"


def test_a_row_shows_every_column_and_its_size():
    figure = Figure(Spread((0.8, 0.9), 60), Spread((0.95, 0.95), 50), Spread((0.5, 0.5), 20), True)
    assert figure.row("accuracy/cnn") == {
        "figure": "accuracy/cnn",
        "synthetic": "85.0 ± 7.1 %",
        "real data": "95.0 ± 0.0 %",
        "class means": "50.0 ± 0.0 %",
        "images": "60/50/20",
    }
    alone = Figure(Spread((1.25,), 7))
    assert alone.row("density")["real data"] is None
    assert alone.row("density")["images"] == "7"
    assert set(alone.to_dict()) == {"synthetic"}


@pytest.mark.parametrize("values", [(), (math.nan,), (0.5, math.inf)])
def test_refuses_what_is_no_figure(values):
    with pytest.raises(ValueError, match="needs finite values"):
        Spread(values, 10)
