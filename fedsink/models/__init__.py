"""Image generators: they know nothing of privacy, networks or files of private data."""

from __future__ import annotations

from fedsink.models.base import Generator
from fedsink.models.biggan import BigGan
from fedsink.models.conv import Conv
from fedsink.models.dcgan import Dcgan
from fedsink.models.dct_mlp import DctMlp
from fedsink.models.ema import Ema
from fedsink.models.io import load, save
from fedsink.models.mlp import Mlp
from fedsink.models.observation import Observation
from fedsink.models.registry import GENERATORS, build, parameter_count
from fedsink.models.sampling import sample

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
