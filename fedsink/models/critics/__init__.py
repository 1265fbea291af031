"""Wasserstein critics: many of one architecture at once, as functions of stacked weights."""

from __future__ import annotations

from fedsink.models.critics.adam import Adam
from fedsink.models.critics.base import Critic, wgan_gp_losses
from fedsink.models.critics.convolution import ConvolutionCritic
from fedsink.models.critics.local_generator import LocalGenerator
from fedsink.models.critics.perceptron import PerceptronCritic
from fedsink.models.critics.training import CriticTraining

__all__ = [
    "Adam",
    "ConvolutionCritic",
    "Critic",
    "CriticTraining",
    "LocalGenerator",
    "PerceptronCritic",
    "wgan_gp_losses",
]
