"""References for a finished run's figures; tests/commands/test_evaluate.py has the command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedsink.data.spec import DataSpec
from fedsink.models import Observation, build
from fedsink.results.evaluation import exact_w2, suites
from fedsink.results.evaluation.suites import FastFigures, nearest_mean_accuracy
from fedsink.server.finished import FinishedRun
from fedsink.server.folder import RunFolder
from fedsink.simulation import run_figures
from fedsink.simulation.run_figures import evaluate_run

Finish = Callable[..., FinishedRun]


@pytest.fixture
def finish(
    tmp_path: Path, install_source: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> Finish:
    """Finishes a run on data whose splits differ in size and lie far from each other."""

    def read(spec: DataSpec, split: str) -> tuple[Tensor, Tensor]:
        n, low = {"train": (60, 0.0), "test": (30, 0.5)}[split]
        random = torch.Generator().manual_seed(n)
        labels = torch.arange(n) % len(spec.classes)
        return low + 0.5 * torch.rand(n, *spec.shape, generator=random), labels

    def finished(shape: tuple[int, ...], classes: str, **options: Any) -> FinishedRun:
        data = DataSpec("tiny", shape, tuple(classes), 60)
        generator = build("mlp", shape, len(classes), latent_dim=2, hidden=[8], **options)
        prior = torch.full((len(classes),), 1 / len(classes))
        run = FinishedRun(RunFolder(tmp_path), {}, generator, data, prior, None, Observation())
        monkeypatch.setattr(run_figures, "open_run", lambda text, *, observed: run)
        return run

    install_source(read)
    return finished


def test_points_are_compared_with_those_of_the_test(finish: Finish) -> None:
    run = finish((2,), "a", output="linear")
    found = evaluate_run("here", n=20, seed=4).figures
    real = run_figures.load(run.data, "test").values[:20]
    assert found["w2"] == exact_w2(run.draw(20, 4)[0], real)


def test_real_pictures_are_the_training_ones_and_as_many_as_are_drawn(
    finish: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, int, int]] = []

    def accuracies(
        data: Any, test: Any, *, origin: str, size: int, progress: Any, **_: Any
    ) -> dict[str, float]:
        seen.append((origin, len(data[1]), len(test[1]), size))
        if progress is not None:
            progress("cnn: epoch 1")
        return {"cnn": len(seen) / 10}

    monkeypatch.setattr(suites, "accuracies", accuracies)
    finish((1, 4, 4), "ab")
    lines: list[str] = []
    found = evaluate_run("here", n=20, report=lines.append)
    assert lines[1] == "real training images, 2 of 3: cnn: epoch 1"
    columns = [("synthetic", 20), ("real training", 60), ("class mean", 100)]
    assert seen == [(origin, drawn, 30, 20) for origin, drawn in columns]
    row = found.table.splitlines()[2]
    assert row.split() == ["accuracy", "cnn", "10.0", "%", "20.0", "%", "30.0", "%"]
    keys = ("accuracy", "real_accuracy", "class_means_accuracy")
    assert [found.figures[key] for key in keys] == [{"cnn": 0.1}, {"cnn": 0.2}, {"cnn": 0.3}]
    evaluate_run("here", n=20, reference=False)
    assert seen[3:] == seen[:1]


@pytest.mark.parametrize(
    ("options", "hours"),
    [
        ({"classifiers": "dpimagebench", "suite": "paper", "n": 60_000}, 230),
        ({"classifiers": "dpimagebench", "suite": "paper", "n": 60_000, "runs": 2}, 460),
        ({"classifiers": "dpimagebench", "suite": "paper", "n": 60_000, "reference": True}, 460),
        ({"classifiers": "published", "suite": "full", "n": 60_000}, 3),
        ({"classifiers": "dpimagebench", "suite": "paper", "n": 200}, None),
        ({"classifiers": "published", "suite": "full", "n": 60_000, "runs": 1}, None),
        ({"suite": "full", "n": 60_000}, None),
    ],
)
def test_hours_are_agreed_to_before_they_begin(
    options: dict[str, Any], hours: float | None, finish: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AgreedError(Exception):
        pass

    def stop(*_: Any, **__: Any) -> None:
        raise AgreedError(None)

    def agree(expected: float) -> None:
        raise AgreedError(round(expected))

    finish((1, 28, 28), "ab")
    monkeypatch.setattr(run_figures, "finished_record", lambda run: (None, {"epsilon": 1.0}))
    monkeypatch.setattr(run_figures, "evaluate", stop)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(AgreedError) as told:
        evaluate_run("here", agree=agree, **options)
    assert told.value.args == (hours,)


@pytest.mark.parametrize(
    ("shape", "images"),
    [((1, 8, 8), 10_000), ((1, 28, 28), 10_000), ((3, 32, 32), 2552), ((3, 256, 256), 1000)],
)
def test_large_images_are_fewer(shape: tuple[int, ...], images: int) -> None:
    assert run_figures._images(shape) == images


def test_class_means_name_the_nearest() -> None:
    images = torch.tensor([[0.0], [2.0], [10.0], [12.0]]).view(4, 1, 1, 1)
    labels = torch.tensor([3, 3, 7, 7])
    test = torch.tensor([[1.0], [5.9], [6.1], [11.0]]).view(4, 1, 1, 1)
    assert nearest_mean_accuracy((images, labels), (test, torch.tensor([3, 3, 7, 7]))) == 1.0
    assert nearest_mean_accuracy((images, labels), (test, torch.tensor([3, 7, 3, 7]))) == 0.5


def test_data_that_are_too_easy_are_called_so() -> None:
    figures = {"accuracy": {"cnn": 1.0}, "nearest_mean_accuracy": 0.99}
    easy = "these data are too easy to tell generators apart."
    assert FastFigures(figures).table().endswith(f"name 99.0 % rightly: {easy}")
    other = FastFigures({**figures, "nearest_mean_accuracy": 0.8})
    assert other.table().endswith("name 80.0 % rightly.")
