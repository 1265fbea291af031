"""What the server knows: public numbers only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsink.server.loop import LoopSettings
from fedsink.strategies import StrategySettings


@dataclass(frozen=True)
class ServerSettings:
    """One run as the server sees it; small and picklable.

    Attributes:
        folder: the run folder.
        strategy: which algorithm, with which parameters.
        generator: registered name of the generator.
        generator_options: its options.
        shape: shape of one record.
        classes: names of the classes.
        server_seed: keys initial weights and latents; not secret, kept in the checkpoint.
        loop: how the run is watched and saved.
        device: where the generator lives.
        threads: torch threads of the server.
        command: what goes on with this run if it is stopped.
    """

    folder: Path
    strategy: StrategySettings
    generator: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    server_seed: int
    generator_options: dict[str, Any] = field(default_factory=dict)
    loop: LoopSettings = field(default_factory=LoopSettings)
    device: str = "cpu"
    threads: int = 1
    command: str = "fedsink simulate"

    @property
    def server_key(self) -> bytes:
        """Keys the strategy's own randomness: latents of rounds and pictures. Not secret."""
        return f"server|{self.server_seed}".encode()

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must share with a run that goes on from it."""
        return _plain(
            {
                "strategy": self.strategy.identity(),
                "generator": [self.generator, self.generator_options],
                "shape": self.shape,
                "classes": self.classes,
                "server_seed": self.server_seed,
            }
        )


def _plain(value: Any) -> Any:
    """The value as it reads back from JSON."""
    import json

    return json.loads(json.dumps(value, sort_keys=True, default=str))
