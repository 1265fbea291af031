"""A clip of one's own in a federation: played here, named in privacy.json, known to nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedsink as fs
from fedsink.commands import verify
from fedsink.errors import ConfigError
from fedsink.privacy import clips


class Normalised(fs.RecordClip):
    name = "normalised"

    def transform(self, gradients: Tensor) -> Tensor:
        return gradients / (0.01 + gradients.norm(dim=1, keepdim=True))


IMAGES, LABELS = torch.rand(40, 1, 6, 6), torch.arange(40) % 2


def fitted(folder: Path, engine: str = "local") -> fs.Run:
    plan = fs.PrivacyPlan.solve(rate=0.5, clip=Normalised(1.0), delta=1e-5, sigma=2.0, rounds=2)
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
