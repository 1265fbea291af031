from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from fedsink_papers.evaluation import classifiers, dpimagebench, suites
from fedsink_papers.evaluation.classifiers import PAPER as PAPER_NAMES
from fedsink_papers.evaluation.classifiers import classifier_set

from fedsink.errors import ConfigError, DataError
from fedsink.results.evaluation import Options, evaluate
from fedsink.results.evaluation.neighbours import memorisation
from tests.support.clouds import blobs

pytestmark = pytest.mark.usefixtures("few_epochs")

CLASSES = 3
TRAIN, TEST = blobs(120, 1, side=6), blobs(60, 2, side=6)
QUALITY = [
    "inception_score",
    "inception_score/ten_splits",
    "inception_score/ten_splits_sd",
    "classifier_frechet_distance",
    "precision",
    "recall",
    "density",
    "coverage",
    "sliced_w2",
    "label_consistency",
    "within_class_variance",
    "memorisation/excess",
    "memorisation/z",
    "memorisation/training_distance",
    "memorisation/held_out_distance",
]
TRAINERS, LEFT_OUT = classifier_set("ours", (1, 6, 6))
PAPER = [f"accuracy/{name}" for name in PAPER_NAMES]
OTHERS = [f"accuracy/{name}" for name in TRAINERS if name not in PAPER_NAMES]


def draw(n, seed):
    return blobs(n, 100 + seed, side=6)


def run(suite, source=draw, **more):
    options = {"classes": CLASSES, "n": 90, "runs": 2, "threads": 1} | more
    return evaluate(suite, source, TRAIN, TEST, Options(**options))


@pytest.fixture(scope="module")
def full(few_epochs):
    return run("full")


@pytest.mark.slow
def test_full_measures_everything_with_ceiling_floor_size_seeds_and_spread(full):
    ratios = [f"calibrated/{name[9:]}" for name in [*PAPER[:3], *OTHERS]]
    means = ["accuracy/mean", "calibrated/mean"]
    assert list(full.figures) == [*PAPER, *OTHERS, *ratios, *means, *QUALITY]
    assert full.seeds == (0, 1)
    for name, figure in full.figures.items():
        for spread in (figure.synthetic, figure.real, figure.class_means):
            assert spread is not None, name
            assert len(spread.values) == 2
            assert spread.sd is not None
            assert spread.size >= 30
    assert (full.train_images, full.test_images) == (120, 60)
    assert full.label_histogram == [30, 30, 30]


@pytest.mark.slow
def test_what_cannot_be_measured_is_named_with_the_reason(full):
    assert full.left_out["fid"] == "60 images do not determine a covariance of 2048 features"
    if LEFT_OUT:
        assert "pip install xgboost" in full.left_out["accuracy/xgboost"]
    assert all(
        f"{name} was left out: {why}." in full.table() for name, why in full.left_out.items()
    )


@pytest.mark.slow
def test_a_generator_of_the_real_law_stands_with_real_data_and_above_class_means(full):
    figures = full.figures
    for name in ("density", "coverage", "recall", "within_class_variance"):
        assert figures[name].synthetic.mean == pytest.approx(figures[name].real.mean, abs=0.25)
    assert figures["recall"].class_means.mean == 0
    assert figures["within_class_variance"].class_means.mean == pytest.approx(0, abs=1e-9)
    assert figures["classifier_frechet_distance"].synthetic.mean < (
        figures["classifier_frechet_distance"].class_means.mean
    )
    assert abs(figures["memorisation/z"].synthetic.mean) < 4
    assert figures["label_consistency"].synthetic.mean > 0.95
    assert 1 < figures["inception_score"].synthetic.mean <= CLASSES


