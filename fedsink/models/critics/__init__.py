"""Wasserstein critics: many of one architecture at once, as functions of stacked weights."""

from __future__ import annotations

from fedsink.models.critics.architectures import (
    ConvolutionCritic,
    Critic,
    LocalGenerator,
    PerceptronCritic,
)
from fedsink.models.critics.stacked import Adam
from fedsink.models.critics.training import CriticTraining, wgan_gp_losses

__all__ = [
    "Adam",
    "ConvolutionCritic",
    "Critic",
    "CriticTraining",
    "LocalGenerator",
    "PerceptronCritic",
    "wgan_gp_losses",
]
