"""A run as Python sees it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import fedsink
from fedsink.clients.node import close_nodes
from fedsink.errors import ConfigError, FedsinkError
from fedsink.results.pages.page import number


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedsink.Run:
    made = fedsink.simulate(
        {"report.pictures": 1}, engine="local", clients=2, rounds=20, seed=0,
        folder=tmp_path_factory.mktemp("run") / "a<b>",
    )  # fmt: skip
    close_nodes()
    return made


def test_what_the_folder_holds(run: fedsink.Run) -> None:
    assert run.finished
    assert run.config["mode"] == "central"
    assert run.privacy == json.loads((run.folder / "privacy.json").read_text())
    assert list(run.pictures) == [0, 10, 20]
    assert all(path.is_file() for path in run.pictures.values())


def test_metrics_are_a_table(run: fedsink.Run) -> None:
    table = pandas.DataFrame(run.metrics).set_index("round")
    assert list(table.index) == list(range(1, 21))
    assert table["epsilon"].is_monotonic_increasing
    assert table["epsilon"].iloc[-1] == run.privacy["epsilon"]
    run.metrics.clear()
    run.metrics[0].clear()
    assert [record["round"] for record in run.metrics] == list(range(1, 21))


def test_samples_are_those_of_the_command(run: fedsink.Run, tmp_path: Path) -> None:
    from fedsink.commands.sample import run as sample

    images, labels = run.sample(30, seed=3)
    assert images.shape == (30, 1, 8, 8)
    assert labels.dtype == torch.int64
    sample([f"run={run.folder}", f"out={tmp_path / 'x.npz'}", "n=30", "seed=3"])
    with np.load(tmp_path / "x.npz") as written:
        assert np.array_equal(written["y"], labels.numpy())
        assert np.array_equal(written["x"], (images * 255).round().byte().numpy())
    bare, same = run.sample(30, seed=3, observation=False)
    assert torch.equal(same, labels)
    assert not torch.equal(bare, images)
    _, few = run.sample(30, balanced=True, classes=("3", "5"))
    assert torch.bincount(few).tolist() == [0, 0, 0, 15, 0, 15]
    assert isinstance(run.generator, torch.nn.Module)


@pytest.mark.slow
def test_evaluation_is_that_of_the_command(
    run: fedsink.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedsink.commands.evaluate import run as evaluate

    measured = run.evaluate(n=100, seed=1)
    assert set(measured.figures["accuracy"]) == {"logreg", "mlp", "cnn"}
    assert run.evaluations["evaluation"] == measured.figures
    assert repr(measured) == measured.table
    evaluate([f"run={run.folder}", "n=100", "seed=1"])
    assert capsys.readouterr().out == f"{measured.table}\n{measured.path}\n"
    theirs = run.evaluations["evaluation"]
    assert {**theirs, "seconds": 0} == {**measured.figures, "seconds": 0}


@pytest.mark.medium
def test_the_page_about_it_is_that_of_the_command(run: fedsink.Run) -> None:
    page = run.report()
    assert page == run.folder / "report.html"
    assert f"{run.privacy['epsilon']:.4g}" in page.read_text()


@pytest.mark.medium
def test_its_card_is_that_of_the_command(run: fedsink.Run, tmp_path: Path) -> None:
    from fedsink.commands.card import run as card

    out = tmp_path / "card.md"
    assert card([f"run={run.folder}", f"out={out}", "license=mit"]) == 0
    assert run.card("mit") == out.read_text()


def test_a_notebook_shows_an_error_in_one_line() -> None:
    with pytest.raises(FedsinkError) as refused:
        fedsink.simulate(eps=-1)
    [shown] = refused.value._render_traceback_()
    assert shown.endswith("Error: eps must be a finite number > 0, received -1.")


def test_how_it_shows_itself(run: fedsink.Run) -> None:
    assert repr(run) == (
        f"<fedsink.Run {run.folder}: central, ε = {run.privacy['epsilon']:.4g}, δ = 1e-05 per "
        "record, 20 rounds>"
    )
    html = run._repr_html_()
    assert "a&lt;b&gt;" in html
    assert 'src="data:image/png;base64,' in html


@pytest.mark.medium
def test_a_run_without_protection_says_so(tmp_path: Path) -> None:
    run = fedsink.simulate(
        eps=float("inf"), engine="local", clients=2, rounds=2, seed=0, folder=tmp_path / "run"
    )
    assert "nothing protected" in repr(run)
    assert run.metrics[-1]["epsilon"] is None


NO_COUNTS = [-1, True, False, 1.0, 1.5, float("nan"), float("inf"), "3", None, [3], -(10**30)]


@pytest.mark.parametrize("n", [0, *NO_COUNTS])
def test_a_number_of_pictures_that_is_none_is_refused(run: fedsink.Run, n: Any) -> None:
    message = re.escape(f"n must be a whole number of at least 1, not {n!r}.")
    for more in ({}, {"balanced": True}, {"classes": ("3",)}, {"observation": False}):
        with pytest.raises(ConfigError, match=message):
            run.sample(n, **more)
    if n != 0:
        with pytest.raises(ConfigError, match="seed must be a whole number of at least 0, not"):
            run.sample(1, seed=n)


@pytest.mark.parametrize("n", [10**12, 10**20, 10**400])
def test_more_pictures_than_the_machine_holds_are_refused(run: fedsink.Run, n: int) -> None:
    with pytest.raises(
        ConfigError, match=r"n=10+ of the shape \(1, 8, 8\) take .* draw them in par"
    ):
        run.sample(n)


def test_a_number_of_pictures_may_be_numpys(run: fedsink.Run) -> None:
    assert torch.equal(run.sample(np.int64(3))[0], run.sample(3)[0])


@pytest.mark.parametrize("key", ["n", "runs", "seed", "threads"])
def test_a_count_of_an_evaluation_that_is_none_is_refused(run: fedsink.Run, key: str) -> None:
    for value in NO_COUNTS:
        if value is None and key != "seed":
            continue
        with pytest.raises(
            ConfigError, match=rf"^{key} must be a whole number of at least \d+, not"
        ):
            run.evaluate(suite="paper", **{key: value})


@pytest.mark.slow
def test_fid_by_the_weights_of_a_file_stands_in_the_figures_and_in_the_report(
    run: fedsink.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network of random weights on small pictures, in the format of torchvision's file."""
    from torchvision.models import inception_v3

    monkeypatch.setattr("fedsink.results.evaluation.inception.INCEPTION_FEATURES", 30)
    monkeypatch.setattr("fedsink.results.evaluation.inception.SIDE", 75)
    torch.manual_seed(0)
    weights = inception_v3(weights=None, init_weights=False).state_dict()
    # Untrained layers would make every feature of every picture zero.
    weights |= {name: v / 6 for name, v in weights.items() if name.endswith("running_var")}
    torch.save(weights, tmp_path / "w.pth")
    found = run.evaluate(n=40, threads=1, inception=tmp_path / "w.pth")
    assert found.path.name == "evaluation.json"
    assert json.loads(found.path.read_text())["fid"] == found.figures["fid"] > 1e-3
    assert "FID" in found.table
    page = (run.folder / "report.html").read_text()
    _, _, row = page.partition("Fréchet Inception distance")
    assert number(found.figures["fid"]) in row.partition("</tr>")[0]
