from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedsink.reporting.observers import Ending, Observer, Observers


class Listener(Observer):
    """Writes down what it is told, and fails at one event."""

    def __init__(self, fails_at: str = "") -> None:
        self.told: list[str] = []
        self.fails_at = fails_at

    def _note(self, event: str) -> None:
        self.told.append(event)
        if event == self.fails_at:
            raise OSError(28, "No space\nleft")

    def begin(self, round: int) -> None:
        self._note(f"begin {round}")

    def record(self, record: Mapping[str, Any]) -> None:
        self._note(f"record {record['round']}")

    def picture(self, round: int, path: Path) -> None:
        self._note(f"picture {round} {path}")

    def keep(self) -> None:
        self._note("keep")

    def end(self, ending: Ending) -> None:
        self._note(f"end {ending}")


def tell(observer: Observer) -> None:
    observer.begin(3)
    observer.record({"round": 4})
    observer.picture(4, Path("x"))
    observer.keep()
    observer.end("finished")


ALL = ["begin 3", "record 4", "picture 4 x", "keep", "end finished"]


def test_all_are_told_everything_in_order() -> None:
    listeners = Listener(), Listener()
    tell(Observers(dict(zip("ab", listeners, strict=True))))
    assert [listener.told for listener in listeners] == [ALL, ALL]


@pytest.mark.parametrize("event", ALL)
def test_one_that_fails_is_left_out_and_said_once(
    event: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, other = Listener(event), Listener()
    tell(Observers({"log=broken": broken, "log=other": other}))
    assert broken.told == ALL[: ALL.index(event) + 1]
    assert other.told == ALL
    assert capsys.readouterr().err == (
        "log=broken failed (OSError: [Errno 28] No space left): the run continues without it.\n"
    )


def test_what_has_not_begun_does_not_end() -> None:
    listener = Listener()
    Observers({"a": listener}).end("failed")
    assert listener.told == []


def test_an_interrupt_is_no_failure_of_the_logger() -> None:
    class Interrupted(Observer):
        def keep(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Observers({"a": Interrupted()}).keep()
