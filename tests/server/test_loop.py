from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from fedsink.data.maps import L2Ball
from fedsink.errors import CheckpointError, ClientError
from fedsink.models import load
from fedsink.reporting.loggers import Observers
from fedsink.server import checkpoint, loop
from fedsink.server.folder import RunFolder
from fedsink.server.loop import InterruptedRunError, Interruption, LoopSettings, train
from fedsink.server.running import ServerSettings, build_strategy, run_server
from fedsink.strategies.base.round_strategy import RoundStrategy

Grids = Callable[[str], Any]
Settings = Callable[..., ServerSettings]
MODES = ["central", "ldp"]
NOISES = ["reproducible", "secret"]


class Crash(Exception):
    """Stands for a kill: nothing is caught, nothing is saved."""


def folder_at(path: Path) -> RunFolder:
    folder = RunFolder(path)
    folder.create()
    return folder


def run(
    folder: RunFolder, settings: ServerSettings, grid: Any, loop: LoopSettings | None = None,
    at: Callable[[RoundStrategy, int], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Runs one process; calls `at` in the middle of every round."""
    strategy = build_strategy(settings)
    if at is not None:
        aggregate = strategy.aggregate_train

        def hooked(number: int, replies: Any) -> Any:
            if not strategy.uploading:
                at(strategy, number)
            return aggregate(number, replies)

        strategy.aggregate_train = hooked  # type: ignore[method-assign]
    return train(
        grid,
        strategy,
        folder,
        loop or settings.loop,
        settings.identity(),
        "test",
        classes=settings.classes,
    )


def rounds_of(folder: RunFolder) -> list[int]:
    return [json.loads(line)["round"] for line in folder.metrics_lines.read_text().splitlines()]


def weights_of(folder: RunFolder) -> bytes:
    return (folder.path / "generator.safetensors").read_bytes()


def interrupt_at(last: int, by: int = signal.SIGINT) -> Callable[[RoundStrategy, int], None]:
    def interrupt(_: RoundStrategy, number: int) -> None:
        if number == last:
            os.kill(os.getpid(), by)

    return interrupt


interrupt = interrupt_at(3)


def crash(_: RoundStrategy, number: int) -> None:
    if number == 6:
        raise Crash


@pytest.fixture
def uninterrupted(
    tmp_path: Path, make_grid: Grids, make_settings: Settings
) -> Callable[[str, str], RunFolder]:
    def make(mode: str, noise: str) -> RunFolder:
        folder = folder_at(tmp_path / "uninterrupted")
        run(folder, make_settings(mode), make_grid(noise))
        return folder

    return make


@pytest.mark.medium
@pytest.mark.parametrize("mode", MODES)
def test_a_run_leaves_its_files(tmp_path, make_grid, make_settings, mode):
    folder = folder_at(tmp_path / "run")
    settings = make_settings(mode)

    def skewed(strategy: RoundStrategy, number: int) -> None:
        strategy.label_prior = lambda: torch.tensor([0.75, 0.25])  # type: ignore[method-assign]

    result = run(folder, settings, make_grid("reproducible"), at=skewed)
    assert folder.finished
    assert json.loads(folder.metrics.read_text()) == result
    assert result["rounds"] == 8
    assert result["epsilon"] == pytest.approx(
        settings.strategy.plan.epsilon() if mode == "central" else 303.0
    )
    assert result["label_prior"] == [0.75, 0.25]
    assert rounds_of(folder) == list(range(1, 9))
    lines = [json.loads(line) for line in folder.metrics_lines.read_text().splitlines()]
    assert all({"round", "loss", "epsilon", "seconds"} <= set(line) for line in lines)
    assert lines[-1]["epsilon"] == pytest.approx(result["epsilon"])
    assert load(folder.path).shape == (1, 4, 4)


@pytest.mark.medium
def test_nothing_of_the_clients_is_in_the_metrics(tmp_path, make_grid, make_settings):
    """Pitfall 1: only the noised replies determine a round's line."""
    folder = folder_at(tmp_path / "run")
    run(folder, make_settings("central"), make_grid("reproducible"))
    keys = set(json.loads(folder.metrics_lines.read_text().splitlines()[0]))
    assert keys == {"round", "loss", "signal_to_noise", "epsilon", "seconds"}


@pytest.mark.quick("secret-*")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("noise", NOISES)
def test_an_interrupted_run_goes_on_bit_identically(
    tmp_path, make_grid, make_settings, uninterrupted, mode, noise
):
    """Secret noise too: the rounds that are asked again get the same bytes."""
    expected = uninterrupted(mode, noise)
    if noise == "secret":  # the ledger knows the first run's requests: these are the same
        assert (tmp_path / "run.sqlite").exists()
    folder = folder_at(tmp_path / "interrupted")
    settings = make_settings(mode)
    message = r"Stopped after round 3 of 8\. Continue with: fedsink simulate resume="
    with pytest.raises(InterruptedRunError, match=message):
        run(folder, settings, make_grid(noise), at=interrupt)
    assert rounds_of(folder) == [1, 2, 3]
    assert not folder.finished
    run(folder, settings, make_grid(noise))
    assert rounds_of(folder) == list(range(1, 9))
    assert weights_of(folder) == weights_of(expected)


@pytest.mark.medium
@pytest.mark.quick("0-reproducible-central", "3-secret-ldp", "5-secret-central")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("saved", [0, 3, 5])
def test_a_killed_run_goes_on_bit_identically_and_logs_no_round_twice(
    tmp_path, make_grid, make_settings, monkeypatch, uninterrupted, mode, noise, saved
):
    """Continues from the checkpoint of round 3 or 5, or from the beginning without one."""
    expected = uninterrupted(mode, noise)
    folder = folder_at(tmp_path / "killed")
    settings, loop = make_settings(mode), LoopSettings(checkpoint_seconds=0.0)
    save = checkpoint.save

    def sometimes(path: Path, tensors: Any, values: dict[str, Any]) -> None:
        if values["round"] <= saved:
            save(path, tensors, values)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", sometimes)
        with pytest.raises(Crash):
            run(folder, settings, make_grid(noise), loop, at=crash)
    assert rounds_of(folder) == [1, 2, 3, 4, 5]
    seen: list[int] = []
    grid = make_grid(noise)
    run(folder, settings, grid, loop, at=lambda strategy, number: seen.append(number))
    assert seen == list(range(saved + 1, 9))
    assert rounds_of(folder) == list(range(1, 9))
    assert weights_of(folder) == weights_of(expected)
    if mode == "ldp":  # Pitfall 9: the records had arrived and were kept
        assert grid.asked == []


def test_a_resumed_run_counts_what_was_before(tmp_path, make_grid, make_settings):
    """The count covers the messages that were void or missed, and the seconds spent."""
    folder = folder_at(tmp_path / "run")
    folder.write(folder.privacy, {})
    settings = make_settings("central")

    def misses(strategy: RoundStrategy, number: int) -> None:
        strategy.missed, strategy.void = {1: number}, number
        interrupt(strategy, number)

    with pytest.raises(InterruptedRunError):
        run(folder, settings, make_grid("reproducible"), at=misses)
    tensors, values = checkpoint.load(folder.checkpoint)
    checkpoint.save(folder.checkpoint, tensors, {**values, "seconds": 1000.0})
    result = run(folder, settings, make_grid("reproducible"))
    lines = [json.loads(line) for line in folder.metrics_lines.read_text().splitlines()]
    assert result["seconds"] >= lines[-1]["seconds"] >= lines[3]["seconds"] >= 1000.0
    stated = json.loads(folder.privacy.read_text())["participation"]
    assert stated["missed"] == [{"client": 1, "messages": 3}]
    assert stated["void"] == 3


K = 10**6


@pytest.fixture
def training(tmp_path: Path, make_grid: Grids, make_settings: Settings) -> Callable[[], Any]:
    """Makes the training of a million clients that a process does, at a grid of two."""
    folder, settings = folder_at(tmp_path / "run"), make_settings("central")
    folder.write(folder.privacy, {})

    def make() -> Any:
        strategy = build_strategy(settings)
        strategy.clients = K
        one = loop._Training(
            make_grid("reproducible"), strategy, folder, settings.loop, settings.identity(),
            settings.classes, None, Observers({}),
        )  # fmt: skip
        one.restore()
        return one

    return make


@pytest.mark.parametrize(
    ("absent", "told"),
    [
        ([3, 7], [3, 7]),
        (range(10), [*range(10)]),
        (range(K), [f"0-{K - 1}"]),
        ([1, *range(5, 900), 902], [1, "5-899", 902]),
        (range(0, 200, 2), [*range(0, 200, 2)]),
        (range(0, 202, 2), 101),
        (range(0, K, 2), K // 2),
    ],
    ids=lambda value: str(value)[:20],
)
def test_absent_clients_are_told_by_ranges_or_of_many_how_many_they_are(training, absent, told):
    one = training()
    one._messages = lambda number: []
    one.strategy.aggregate_train = lambda *_: (one.strategy.note_absent(absent), {})
    line = json.loads(json.dumps(one.step()))
    assert line["absent"] == told


@pytest.mark.parametrize(
    ("missed", "told"),
    [
        ({1: 3, 12: 1}, [{"client": 1, "messages": 3}, {"client": 12, "messages": 1}]),
        (dict.fromkeys(range(K), 2), [{"client": f"0-{K - 1}", "messages": 2}]),
        (
            dict.fromkeys(range(K), 2) | {500: 7},
            [
                {"client": "0-499", "messages": 2},
                {"client": 500, "messages": 7},
                {"client": f"501-{K - 1}", "messages": 2},
            ],
        ),
        (
            {k: 1 + k % 5 for k in range(101)},
            "101 clients missed 1 to 5 messages each",
        ),
    ],
    ids=["few", "all", "all and one", "many"],
)
def test_who_missed_messages_is_kept_by_ranges(training, missed, told):
    one = training()
    one.strategy.missed = missed
    one.save()
    one = training()
    assert one.strategy.missed == missed
    one.finish()
    assert one.folder.privacy.stat().st_size < 2_000
    assert json.loads(one.folder.privacy.read_text())["participation"]["missed"] == told
    values = checkpoint.load(one.folder.checkpoint)[1]
    assert len(values["missed"]) == len(told) if isinstance(told, list) else len(missed)


@pytest.mark.parametrize(
    "missed",
    [
        [{"client": "0-999999999999", "messages": 1}], [{"client": K, "messages": 1}],
        [{"client": "0-9", "messages": 1}, {"client": "5-12", "messages": 1}],
        [{"client": "9-0", "messages": 1}], {"-1": 1}, {"999999999999": 1}, None,
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_checkpoint_of_other_clients_is_refused(training, missed):
    one = training()
    one.save()
    tensors, values = checkpoint.load(one.folder.checkpoint)
    checkpoint.save(one.folder.checkpoint, tensors, {**values, "missed": missed})
    with pytest.raises(CheckpointError, match="is not its next one"):
        training()
    of_old = {"10": 2, "2": 1, "999999": 3}
    checkpoint.save(one.folder.checkpoint, tensors, {**values, "missed": of_old})
    assert training().strategy.missed == {2: 1, 10: 2, 999999: 3}


@pytest.mark.medium
@pytest.mark.parametrize("noise", NOISES)
def test_many_uses_per_message_are_counted_and_resumed_as_rounds(
    tmp_path, make_grid, make_settings, noise
):
    """T = 8, U = 3: messages end at the rounds 3, 6 and 8."""
    loop = LoopSettings(pictures=3)
    whole, seen = folder_at(tmp_path / "whole"), []
    of_whole = make_settings("central", 3)
    result = run(
        whole, of_whole, make_grid(noise), loop, at=lambda strategy, _: seen.append(strategy)
    )
    assert result["rounds"] == 8
    assert (seen[0].round, seen[0].message, seen[0].messages) == (8, 3, 3)
    assert rounds_of(whole) == [3, 6, 8]
    drawn = sorted(path.name for path in whole.samples.iterdir())
    assert drawn == [f"round-{n:06d}.png" for n in (0, 3, 6, 8)]
    folder = folder_at(tmp_path / "stopped")
    settings = make_settings("central", 3)
    with pytest.raises(InterruptedRunError, match=r"Stopped after round 6 of 8\."):
        run(folder, settings, make_grid(noise), loop, at=interrupt_at(2))
    run(folder, settings, make_grid(noise), loop)
    assert rounds_of(folder) == [3, 6, 8]
    assert weights_of(folder) == weights_of(whole)
    last = json.loads(folder.metrics_lines.read_text().splitlines()[-1])
    assert last["epsilon"] == settings.strategy.plan.epsilon()


def test_a_run_killed_before_its_last_words_is_finished_by_resuming(
    tmp_path, make_grid, make_settings
):
    folder = folder_at(tmp_path / "run")
    settings = make_settings("central")
    run(folder, settings, make_grid("reproducible"))
    before = weights_of(folder)
    folder.metrics.unlink()
    run(
        folder,
        settings,
        make_grid("reproducible"),
        at=lambda *_: pytest.fail("a round was run again"),
    )
    assert folder.finished
    assert weights_of(folder) == before


def test_an_interruption_in_the_last_round_lets_the_run_finish(tmp_path, make_grid, make_settings):
    folder = folder_at(tmp_path / "run")
    late = interrupt_at(8, signal.SIGTERM)
    run(folder, make_settings("central"), make_grid("reproducible"), at=late)
    assert folder.finished


@pytest.mark.medium
def test_a_failing_client_stops_the_run_and_leaves_its_checkpoint(
    tmp_path, make_grid, make_settings, uninterrupted
):
    expected = uninterrupted("central", "reproducible")
    folder, grid = folder_at(tmp_path / "failed"), make_grid("reproducible")
    settings, loop = make_settings("central"), LoopSettings(checkpoint_seconds=0.0)

    answer = grid.execute

    def execute(messages: Any) -> Any:
        replies = answer(messages)
        return replies[:1] if messages[0].metadata.group_id == "4" else replies

    grid.execute = execute
    with pytest.raises(ClientError, match=r"round 4, 1 of 2 clients did not answer \(client 1"):
        run(folder, settings, grid, loop)
    assert rounds_of(folder) == [1, 2, 3]
    run(folder, settings, make_grid("reproducible"), loop)
    assert weights_of(folder) == weights_of(expected)


def test_a_run_goes_on_where_sigma_is_solved_with_another_rounding(
    tmp_path, make_grid, make_settings
):
    """On another machine its last digits differ; any other σ is another configuration."""
    folder, settings = folder_at(tmp_path / "run"), make_settings("central")

    def solved(factor: float) -> ServerSettings:
        plan = settings.strategy.plan
        plan = replace(plan, noise_multiplier=factor * plan.noise_multiplier)
        return replace(settings, strategy=replace(settings.strategy, plan=plan))

    with pytest.raises(InterruptedRunError):
        run(folder, settings, make_grid("reproducible"), at=interrupt)
    with pytest.raises(CheckpointError, match="belongs to a run with another configuration"):
        run(folder, solved(1 + 1e-6), make_grid("reproducible"))
    run(folder, solved(1 + 1e-12), make_grid("reproducible"))
    assert rounds_of(folder)[-1] == settings.strategy.plan.rounds


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path, make_grid, make_settings):
    folder = folder_at(tmp_path / "run")
    settings = make_settings("central")
    with pytest.raises(InterruptedRunError):
        run(folder, settings, make_grid("reproducible"), at=interrupt)
    for other in (replace(settings, server_seed=12), make_settings("ldp")):
        with pytest.raises(CheckpointError, match="belongs to a run with another configuration"):
            run(folder, other, make_grid("reproducible"))
    assert rounds_of(folder) == [1, 2, 3]
    path = folder.checkpoint / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="is not a readable checkpoint"):
        run(folder, settings, make_grid("reproducible"))


@pytest.mark.parametrize(
    ("pictures", "between"),
    [(0, []), (1, [4]), (3, [2, 4, 6]), (4, [1, 3, 4, 6]), (20, range(1, 8))],
)
def test_pictures_are_spread_over_the_run(tmp_path, make_grid, make_settings, pictures, between):
    """The first, the last, and as many between as were asked for (one a round at most)."""
    folder = folder_at(tmp_path / "run")
    loop = LoopSettings(pictures=pictures)
    run(folder, make_settings("ldp"), make_grid("reproducible"), loop)
    drawn = sorted(path.name for path in folder.samples.iterdir())
    assert drawn == [f"round-{round:06d}.png" for round in (0, *between, 8)]


@pytest.mark.medium
@pytest.mark.parametrize("mode", MODES)
def test_a_snapshot_is_a_png_that_changes_with_the_generator_and_not_by_chance(
    tmp_path, make_grid, make_settings, mode
):
    contents = []
    for name in ("one", "two"):
        folder = folder_at(tmp_path / name)
        run(folder, make_settings(mode), make_grid("reproducible"))
        first, last = (folder.samples / f"round-{n:06d}.png" for n in (0, 8))
        with Image.open(first) as image:
            image.verify()
            assert image.format == "PNG"
        assert first.read_bytes() != last.read_bytes()
        contents.append((first.read_bytes(), last.read_bytes()))
    assert contents[0] == contents[1]


def test_a_snapshot_has_the_classes_mixed_as_in_training(tmp_path, make_settings, monkeypatch):
    mixes = []

    def drawn(generator: Any, n: int, *_: Any, mix: torch.Tensor) -> torch.Tensor:
        mixes.append(mix.tolist())
        return torch.zeros(n, *generator.shape)

    monkeypatch.setattr(loop, "sample", drawn)
    strategy = build_strategy(make_settings("central"))
    monkeypatch.setattr(strategy, "label_prior", lambda: torch.tensor([0.75, 0.25]))
    loop.snapshot(strategy, folder_at(tmp_path / "run"), ("a", "b"))
    assert mixes == [[0.75, 0.25]]


def test_a_snapshot_shows_the_band_that_was_released(tmp_path, make_settings, monkeypatch):
    shown = []
    monkeypatch.setattr(loop, "save_grid", lambda images, *_, **__: shown.append(images))
    strategy = build_strategy(make_settings("central"))
    folder = folder_at(tmp_path / "run")
    band = L2Ball(strategy.generator.shape, 0.5)
    for privacy in ({}, {"model": "ldp", "map": band.to_dict()}):
        folder.write(folder.privacy, privacy)
        loop.snapshot(strategy, folder, ("a", "b"))
    whole, cut = shown
    assert torch.equal(cut, band.render(band(whole)))
    assert not torch.allclose(cut, whole, atol=0.01)


@pytest.mark.medium
def test_it_runs_also_outside_the_main_thread(tmp_path, make_grid, make_settings, uninterrupted):
    expected = uninterrupted("central", "reproducible")
    folder, grid = folder_at(tmp_path / "app"), make_grid("reproducible")
    settings = make_settings("central")
    thread = threading.Thread(target=lambda: run_server(grid, settings, folder))
    thread.start()
    thread.join()
    assert weights_of(folder) == weights_of(expected)


def test_initial_weights_depend_on_the_server_seed_alone(tmp_path, make_settings):
    def first(seed: int) -> torch.Tensor:
        torch.manual_seed(torch.initial_seed() + 1)
        settings = replace(make_settings("central"), server_seed=seed)
        return next(build_strategy(settings).generator.parameters()).clone()

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))


def test_the_identity_survives_json(tmp_path, make_settings):
    for mode in MODES:
        identity = make_settings(mode).identity()
        assert json.loads(json.dumps(identity)) == identity
        assert identity == make_settings(mode).identity()


# Signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_request_and_the_second_interrupts(number):
    before = signal.getsignal(number)
    with Interruption() as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_handlers_are_given_back_after_an_error():
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]

    def work() -> None:
        with Interruption():
            assert signal.getsignal(signal.SIGINT) is not before[0]
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_outside_the_main_thread_signals_are_left_alone():
    """Stock Flower runs the server in a thread, where handlers cannot be set."""
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with Interruption() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_thread_answers_for_what_the_main_thread_was_told():
    seen = []

    def work() -> None:
        with Interruption() as stop:
            seen.append(stop.requested)

    with Interruption():
        for _ in range(2):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            if len(seen) == 1:
                os.kill(os.getpid(), signal.SIGTERM)
    assert seen == [False, True]
    work()
    assert seen[-1] is False
