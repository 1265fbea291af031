from __future__ import annotations

from fedsink.evaluation.figures.columns import Columns
from fedsink.evaluation.sets import TrainingSet

from ...support.clouds import blobs


def test_every_column_is_drawn_for_every_seed_and_names_its_size():
    asked = []

    def drawn(name, at_most):
        def draw(size, seed):
            asked.append((name, size, seed))
            return TrainingSet.of(blobs(min(size, at_most), seed), classes=3, origin="synthetic")

        return draw

    columns = Columns(drawn("synthetic", 100), drawn("real", 30), drawn("class means", 12))
    lines: list[str] = []
    figures = columns.measure(
        lambda data, seed: {"seed": seed, "size": len(data)},
        seeds=(4, 5),
        size=40,
        shares=["size"],
        report=lines.append,
    )
    assert asked == [
        (name, 40, seed) for name in ("synthetic", "real", "class means") for seed in (4, 5)
    ]
    seed, size = figures["seed"], figures["size"]
    assert seed.synthetic.values == seed.real.values == seed.class_means.values == (4, 5)
    assert (size.synthetic.size, size.real.size, size.class_means.size) == (40, 30, 12)
    assert (size.share, seed.share) == (True, False)
    assert len(lines) == 6


def test_a_column_that_is_not_wanted_is_left_out():
    columns = Columns(
        lambda size, seed: TrainingSet.of(blobs(size, seed), classes=3, origin="synthetic")
    )
    figure = columns.measure(lambda data, seed: {"one": 1.0}, seeds=(0,), size=20)["one"]
    assert figure.real is None
    assert figure.class_means is None
