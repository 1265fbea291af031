"""The rows of Reshetova, Chen, Özgür (2024): their f, their noise, the true ε."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsink.clients.node import close_nodes
from fedsink.conf.acting import compose_config
from fedsink.data import sources
from fedsink.simulation.experiment import Experiment
from fedsink.simulation.run_identity import RunIdentity
from fedsink.simulation.simulated_run import start
from fedsink.strategies.losses import LOSSES
from fedsink.strategies.privatize_once import PrivatizeOnceSettings


def settings(name: str, folder: Path, *more: str) -> PrivatizeOnceSettings:
    config = compose_config([f"experiment={name}", *more])
    strategy = Experiment.of(config, RunIdentity.fresh(0)).server.strategy
    assert isinstance(strategy, PrivatizeOnceSettings)
    return strategy


@pytest.mark.medium
@pytest.mark.quick("half_circle_*", "reshetova_mnist_laplace196*")
@pytest.mark.parametrize(
    ("name", "f", "epsilon", "sigma"),
    [
        # mathematics.md §3, corrections 2 to 5
        ("reshetova_mnist_laplace523", "pixel_range", 522.7, 3.0),
        ("reshetova_mnist_laplace196", "pixel_range", 196.0, 8.0),
        ("reshetova_mnist_laplace35", "l1_ball", 35.0, 8.0),
        ("reshetova_mnist_laplace25", "l1_ball", 25.0, 11.2),
        ("reshetova_mnist_gaussian35", "l2_ball", 35.0, 7.247),
        ("reshetova_mnist_gaussian30", "l2_ball", 30.0, 8.065),
        ("reshetova_mnist_gaussian25", "l2_ball", 25.0, 9.174),
        ("reshetova_fashion_laplace224", "pixel_range", 224.0, 7.0),
        ("reshetova_fashion_laplace196", "pixel_range", 196.0, 8.0),
        ("reshetova_half_circle_laplace", "point_ball", 7.071, 0.4),
        ("reshetova_half_circle_gaussian", "point_ball", 6.55, 1.276),
        ("half_circle_laplace", "point_ball", 5.86, 0.483),
    ],
)
def test_the_rows_are_the_papers_noise_at_its_true_epsilon(
    name: str, f: str, epsilon: float, sigma: float, tmp_path: Path
) -> None:
    row = settings(name, tmp_path)
    plan = row.plan
    assert plan.map.name == f
    assert plan.total_epsilon == pytest.approx(epsilon, rel=1e-3)
    assert plan.image_mechanism.scale == pytest.approx(sigma, rel=1e-3)
    assert plan.delta == (1e-4 if "gaussian" in name else 0.0)
    assert plan.label_mechanism is None
    assert row.matched
    half = name.startswith(
        ("reshetova_mnist", "reshetova_fashion")
    )  # at 250 records a step more of λ ends in the mean picture
    assert row.effective_lam == (0.5 if half else 1.0) * plan.matched_cost.lam
    if half:
        published = settings(name, tmp_path, "scale=paper")
        assert published.effective_lam == published.plan.matched_cost.lam


@pytest.mark.medium
@pytest.mark.quick("denoised")
@pytest.mark.parametrize("loss", [name for name in LOSSES if name != "matched"])
def test_every_comparison_is_the_same_row_with_another_loss(loss: str, tmp_path: Path) -> None:
    matched = settings("reshetova_mnist_gaussian35", tmp_path)
    other = settings("reshetova_mnist_gaussian35", tmp_path, f"strategy.loss={loss}")
    assert other.loss == loss
    assert not other.matched
    assert other.plan == matched.plan
    assert (other.rounds, other.batch) == (matched.rounds, matched.batch)


@pytest.fixture
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    close_nodes()
    sources.forget()


@pytest.mark.slow
@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("loss", ["denoised", "noisy_w1", "noisy_wgan"])
def test_a_comparison_runs_to_its_end_and_says_what_it_is(
    loss: str, tiny_data: Path, tmp_path: Path
) -> None:
    config = compose_config(
        ["experiment=reshetova_mnist_laplace35", "scale=smoke", f"strategy.loss={loss}"]
    )
    config["report"]["pictures"] = 0
    config["data"]["root"] = str(tiny_data)
    folder = start(config, tmp_path / "run")
    stated = json.loads((folder / "privacy.json").read_text())
    training, differs = stated["training"], stated["paper"]["differs"]
    assert (training["loss"], training["matched"], training["lam"]) == (loss, False, 0.0)
    assert differs["strategy.loss"] == {"here": loss, "published": "matched"}
    assert differs["strategy.batch"] == {"here": 8, "published": 400}
    assert any("0.8" in sentence for sentence in stated["paper"]["besides"])
