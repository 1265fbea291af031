"""A clip of one's own in a federation: played here, named in privacy.json, known to nobody else."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedsink as fs
from fedsink.commands import verify
from fedsink.errors import CheckpointError, ConfigError, PrivacyError
from fedsink.privacy import ClassSchedule, clips
from fedsink.server.folder import RunFolder


class Normalised(fs.RecordClip):
    name = "normalised"

    def transform(self, gradients: Tensor) -> Tensor:
        return self.bound * gradients / (0.01 + gradients.norm(dim=1, keepdim=True))


IMAGES, LABELS = torch.rand(40, 1, 6, 6), torch.arange(40) % 2
NORMALISED, SIZES = Normalised(1.0), set()


@dataclass(frozen=True)
class Watched(Normalised):
    name = "watched"
    factor: float = 1.0
    limits: tuple[tuple[float, ...], ...] = ((0.1, 0.2),)

    def transform(self, gradients: Tensor) -> Tensor:
        SIZES.add(gradients.shape[1])
        return self.factor * gradients


class WatchedBatch(fs.BatchClip):
    name = "watched-batch"
    transform = Watched.transform
    factor = 1.0


class Mean(fs.RecordClip):
    name = "mean"

    def transform(self, gradients: Tensor) -> Tensor:
        return gradients - gradients.mean(0)


def fitted(
    folder: Path,
    engine: str = "local",
    clip: Any = NORMALISED,
    **more: Any,
) -> fs.Run:
    plan = fs.PrivacyPlan.solve(rate=0.5, clip=clip, delta=1e-5, sigma=2.0, rounds=2, **more)
    federation = fs.Federation(
        IMAGES, LABELS, clients=4, classes=2, nominal_records=40, engine=engine
    )
    return federation.fit(fs.DPSinkhorn("mlp", plan, lam=2.0), folder)


@pytest.mark.medium
def test_it_is_played_here_and_named_in_the_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(clips, "_OWN", {})
    run = fitted(tmp_path / "run")
    assert run.privacy["clip"] == "normalised"
    assert "Normalised, on the word of who wrote it" in run.privacy["clip_promised_by"]
    assert verify.run([f"run={run.folder}"]) == 0
    assert "that somebody's own clip looks at each gradient alone" in capsys.readouterr().out
    clips._OWN.clear()  # as in another process
    assert verify.run([f"run={run.folder}"]) != 0
    assert "the clip 'normalised' is none of record, batch" in capsys.readouterr().out


def test_other_processes_do_not_know_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'Normalised is a clip of your own.*engine="local", not'):
        fitted(tmp_path / "run", "ray")
    assert not (tmp_path / "run").exists()


def test_one_that_looks_at_other_records_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    with pytest.raises(PrivacyError, match=r"Mean does not keep the promise.*depends on the"):
        fitted(tmp_path / "run", clip=Mean(1.0))
    assert not (tmp_path / "run").exists()


@pytest.mark.medium
@pytest.mark.parametrize(
    ("clip", "more"),
    [
        (Watched(1.0), {}),
        (Watched(1.0), {"capacity": 38, "nominal_records": 40}),
        (Watched(1.0), {"schedule": ClassSchedule(2)}),
        (WatchedBatch(1.0), {}),
    ],
)
def test_it_is_attacked_with_gradients_of_the_size_that_the_fit_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clip: Any, more: dict[str, Any]
) -> None:
    monkeypatch.setattr(clips, "_OWN", {})
    SIZES.clear()
    fitted(tmp_path / "run", clip=clip, **more)
    assert len(SIZES) == 1


@pytest.mark.medium
def test_a_run_is_continued_with_the_same_settings_of_its_clip_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clips, "_OWN", {})
    log = RunFolder.log

    def stopped(self: RunFolder, record: dict[str, Any]) -> None:
        log(self, record)
        if record["round"] == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "log", stopped)
        with pytest.raises(KeyboardInterrupt):
            fitted(tmp_path / "run", clip=Watched(1.0))
    for other, what in (
        (Watched(1.0, 0.5), r"clip\.factor=1\.0, and this fit has 0\.5"),
        (Watched(1.0, 1.0, ((0.1, 0.3),)), r"clip\.limits"),
        (Normalised(1.0), r"strategy\.plan\.clip\."),
    ):
        with pytest.raises(CheckpointError, match=what):
            fitted(tmp_path / "run", clip=other)
    assert fitted(tmp_path / "run", clip=Watched(1.0)).privacy["clip"] == "watched"