@pytest.mark.slow
def test_the_record_is_json_and_repeats_the_means_under_the_keys_of_fast(full):
    record = json.loads(json.dumps(full.to_dict()))
    assert set(record["accuracy"]) == {"logreg", "mlp", "cnn"}
    assert record["accuracy"]["cnn"] == record["figures"]["accuracy/cnn"]["synthetic"]["mean"]
    assert set(record["figures"]["density"]) == {"synthetic", "real", "class_means"}
    assert set(record["figures"]["density"]["real"]) == {"mean", "sd", "values", "size"}


@pytest.mark.slow
def test_the_table_has_a_row_per_figure(full):
    lines = full.table().splitlines()
    assert lines[0].split() == ["figure", "synthetic", "real", "data", "class", "means", "images"]
    assert [line.split()[0] for line in lines[2 : 2 + len(full.figures)]] == list(full.figures)
    assert "over 2 runs, seeds 0 to 1" in full.table()


@pytest.mark.slow
def test_the_record_and_the_table_say_which_classifiers_and_what_judges_the_score(full):
    assert full.to_dict()["classifiers"] == "ours"
    assert full.notes["accuracy"].startswith("classifiers=ours, our options")
    assert "VGG-11" in full.notes["inception_score"]
    assert full.to_dict()["notes"] == full.notes
    assert all(f"{name}: {note}." in full.table() for name, note in full.notes.items())


@pytest.mark.slow
def test_published_classifiers_see_all_images_and_are_calibrated(monkeypatch):
    monkeypatch.setattr(classifiers, "LENET_EPOCHS", 1)
    monkeypatch.setattr(suites, "AT_MOST", 20)
    train, test = blobs(120, 1, side=12), blobs(60, 2, side=12)
    options = {"classes": CLASSES, "n": 60, "runs": 1, "threads": 1}
    found = evaluate(
        "full",
        lambda n, seed: blobs(n, 100 + seed, side=12),
        train,
        test,
        Options(classifiers="published", **options),
    )
    names = [*PAPER[:3], *OTHERS]
    assert [name for name in found.figures if name.startswith("accuracy/")] == [
        *names,
        "accuracy/mean",
    ]
    for name in names:
        assert found.figures[name].synthetic.size == 60
        assert f"calibrated/{name[9:]}" in found.figures
    assert found.figures["calibrated/random_forest"].synthetic.mean == pytest.approx(1, abs=0.1)
    assert found.to_dict()["classifiers"] == "published"
    assert "classifiers=published, the options of GS-WGAN's public code" in found.table()


@pytest.mark.medium
def test_our_other_classifiers_have_a_cap(monkeypatch):
    monkeypatch.setattr(suites, "AT_MOST", 30)
    figures = run("full", runs=1, reference=False).figures
    assert {figures[name].synthetic.size for name in PAPER} == {90}
    assert {figures[name].synthetic.size for name in OTHERS} == {30}


@pytest.mark.medium
def test_paper_is_three_classifiers_and_the_nearest_mean_and_repeats_itself():
    first = run("paper", n=30, runs=1, seed=3)
    assert list(first.figures) == PAPER
    assert first.seeds == (3,)
    again = run("paper", n=30, runs=1, seed=3)
    assert again.to_dict() == first.to_dict()


@pytest.mark.slow
def test_the_order_of_test_images_is_all_that_scores_share_with_the_test_set(full):
    """Another test set changes scores and distances, but not the classifiers or class counts."""
    other = evaluate(
        "full",
        draw,
        TRAIN,
        blobs(60, 9, side=6),
        Options(classes=CLASSES, n=90, runs=2, threads=1, reference=False),
    )
    assert other.label_histogram == full.label_histogram
    same, changed = "label_consistency", "sliced_w2"
    # Judged by the classifier of the real training half: no test image took part.
    assert other.figures[same].synthetic == full.figures[same].synthetic
    assert other.figures["within_class_variance"].synthetic == (
        full.figures["within_class_variance"].synthetic
    )
    assert other.figures["inception_score"].synthetic == full.figures["inception_score"].synthetic
    assert other.figures[changed].synthetic != full.figures[changed].synthetic
    assert other.figures[same].real is None


