"""Generators."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsink.models import Generator


def weights(generator: Generator) -> Tensor:
    """Whole state of the generator, buffers included, as one vector on the CPU."""
    return torch.cat([tensor.flatten().cpu() for tensor in generator.state_dict().values()])
