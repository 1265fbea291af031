from __future__ import annotations

import io

from fedsink.reporting.stream import ForgivingStream


class Full(io.StringIO):
    """Takes one write, then fails, then would take more again."""

    def write(self, text: str) -> int:
        if text == "second":
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_passes_text_on():
    stream = io.StringIO()
    assert ForgivingStream(stream).write("ε") == 1
    assert stream.getvalue() == "ε"


def test_falls_silent_for_good_after_a_failure():
    stream = Full()
    forgiving = ForgivingStream(stream)
    assert [forgiving.write(text) for text in ("first", "second", "third")] == [5, 6, 5]
    assert stream.getvalue() == "first"


def test_a_closed_stream_is_forgiven():
    for action in (lambda f: f.flush(), lambda f: f.write("x")):
        stream = io.StringIO()
        stream.close()
        action(ForgivingStream(stream))
