from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fedsink.models import Generator
from fedsink.models.critics import CriticTraining
from fedsink.privacy import (
    CriticClip,
    JointSchedule,
    PickSchedule,
    PrivacyPlan,
    RowClip,
    TurnSchedule,
)
from fedsink.protocol.gs_wgan import Critics
from fedsink.strategies.gs_wgan import GSWGAN, GSWGANSettings
from fedsink.strategies.trainer import OptimizerSettings


@pytest.fixture
def make_gs_wgan(make_generator: Callable[..., Generator]) -> Callable[..., GSWGAN]:
    """A GS-WGAN strategy; keywords are of the plan, the optimiser or the settings."""

    def make(
        *, clients: int = 3, rounds: int = 6, critics: int = 2, turns: int | None = None,
        sigma: float = 1.0, lr: float = 0.05, key: bytes = b"server", published: bool = False,
        **more: Any,
    ) -> GSWGAN:  # fmt: skip
        clip = RowClip(1.0, 5) if published else CriticClip(1.0, critics)
        schedule = JointSchedule() if turns is None else TurnSchedule(turns)
        if published:
            schedule = PickSchedule(clients)
        training = CriticTraining(critics, steps=2, warm=4, batch=3, lr=5e-3)
        settings = GSWGANSettings(
            plan=PrivacyPlan(1.0, sigma, rounds, clip, schedule, 1e-5),
            critics=Critics(training, classes=3, hidden=8, scale=2.0),
            view={"name": "pixel", "shape": [4]},
            rows=5,
            fakes=7,
            optimizer=OptimizerSettings(lr, (0.5, 0.9), warmup=2, ema=0.9),
            clients=clients,
        )
        return GSWGAN(replace(settings, **more), make_generator(3), key)

    return make
