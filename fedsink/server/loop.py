"""The training loop of every run: rounds, metrics, pictures, checkpoints; stop and continue.

`train` asks the strategy for the messages of a round, a grid answers them, and the strategy takes a
step. In the ldp mode uploads come before the first step, and no step asks anybody. Ctrl-C and
SIGTERM end a run between two rounds, with a checkpoint.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fedsink.errors import CheckpointError, ClientError, FedsinkError
from fedsink.models import sample
from fedsink.models import save as save_generator
from fedsink.models.generators import WEIGHTS
from fedsink.protocol.exchange import Keeper, Reduction
from fedsink.reporting.drawing import save_grid, save_points
from fedsink.reporting.loggers import Observer, Observers
from fedsink.reporting.progress import Progress
from fedsink.server import checkpoint
from fedsink.server.finished import shown_map, through
from fedsink.server.folder import RecordedRun, RunFolder, command_for, note_sums, sha256_of
from fedsink.server.masked_grid import MaskedGrid
from fedsink.strategies.base.round_strategy import RoundStrategy
from fedsink.values import alike, by_range, checks, read_json, read_ranges

_COLUMNS = 10
_POINTS = 1000
_MOST_VOID = 5  # messages of secure aggregation in a row
_MOST_ABSENT = 100  # clients and ranges of them that a list names


@dataclass(frozen=True)
class LoopSettings:
    """Values of `report.*`: when a run is saved and shown."""

    checkpoint_seconds: float = 10.0  # of work that a kill loses at most
    pictures: int = 4  # sample grids between the first and the last
    html: bool = True  # write report.html when the run has ended

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
    """Runs a strategy to its last round, from its checkpoint if there is one; returns metrics.json.

    `identity` has the public values that a checkpoint must share to be resumed. `timeout` is in
    seconds for the replies of one round; None waits for ever. `command` continues the run when it
    was stopped, by an `InterruptedRunError`; None: a simulation's command.
    """
    training = _Training(
        grid, strategy, folder, settings, identity, classes, timeout, observer or Observers({})
    )
    training.restore()
    with (
        Interruption() as stop,
        Progress(strategy.rounds, title, start_round=strategy.round) as progress,
    ):
        while strategy.round < strategy.rounds:
            before = strategy.round
            line = training.step()
            unfinished = strategy.round < strategy.rounds
            folder.log(line)
            training.observer.metrics(line)
            progress.update(strategy.round, **_columns(line, unfinished))
            if unfinished and any(before < due <= strategy.round for due in training.pictured):
                training.picture()
            stopped = stop.requested  # read once: no run stops at a round that was not saved
            # Nodes unmask a message once: a run that is resumed never asks for a step it has taken.
            once = isinstance(grid, MaskedGrid)
            old = time.monotonic() - training.saved > settings.checkpoint_seconds
            if once or stopped or old:
                training.save()
            if stopped and unfinished:
                raise InterruptedRunError(
                    f"Stopped after round {strategy.round} of {strategy.rounds}.",
                    command or command_for("simulate", "resume", folder.path),
                )
    return training.finish()


@dataclass
class _Training:
    """A run between its checkpoint and its last round; `train` describes what it is made of."""

    grid: Grid
    strategy: RoundStrategy
    folder: RunFolder
    settings: LoopSettings
    identity: dict[str, Any]
    classes: Sequence[str]
    timeout: float | None
    observer: Observer

    def __post_init__(self) -> None:
        parts = self.settings.pictures + 1
        self.pictured = {self.strategy.rounds * part // parts for part in range(1, parts)}
        self._voids = 0  # void messages in a row, until now

    def restore(self) -> None:
        """Continues from the checkpoint if there is one."""
        strategy, folder, elapsed = self.strategy, self.folder, 0.0
        if uploads := checkpoint.load_uploads(folder.checkpoint):
            strategy.load_uploads(uploads)
        if checkpoint.exists(folder.checkpoint):
            tensors, values = checkpoint.load(folder.checkpoint)
            if not alike(values["identity"], self.identity):
                raise CheckpointError(
                    f"The checkpoint in {folder.checkpoint} belongs to a run with another "
                    "configuration: config.yaml was changed after the run began."
                )
            strategy.load_state(tensors, values)
            strategy.round = int(values["round"])
            missed = values["missed"]
            if isinstance(missed, dict):  # of before there were ranges
                each = sorted((int(client), count) for client, count in missed.items())
                missed = [{"client": client, "messages": count} for client, count in each]
            strategy.missed = {
                client: entry["messages"]
                for clients, entry in read_ranges(missed, strategy.clients)
                for client in clients
            }
            strategy.void = int(values["void"])
            elapsed = float(values["seconds"])
        folder.rewind(strategy.round)
        self.observer.begin(strategy.round)
        self._started = time.monotonic() - elapsed
        self.saved = time.monotonic()

    def step(self) -> dict[str, Any]:
        """Exchanges a message, takes the strategy's step, returns its line of metrics.jsonl."""
        strategy = self.strategy
        before, number = strategy.round, strategy.message + 1
        strategy.absent = []
        try:
            messages = self._messages(number)
            while strategy.uploading:
                strategy.aggregate_train(number, self._answered(messages))
                messages = self._messages(number)
            if number == 1:
                checkpoint.save_uploads(self.folder.checkpoint, strategy.uploads())
                self.picture()
            replies = self._answered(messages)
            lost = [*replies.void] if isinstance(replies, Reduction) else []
            if isinstance(replies, Reduction) and replies.is_void:
                self._voids += 1
                metrics: MetricRecord | None = strategy.skip(number)
                if self._voids >= _MOST_VOID:  # their rounds are spent
                    raise ClientError(
                        f"The last {self._voids} messages were void, and their rounds are spent: "
                        f"{lost[0]} Start the clients that are missing, or raise "
                        "noise.tolerate_dropouts."
                    )
            else:
                self._voids = 0
                metrics = strategy.aggregate_train(number, replies)[1]
        except ClientError:
            # A simulation's clients remember this failed round already.
            if before > 0 and not isinstance(self.grid, Keeper):
                self.save()
            raise
        names = [name for name, _ in by_range((client, None) for client in strategy.absent)]
        absent = names if len(names) <= _MOST_ABSENT else len(strategy.absent)
        return {
            "round": strategy.round,
            **dict(metrics or {}),
            **({"absent": absent} if absent else {}),
            **({"void": lost} if lost else {}),
            "epsilon": _finite(strategy.total_epsilon or strategy.epsilon_bound()),
            "seconds": round(time.monotonic() - self._started, 4),
        }

    def _messages(self, number: int) -> Iterable[Message]:
        return self.strategy.configure_train(number, ArrayRecord(), ConfigRecord(), self.grid)

    def _answered(self, messages: Iterable[Message]) -> Iterable[Message]:
        return self.grid.send_and_receive(messages, timeout=self.timeout) if messages else []

    def picture(self) -> None:
        """Draws samples/round-NNNNNN.png and tells the observer."""
        drawn = snapshot(self.strategy, self.folder, self.classes)
        self.observer.picture(self.strategy.round, drawn)

    def save(self) -> None:
        """Writes the checkpoint of this round."""
        # First, so that the clients can continue from whatever round the checkpoint holds.
        if isinstance(self.grid, Keeper):
            self.grid.keep(self.strategy.round)
        self.observer.keep()
        tensors, values = self.strategy.state()
        values |= {
            "round": self.strategy.round,
            "identity": self.identity,
            "seconds": time.monotonic() - self._started,
            "missed": self._missed(),
            "void": self.strategy.void,
        }
        checkpoint.save(self.folder.checkpoint, tensors, values)
        self.saved = time.monotonic()

    def _missed(self) -> list[dict[str, Any]]:
        """Returns how many messages clients missed, by their ranges."""
        named = by_range(sorted(self.strategy.missed.items()))
        return [{"client": name, "messages": count} for name, count in named]

    def finish(self) -> dict[str, Any]:
        """Writes the last picture, the checkpoint, the generator and metrics.json."""
        strategy, folder = self.strategy, self.folder
        self.picture()
        self.save()
        save_generator(strategy.generator, folder.path)
        result = {
            "rounds": strategy.rounds,
            "seconds": round(time.monotonic() - self._started, 3),
            "epsilon": _finite(strategy.total_epsilon or strategy.epsilon_so_far()),
            "label_prior": strategy.label_prior().tolist(),
        }
        privacy = read_json(folder.privacy.read_bytes()) if folder.privacy.is_file() else {}
        more: dict[str, Any] = {}
        if strategy.missed:  # public, since the server knows who missed messages
            missed, counts = self._missed(), strategy.missed.values()
            sentence = f"{len(counts)} clients missed {min(counts)} to {max(counts)} messages each"
            more["participation"] = {
                "messages": strategy.message,
                "void": strategy.void,
                "missed": missed if len(missed) <= _MOST_ABSENT else sentence,
                "meaning": (
                    "All others answered every message that they were asked. Every client's ε is "
                    "that of the whole plan, whether or not its answers came in time: what came "
                    "late was charged and not used."
                ),
            }
        if "public" in privacy:  # of exactly these weights: see `statement_of`
            digest = sha256_of(folder.path / WEIGHTS)
            more["public"] = privacy["public"] | {"generator_sha256": digest}
        if more:
            folder.write(folder.privacy, privacy | more)
        note_sums(folder.path)
        folder.write(folder.metrics, result)
        return result


