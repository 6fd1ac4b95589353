"""Standard input of a command, as its producer writes and closes it."""

import io
import os
import threading

import pytest

from signalbox.client import piped_input
from signalbox.client.piped_input import with_piped


class Told(io.StringIO):
    """Standard error that says when something is written."""

    def __init__(self) -> None:
        super().__init__()
        self.has_text = threading.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if text.endswith("\n"):
            self.has_text.set()
        return written


def test_a_pipe_that_stays_open_is_told_once_and_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = Told()
    reading, writing = os.pipe()

    def write_late() -> None:
        told.has_text.wait()
        with os.fdopen(writing, "w") as pipe:
            pipe.write("A text.\n")

    monkeypatch.setattr("sys.stderr", told)
    monkeypatch.setattr(piped_input, "NOTICE_AFTER_S", 0)
    with os.fdopen(reading) as source:
        monkeypatch.setattr("sys.stdin", source)
        writer = threading.Thread(target=write_late)
        writer.start()
        assert with_piped("Hi") == "A text.\n\nHi"
        writer.join()
    assert told.getvalue().count("waiting for the end of standard input") == 1
    assert len(told.getvalue().splitlines()) == 1


@pytest.mark.parametrize("text", [None, "not piped"])
def test_what_is_no_pipe_and_no_file_is_left_alone(
    text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None if text is None else io.StringIO(text))
    assert with_piped("Hi") == "Hi"
    assert with_piped(None) == (text or "")
