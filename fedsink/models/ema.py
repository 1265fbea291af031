"""An exponential moving average of a generator's weights: steadier pictures than the last step."""

from __future__ import annotations

import copy
from typing import Any

import torch

from fedsink.errors import ModelError
from fedsink.models.base import Generator


class Ema:
    """θ̄ ← d_t θ̄ + (1 − d_t) θ with the warm-up d_t = min(decay, (1 + t)/(10 + t)).

    t counts the updates before this one, so the first steps forget the initial weights fast.
    Parameters and floating-point buffers are averaged, other buffers copied.

    Attributes:
        model: a copy of the generator with the averaged weights; it does not require gradients.
        decay: upper limit of d_t, in [0, 1).
        updates: t.

    Raises:
        ModelError: for a decay outside [0, 1), or a state of another architecture.
    """

    def __init__(self, generator: Generator, decay: float) -> None:
        """Start the average at the generator's present weights."""
        if not 0.0 <= decay < 1.0:
            raise ModelError(f"the decay of a moving average must lie in [0, 1), got {decay}.")
        self.decay = decay
        self.updates = 0
        self.model = copy.deepcopy(generator).requires_grad_(False)

    def decay_at(self, updates: int) -> float:
        """Return d_t after t = `updates` updates."""
        return min(self.decay, (1 + updates) / (10 + updates))

    @torch.no_grad()
    def update(self, generator: Generator) -> None:
        """Move the average towards the generator's weights by one step."""
        decay = self.decay_at(self.updates)
        self.updates += 1
        present = generator.state_dict()
        averages, values = [], []
        for key, average in self.model.state_dict().items():
            if average.is_floating_point():
                averages.append(average)
                values.append(present[key])
            else:
                average.copy_(present[key])
        torch._foreach_lerp_(averages, values, 1.0 - decay)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything needed to continue after a restart."""
        average = {key: tensor.clone() for key, tensor in self.model.state_dict().items()}
        return {"decay": self.decay, "updates": self.updates, "average": average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        try:
            self.model.load_state_dict(state["average"])
        except RuntimeError as error:
            raise ModelError(
                "the saved moving average belongs to a generator of another architecture; resume "
                "with the options it was started with."
            ) from error
        self.decay = float(state["decay"])
        self.updates = int(state["updates"])