def test_a_generator_that_copies_the_training_set_is_seen_in_the_suite():
    found = evaluate(
        "full",
        lambda n, seed: (TRAIN[0][:n], TRAIN[1][:n]),
        TRAIN,
        TEST,
        Options(CLASSES, n=60, runs=1, threads=1, reference=False, conditional=False),
    )
    assert found.figures["memorisation/excess"].synthetic.mean == pytest.approx(1)
    assert found.figures["memorisation/z"].synthetic.mean > 4
    assert found.figures["memorisation/training_distance"].synthetic.mean == 0


@pytest.mark.slow
def test_memorisation_compares_with_all_training_images_and_halves_for_the_real_column(full):
    expected = memorisation(draw(60, 1)[0], TRAIN[0], TEST[0], seed=1)
    assert full.figures["memorisation/z"].synthetic.values[1] == pytest.approx(expected["z"])
    assert full.figures["memorisation/z"].real.size == 30


def test_an_unconditional_generator_has_no_label_figures():
    zeros = lambda n, seed: (draw(n, seed)[0], torch.zeros(n, dtype=torch.int64))  # noqa: E731
    found = run("full", zeros, runs=1, conditional=False, reference=False)
    assert set(found.figures) == set(QUALITY) - {"label_consistency", "within_class_variance"}
    assert set(found.left_out) == {"accuracy", "label_consistency", "within_class_variance", "fid"}
    assert "accuracy" not in found.to_dict()
    with pytest.raises(ConfigError, match=r"unconditional and draws no labels; choose suite=full"):
        run("paper", conditional=False)


@pytest.mark.parametrize(
    ("suite", "more", "error", "message"),
    [
        ("half", {}, ConfigError, "suite='half' is unknown; choose one of fast, full, paper"),
        (
            "paper",
            {"classifiers": "published"},
            ConfigError,
            "classifiers=published belongs to suite=full; received suite=paper",
        ),
        (
            "full",
            {"classifiers": "theirs"},
            ConfigError,
            "classifiers='theirs' is unknown; choose one of dpimagebench, ours, published",
        ),
        ("paper", {"runs": 0}, ValueError, "runs must be at least 1; received 0"),
        ("paper", {"n": 5}, DataError, "at least 10 synthetic images; received 5"),
    ],
)
def test_refusals(suite, more, error, message):
    with pytest.raises(error, match=message):
        run(suite, **more)


def test_the_wrong_split_is_refused_before_anything_is_fitted():
    def refuse(n, seed):
        raise AssertionError("drawn")

    with pytest.raises(DataError, match="60 of the 60 real training images are images of the test"):
        evaluate("paper", refuse, TEST, TEST, Options(CLASSES, n=60))
    with pytest.raises(DataError, match="60 of the 60 synthetic images are images of the test set"):
        evaluate("paper", lambda n, seed: TEST, TRAIN, TEST, Options(CLASSES, n=60))


@pytest.mark.slow
def test_dpimagebench_has_its_networks_alone_and_the_ceiling_leaves_validation_out(monkeypatch):
    short = partial(dpimagebench.SelectedByNoisedCounts, epochs=1)
    monkeypatch.setattr(dpimagebench, "SelectedByNoisedCounts", short)
    found = evaluate(
        "paper", lambda n, seed: blobs(n, seed, side=8), blobs(120, 1, side=8),
        blobs(60, 2, side=8),
        Options(
            CLASSES, n=60, runs=1, threads=1, reference=False, classifiers="dpimagebench",
            epsilon=1.0,
        ),
    )  # fmt: skip
    assert list(found.figures) == [f"accuracy/{name}" for name in dpimagebench.NAMES]
    assert found.train_images == 110
    assert "DPImageBench's networks" in found.table()
    assert "accuracy" not in found.to_dict()
