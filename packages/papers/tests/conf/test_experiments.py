"""The experiments that repeat a paper's row have the paper's values."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fedsink.conf.acting import compose_config
from fedsink.configuration import Configuration
from fedsink.privacy import PrivacyPlan, UnprotectedPlan
from fedsink.simulation.experiment import Experiment
from fedsink.simulation.run_identity import RunIdentity
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhornSettings
from fedsink.values import leaves
from tests.conf.conftest import NAMES, root

# The rows of Cao et al. 2021 that are this project's anchors, and its ablations.
PAPERS, TEMPLATES = map(
    yaml.safe_load(Path(__file__).with_name("papers.yaml").read_text()).get, ("rows", "templates")
)
PUBLISHED = [name for name in NAMES if name.startswith("dp_sinkhorn_")]
RESHETOVA = [name for name in NAMES if name.startswith(("reshetova_", "half_circle_"))]


def composed(name: str, *more: str) -> dict[str, object]:
    return compose_config([f"experiment={name}", *root(name), *more])


def keys(values: dict[str, object]) -> dict[str, object]:
    """The keys of a row, after those of the templates that it is like."""
    names = values.get("like", [])
    found = {k: v for name in names for k, v in TEMPLATES[name].items()}  # type: ignore[attr-defined]
    return {**found, **{key: value for key, value in values.items() if key != "like"}}


@pytest.mark.medium
@pytest.mark.quick("*celeba", "*mnist_m1", "parameter_*", "*laplace35", "*mnist_l?", "*_fashion")
@pytest.mark.parametrize("name", PAPERS)
def test_the_paper_scale_has_the_papers_values(name: str) -> None:
    """Key by key, except for the deviations that stand beside them."""
    row, config = PAPERS[name], composed(name, "scale=paper")
    published = keys(row["values"])
    paper = Configuration.read(config).paper
    assert paper is not None
    assert paper.source == row["source"]
    assert dict(leaves(paper.values)) == published
    assert paper.statement(config)["differs"] == {
        key: {"here": here, "published": published[key]}
        for key, here in keys(row.get("deviations", {})).items()
    }
    for key in published:  # or a misspelt key of the table would be a deviation of None
        group, _, last = key.rpartition(".")
        found = config
        for word in group.split(".") if group else ():
            found = found[word]  # type: ignore[assignment]
        assert last in found


@pytest.mark.slow  # composes every experiment
def test_every_experiment_that_repeats_a_paper_is_in_the_table() -> None:
    assert {name for name in NAMES if composed(name)["paper"] is not None} == set(PAPERS)
    names = ("dp_sinkhorn_", "reshetova_", "parameter_", "gs_wgan_published_")
    named = {name for name in NAMES if name.startswith(names)}
    assert named - {"gs_wgan_published_digits"} == set(PAPERS)  # reduced, on data of no paper


@pytest.mark.medium
def test_what_differs_from_the_paper_follows_what_is_typed() -> None:
    typed = composed("dp_sinkhorn_mnist_m1_nonprivate", "scale=paper", "strategy.m=2", "eps=3")
    stated = Configuration.read(typed).of_paper(typed)["paper"]
    assert stated["differs"]["strategy.m"] == {"here": 2, "published": 1.0}
    assert stated["differs"]["eps"] == {"here": 3, "published": "inf"}
    assert "strategy.p" not in stated["differs"]
    smaller, other = composed("dp_sinkhorn_mnist_m1"), composed("mnist_eps10")
    reduced = Configuration.read(smaller).of_paper(smaller)["paper"]["differs"]
    assert {"rounds", "rate", "clients", "strategy.schedule", "generator.width"} <= set(reduced)
    assert Configuration.read(other).of_paper(other) == {}


def plan(name: str, tmp_path: Path, *more: str) -> PrivacyPlan | UnprotectedPlan:
    config = composed(name, "scale=paper", *more)
    strategy = Experiment.of(config, RunIdentity.fresh(0)).server.strategy
    assert isinstance(strategy, DPSinkhornSettings)
    return strategy.plan


@pytest.mark.medium
@pytest.mark.quick("*celeba", "*mnist_m1")
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_paper_scale_is_the_published_mechanism(name: str, tmp_path: Path) -> None:
    """ε by the published accountant (mathematics.md, table of reference numbers)."""
    found = plan(name, tmp_path)
    expected = (200 / 162770, 0.8) if "celeba" in name else (1 / 1200, 1.1)
    assert found.rate == pytest.approx(expected[0], rel=1e-12)
    assert found.clip.name == "batch"
    assert found.uses == found.rounds
    if "nonprivate" in name:
        assert isinstance(found, UnprotectedPlan)
        return
    assert isinstance(found, PrivacyPlan)
    assert (found.noise_multiplier, found.clip.bound) == (expected[1], 0.5)
    claimed = found.epsilon("rdp-classic")
    if "celeba" in name:  # the correction: not the published 10
        assert found.delta == 1e-6
        assert claimed == pytest.approx(16.4, abs=0.05)
    else:
        assert 9.9 < claimed <= 10.0


@pytest.mark.medium
@pytest.mark.parametrize("name", ["gs_wgan_published_mnist", "gs_wgan_published_fashion"])
def test_gs_wgan_at_the_paper_scale_has_the_published_claim(name: str, tmp_path: Path) -> None:
    """ε = 9.99 by their Theorem A.1; the proved ε is in the hundreds."""
    config = composed(name, "scale=paper")
    strategy = Experiment.of(config, RunIdentity.fresh(0)).server.strategy
    stated = strategy.statement("secret")
    assert stated["epsilon_published"] == pytest.approx(9.993, abs=5e-4)
    assert stated["epsilon"] > 300


@pytest.mark.medium
@pytest.mark.quick("*celeba", "*mnist_m1")
@pytest.mark.parametrize("name", sorted({*PAPERS, *RESHETOVA}))
def test_published_pictures_are_the_generator_s_own(name: str) -> None:
    assert Configuration.read(composed(name)).observation.changes_nothing


@pytest.mark.slow
def test_the_rows_differ_in_what_their_names_say() -> None:
    base = composed("dp_sinkhorn_mnist_m1")["strategy"]
    assert isinstance(base, dict)
    for name, changed in {
        "dp_sinkhorn_mnist_m3": {"m": 3.0},
        "dp_sinkhorn_mnist_l2": {"m": 0.0, "p": 0.0},
        "dp_sinkhorn_mnist_l1": {"cost": "l1", "p": 0.0},
        "dp_sinkhorn_mnist_biased": {"p": 0.0},
        "dp_sinkhorn_mnist_debiased": {"p": 1.0},
        "dp_sinkhorn_fashion_m1": {},
        "dp_sinkhorn_mnist_m1_nonprivate": {},
        "dp_sinkhorn_mnist_m3_nonprivate": {"m": 3.0},
        "dp_sinkhorn_celeba": {"m": 0.0, "lam": 5.0, "rows": 10, "history": 3},
        "parameter_gradient_mnist": {
            "name": "parameter_gradient",
            "schedule": "joint",
            "m": 0.0,
            "p": 0.0,
            "bound": 1.0,
        },
    }.items():
        assert composed(name)["strategy"] == {**base, **changed}
    assert composed("dp_sinkhorn_fashion_m3")["data"]["name"] == "fashion_mnist"  # type: ignore[index]
    assert composed("dp_sinkhorn_mnist_m1_nonprivate")["eps"] == float("inf")
