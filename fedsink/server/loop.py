"""The training loop: rounds, metrics, pictures, checkpoints; stop and continue."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from fedsink.errors import CheckpointError, ClientError
from fedsink.models import save as save_generator
from fedsink.protocol.exchange import Keeper
from fedsink.reporting.loggers import Observer
from fedsink.reporting.progress import Progress
from fedsink.server import checkpoint
from fedsink.server.folder import RunFolder, command_for
from fedsink.server.interrupt import InterruptedRunError, Interruption
from fedsink.server.snapshot import snapshot
from fedsink.strategies.round_strategy import RoundStrategy
from fedsink.values import checks


@dataclass(frozen=True)
class LoopSettings:
    """How a run is watched and saved.

    Attributes:
        checkpoint_seconds: at most this much work is lost by a kill.
        pictures: how many sample grids are drawn between the first and the last.
        html: whether report.html is written when the run has ended.

    Raises:
        ConfigError: a value out of range.
    """

    checkpoint_seconds: float = 10.0
    pictures: int = 4
    html: bool = True

    def __post_init__(self) -> None:
        checks.number("report.checkpoint_seconds", self.checkpoint_seconds)
        checks.count("report.pictures", self.pictures, minimum=0)
        checks.flag("report.html", self.html)


def train(
    grid: Grid,
    strategy: RoundStrategy,
    folder: RunFolder,
    settings: LoopSettings,
    identity: dict[str, Any],
    title: str,
    *,
    classes: Sequence[str],
    timeout: float | None = None,
    command: str | None = None,
    observer: Observer | None = None,
) -> dict[str, Any]:
    """Run the strategy to its last round, from its checkpoint if there is one.

    Args:
        grid: how clients are reached.
        strategy: owns the generator.
        folder: where everything is written.
        settings: how often.
        identity: public values that a checkpoint must share to be resumed (plan, seed).
        title: shown by the progress display.
        classes: names of the generator's classes, for its pictures.
        timeout: seconds to wait for the replies of one round; None waits for ever.
        command: what continues a stopped run, for its last words; None: a simulation's.
        observer: is told what is logged and pictured, from the checkpoint on; None: nobody is.

    Returns:
        The content of metrics.json.

    Raises:
        InterruptedRunError: Ctrl-C or SIGTERM; the checkpoint holds every finished round.
        CheckpointError: the checkpoint belongs to another run.
        ClientError: clients failed.
    """
    observer = observer or Observer()
    elapsed = _restore(strategy, folder, identity)
    observer.begin(strategy.round)
    started = time.monotonic() - elapsed
    saved = time.monotonic()
    parts = settings.pictures + 1
    pictured = {strategy.rounds * part // parts for part in range(1, parts)}

    def save() -> None:
        nonlocal saved
        # First: a checkpoint must never be ahead of what the clients can go on from.
        if isinstance(grid, Keeper):
            grid.keep(strategy.round)
        observer.keep()
        tensors, values = strategy.state()
        values |= {
            "round": strategy.round,
            "identity": identity,
            "seconds": time.monotonic() - started,
            "missed": {str(client): count for client, count in strategy.missed.items()},
        }
        checkpoint.save(folder.checkpoint, tensors, values)
        saved = time.monotonic()

    def picture() -> None:
        observer.picture(strategy.round, snapshot(strategy, folder, classes))

    with (
        Interruption() as stop,
        Progress(strategy.rounds, title, start_round=strategy.round) as progress,
    ):
        while strategy.round < strategy.rounds:
            before, number = strategy.round, strategy.message + 1
            strategy.absent = []
            try:
                messages = strategy.configure_train(number, ArrayRecord(), ConfigRecord(), grid)
                if number == 1:
                    checkpoint.save_uploads(folder.checkpoint, strategy.uploads())
                    picture()
                replies = grid.send_and_receive(messages, timeout=timeout) if messages else []
                _, metrics = strategy.aggregate_train(number, replies)
            except ClientError:
                # A simulation's clients have gone on, and remember a round that has failed.
                if before > 0 and not isinstance(grid, Keeper):
                    save()
                raise
            record: dict[str, Any] = {
                "round": strategy.round,
                **dict(metrics or {}),
                **({"absent": strategy.absent} if strategy.absent else {}),
                "epsilon": _finite(epsilon := strategy.epsilon_bound()),
                "seconds": round(time.monotonic() - started, 4),
            }
            folder.log(record)
            observer.metrics(record)
            unfinished = strategy.round < strategy.rounds
            name = "ε ≤" if unfinished and epsilon > 0.0 and not math.isinf(epsilon) else "ε"
            shown = "∞" if math.isinf(epsilon) else epsilon
            columns = {"loss": record["loss"], name: shown, **_signal(record)}
            progress.update(strategy.round, **columns)
            if unfinished and any(before < round <= strategy.round for round in pictured):
                picture()
            if stop.requested or time.monotonic() - saved > settings.checkpoint_seconds:
                save()
            if stop.requested and unfinished:
                raise InterruptedRunError(
                    f"Stopped after round {strategy.round} of {strategy.rounds}.",
                    command or command_for("simulate", "resume", folder.path),
                )
    picture()
    save()
    save_generator(strategy.generator, folder.path)
    result = {
        "rounds": strategy.rounds,
        "seconds": round(time.monotonic() - started, 3),
        "epsilon": _finite(strategy.epsilon_so_far()),
        "label_prior": strategy.label_prior().tolist(),
    }
    if strategy.missed:
        stated = json.loads(folder.privacy.read_text())
        folder.write(folder.privacy, {**stated, "participation": _participation(strategy)})
    folder.write(folder.metrics, result)
    return result


def _participation(strategy: RoundStrategy) -> dict[str, Any]:
    """Who missed what, for privacy.json: public, since the server knows it."""
    return {
        "messages": strategy.message,
        "missed": [
            {"client": client, "messages": count}
            for client, count in sorted(strategy.missed.items())
        ],
        "meaning": (
            "All others answered every message that they were asked. Every client's ε is that of "
            "the whole plan, whether or not its answers came in time: what came late was charged "
            "and not used."
        ),
    }


def _signal(record: Mapping[str, Any]) -> dict[str, float | str]:
    """The signal-to-noise ratio as the display shows it; {} where there is none."""
    ratio = record.get("signal_to_noise")
    if ratio is None:
        return {}
    return {"S/N": f"{ratio:.2g}" if ratio > 0.0 else "below measurement"}


def _finite(epsilon: float) -> float | None:
    """ε for a JSON record, which has no ∞: null says that nothing is protected."""
    return None if math.isinf(epsilon) else epsilon


def _restore(strategy: RoundStrategy, folder: RunFolder, identity: dict[str, Any]) -> float:
    """Load the checkpoint, if there is one; seconds spent until then."""
    if uploads := checkpoint.load_uploads(folder.checkpoint):
        strategy.load_uploads(uploads)
    if not checkpoint.exists(folder.checkpoint):
        folder.rewind(0)
        return 0.0
    tensors, values = checkpoint.load(folder.checkpoint)
    if values["identity"] != identity:
        raise CheckpointError(
            f"The checkpoint in {folder.checkpoint} belongs to a run with another configuration: "
            "config.yaml was changed after the run began."
        )
    strategy.load_state(tensors, values)
    strategy.round = int(values["round"])
    strategy.missed = {int(client): count for client, count in values["missed"].items()}
    folder.rewind(strategy.round)
    return float(values["seconds"])
