from __future__ import annotations

import os
import signal
import threading

import pytest

from fedsink.server.interrupt import Interruption


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_request_and_the_second_interrupts(number: int) -> None:
    before = signal.getsignal(number)
    with Interruption() as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_handlers_are_given_back_after_an_error() -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]

    def work() -> None:
        with Interruption():
            assert signal.getsignal(signal.SIGINT) is not before[0]
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_outside_the_main_thread_signals_are_left_alone() -> None:
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
