"""The central mode in one process and, on a GPU, in one CUDA graph per round.

The same functions as behind Flower's messages, batched over all clients, on fixed shapes and
without a look at a value from the host: `generate`, the clients' clipped gradients with their
noise, and `apply`. Nothing here but `run` imports Flower, Ray or Hydra.
"""

from __future__ import annotations

from fedsink.simulation.fused.step import FusedStep

__all__ = ["FusedStep"]
