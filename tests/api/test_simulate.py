"""`fedsink.simulate`, `resume` and `load`."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from hydra.core.singleton import Singleton
from omegaconf.basecontainer import BaseContainer

import fedsink
from fedsink.errors import CheckpointError, ConfigError, FedsinkError

SMALL: dict[str, Any] = {
    "engine": "local", "clients": 2, "rounds": 20, "seed": 0, "report.pictures": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.medium
def test_it_is_the_run_of_the_command(tmp_path: Path) -> None:
    from fedsink.commands.cli import main

    run = fedsink.simulate(SMALL, mode="central", strategy={"rows": 40}, folder="ours {é}, 1")
    keys = [f"{key}={value}" for key, value in SMALL.items()]
    with pytest.raises(SystemExit):
        main(["simulate", *keys, "mode=central", "strategy.rows=40", "hydra.run.dir=theirs"])
    theirs = fedsink.load("theirs")
    assert run.folder == tmp_path / "ours {é}, 1"
    assert run.config["strategy"]["rows"] == 40
    ours, other = ({**r.config, "run": None} for r in (run, theirs))
    assert ours == other
    figures = [[{**record, "seconds": 0} for record in r.metrics] for r in (run, theirs)]
    assert figures[0] == figures[1]
    same = zip(run.generator.parameters(), theirs.generator.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in same)
    assert run.privacy == theirs.privacy


@pytest.mark.slow
def test_twice_in_one_process_and_the_process_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("mine: 1\n")
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with hydra.initialize_config_dir(str(tmp_path), version_base="1.3"):
            states = torch.get_rng_state(), np.random.get_state()[1].copy()
            before, resolvers = dict(Singleton._instances), dict(BaseContainer._resolvers)
            runs = [fedsink.simulate({**SMALL, "rounds": 2}, eps=eps) for eps in (5, 10)]
            assert dict(Singleton._instances) == before
            assert dict(BaseContainer._resolvers) == resolvers
            assert GlobalHydra.instance().is_initialized()
            assert hydra.compose("config").mine == 1
        assert torch.get_num_threads() == 2
        assert torch.equal(torch.get_rng_state(), states[0])
        assert (np.random.get_state()[1] == states[1]).all()
    finally:
        torch.set_num_threads(threads)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert all(run.privacy["epsilon"] <= eps for run, eps in zip(runs, (5, 10), strict=True))
    assert runs[0].folder != runs[1].folder
    assert runs[0].folder.parent.parent == tmp_path / "runs"


_BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"epss": 3}, "Unknown key 'epss'. Did you mean eps?"),
    "unknown option": ({"strategy": {"rowz": 3}}, "Unknown key 'strategy.rowz'. Did you mean stra"),
    "unknown choice": ({"data": "mnits"}, "There is no data=mnits: choose one of celeba, digits,"),
    "value": ({"eps": 0}, "eps must be a finite number > 0, received 0."),
    "text for a number": ({"eps": "5"}, "eps must be a finite number > 0, received '5'."),
    "clip": ({"clip": "x"}, "clip is record or batch, not 'x'."),
    "missing": ({"data": "image_folder"}, "data.root must be given: add data.root=…"),
    "no file": ({"data": "mnist", "data.root": "é, {b}"}, "é, {b}/MNIST/raw does not"),
    "resume": ({"resume": "x"}, "starts runs: continue with fedsink.resume('x')."),
    "folder": ({"hydra.run.dir": "x", "folder": "y"}, "hydra.run.dir was given twice"),
    "logger": ({"log": "wandb"}, "log='wandb' is unknown; choose one of mlflow, tensorboard."),
    "loggers": ({"log": ["mlflow"] * 2}, "log=['mlflow', 'mlflow'] names a logger twice."),
}


@pytest.mark.medium
@pytest.mark.quick("unknown key", "value", "resume")
@pytest.mark.parametrize("case", _BAD)
def test_bad_input_is_the_commands_sentence_and_leaves_nothing(case: str, tmp_path: Path) -> None:
    keys, message = _BAD[case]
    with pytest.raises(FedsinkError, match=re.escape(message)):
        fedsink.simulate(**{"engine": "local", **keys})
    assert list(tmp_path.iterdir()) == []


def test_a_key_by_both_ways_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^eps was given twice: leave one of them out\.$"):
        fedsink.simulate({"eps": 1}, eps=1)


@pytest.mark.slow
def test_an_interrupt_leaves_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "it's"

    def interrupt() -> None:
        lines = folder / "metrics.jsonl"
        while not lines.is_file():
            if stopped.wait(0.01):
                return
        os.kill(os.getpid(), signal.SIGINT)

    stopped = threading.Event()
    watcher = threading.Thread(target=interrupt)
    watcher.start()
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            fedsink.simulate({**SMALL, "rounds": 150}, folder=folder)
    finally:
        stopped.set()
        watcher.join()
    assert re.match(r"Stopped after round \d+ of 150\. Continue with: ", str(caught.value))
    assert f"fedsink.resume({str(folder)!r})" in str(caught.value)
    cut = fedsink.load(folder)
    assert not cut.finished
    assert "unfinished" in repr(cut)
    assert 1 <= len(cut.metrics) < 150
    with pytest.raises(CheckpointError, match="has not finished"):
        cut.sample(1)
    for call in (fedsink.resume, fedsink.load):
        with pytest.raises(CheckpointError, match="nowhere holds no fedsink run"):
            call("nowhere")
    whole = fedsink.resume(folder)
    assert [record["round"] for record in whole.metrics] == list(range(1, 151))
    assert whole.sample(1)[0].shape == (1, 1, 8, 8)
