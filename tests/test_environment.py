"""The process around a call is as it was before."""

from __future__ import annotations

import faulthandler
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
import torch

from fedsink.environment import undisturbed

from .support import process_state
from .support.process_state import changes, state


def test_a_block_gives_back_all_that_it_was_told_to_change(monkeypatch):
    was_on = faulthandler.is_enabled()
    faulthandler.disable()
    logging.getLogger("somebody's")

    @undisturbed()
    def change_everything() -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)
        sys.excepthook = threading.excepthook = lambda *_: None
        sys.path.insert(0, "nowhere")
        os.environ.update(HOME="nowhere", NEW="1")
        del os.environ["PATH"]
        logging.basicConfig(level=1, force=True)
        logging.getLogger("somebody's").addHandler(logging.NullHandler())
        logging.getLogger("somebody's").setLevel(40)
        logging.getLogger("somebody's").propagate = False
        logging.setLogRecordFactory(lambda *_, **__: logging.makeLogRecord({}))
        warnings.simplefilter("error")
        warnings.showwarning = print
        torch.set_num_threads(3)
        torch.set_default_dtype(torch.bfloat16)
        random.seed(0)
        faulthandler.enable()
        raise ZeroDivisionError

    before = state()
    try:
        with pytest.raises(ZeroDivisionError):
            change_everything()
        assert changes(before, state()) == []
    finally:
        if was_on:
            faulthandler.enable()


def test_inside_a_block_tensors_are_as_fedsink_needs_them():
    torch.set_default_dtype(torch.float64)
    try:
        with (
            torch.inference_mode(), torch.device("meta"), torch.autocast("cpu"),
            np.errstate(all="raise"),
        ):  # fmt: skip
            before = state()
            with undisturbed():
                weight = torch.ones(2, 2, requires_grad=True)
                product = weight @ weight
                product.sum().backward()
                assert (product.dtype, weight.device.type) == (torch.float32, "cpu")
                assert weight.grad is not None
                assert not product.is_inference()
                with pytest.warns(RuntimeWarning, match="overflow"):
                    assert np.isinf(np.float32(1e30) * np.float32(1e30))
            assert changes(before, state()) == []
    finally:
        torch.set_default_dtype(torch.float32)


def test_blocks_of_several_threads_give_back_what_the_first_has_found():
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with undisturbed():
            entered.set()
            leave.wait()

    torch.set_default_dtype(torch.float64)
    thread = threading.Thread(target=other)
    try:
        before = os.environ.pop("FLWR_LOG_LEVEL")
        with undisturbed():
            thread.start()
            entered.wait()
        assert torch.get_default_dtype() == torch.float32  # the other call is under way
        leave.set()
        thread.join()
        assert torch.get_default_dtype() == torch.float64
        assert "FLWR_LOG_LEVEL" not in os.environ
    finally:
        os.environ["FLWR_LOG_LEVEL"] = before
        leave.set()
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("local", marks=pytest.mark.medium),
        *(
            pytest.param(words, marks=pytest.mark.slow)
            for words in (
                *("local error", "local interrupt", "ray", "ray error", "ray interrupt"),
                *("ray mine", "ray mine error", "ray mine interrupt"),
                *("flower", "flower error", "flower interrupt", "flower mine", "flower mine error"),
            )
        ),
    ],
)
def test_a_call_leaves_the_process_as_it_was(words, tmp_path):
    done = subprocess.run(
        [sys.executable, "-P", process_state.__file__, *words.split()],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["done"], done.stdout + done.stderr
