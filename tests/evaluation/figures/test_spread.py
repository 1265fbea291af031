from __future__ import annotations

import math

import pytest

from fedsink.evaluation.figures.spread import Figure, Spread


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
