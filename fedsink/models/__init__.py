"""Image generators: they know nothing of privacy, networks or files of private data.

>>> import torch
>>> from fedsink.models import build, sample
>>> from fedsink.privacy import Stream
>>> generator = build("dct_mlp", (1, 8, 8), classes=10)
>>> images = sample(generator, 3, torch.tensor([0, 1, 1]), Stream(b"key"))
>>> tuple(images.shape)
(3, 1, 8, 8)
"""

from __future__ import annotations

from fedsink.models.convolutional import BigGan, Conv, Dcgan
from fedsink.models.generator_base import Generator
from fedsink.models.generators import GENERATORS, build, load, parameter_count, sample, save
from fedsink.models.observation import Observation
from fedsink.models.perceptrons import DctMlp, Mlp
from fedsink.models.weights import Ema

__all__ = [
    "GENERATORS",
    "BigGan",
    "Conv",
    "Dcgan",
    "DctMlp",
    "Ema",
    "Generator",
    "Mlp",
    "Observation",
    "build",
    "load",
    "parameter_count",
    "sample",
    "save",
]