def _columns(line: Mapping[str, Any], unfinished: bool) -> dict[str, float | str]:
    """Returns what the display shows of a line: ε, the loss, and the signal-to-noise ratio."""
    epsilon, ratio = line["epsilon"], line.get("signal_to_noise")
    columns: dict[str, float | str] = {
        "ε ≤" if unfinished and epsilon else "ε": "∞" if epsilon is None else epsilon
    }
    columns |= {"loss": line["loss"]} if "loss" in line else {"step": "none, see void"}
    if ratio is not None:
        columns["S/N"] = f"{ratio:.2g}" if ratio > 0.0 else "below measurement"
    return columns


def _finite(epsilon: float) -> float | None:
    """Returns ε for JSON, which has no ∞: null says that nothing is protected."""
    return None if math.isinf(epsilon) else epsilon


def snapshot(strategy: RoundStrategy, folder: RunFolder, classes: Sequence[str]) -> Path:
    """Writes samples/round-NNNNNN.png and returns its path.

    Every picture shows ten samples per class of the same latents. Points are shown by their first
    two coordinates; those on a line lie at height 0.
    """
    generator = strategy.generator
    path = folder.samples / f"round-{strategy.round:06d}.png"
    stream = strategy.latent_stream("picture", 0)
    if len(generator.shape) == 1:
        labels = torch.zeros(_POINTS, dtype=torch.int64)
        points = sample(generator, _POINTS, labels, stream)
        save_points(torch.nn.functional.pad(points, (0, 1))[:, :2], path)
        return path
    labels = torch.arange(generator.classes).repeat_interleave(_COLUMNS)
    images = sample(generator, len(labels), labels, stream, mix=strategy.label_prior())
    shown = through(shown_map(RecordedRun(folder).privacy or {}), images)
    save_grid(shown, labels, classes, path, columns=_COLUMNS)
    return path


class InterruptedRunError(FedsinkError):
    """The user stopped the run; its checkpoint holds every finished round."""

    exit_code: ClassVar[int] = 130

    def __init__(self, stopped: str, command: str) -> None:
        super().__init__(f"{stopped} Continue with: {command}")
        self.stopped = stopped


class Interruption:
    """Turns the first SIGINT or SIGTERM into a request; the second one interrupts at once.

    Signals reach only the main thread. In another thread, as under stock Flower, it answers for the
    one that the main thread has entered, if any.
    """

    _of_main_thread: ClassVar[Interruption | None] = None

    def __init__(self) -> None:
        self._told = False
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """True once a signal has come."""
        main = Interruption._of_main_thread
        return self._told if self._previous or main is None else main._told

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for caught in (signal.SIGINT, signal.SIGTERM):
                self._previous[caught] = signal.signal(caught, self._handle)
            Interruption._of_main_thread = self
        return self

    def __exit__(self, *error: object) -> None:
        for caught, handler in self._previous.items():
            signal.signal(caught, handler)
        if self._previous:
            Interruption._of_main_thread = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._told:
            raise KeyboardInterrupt
        self._told = True
