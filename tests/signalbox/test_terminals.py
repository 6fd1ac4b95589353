"""What commands write to a terminal of 80 columns, with and without colour, and into a pipe."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.signalbox.stacks import COMMAND, Stack, environment, serve
from tests.waiting import EVENT_S

COLUMNS = 80
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOURS = re.compile(r"\x1b\[(?:[0-9;]*;)?[34][0-9](?:;[0-9;]*)?m")
ALL = ("models", "top --once", "doctor", "--help", "serve --help=all")

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with serve(tmp_path_factory.mktemp("terminals") / "log", "--simulate") as stack:
        yield stack


def addressed(stack: Stack) -> dict[str, str]:
    scheduler = re.search(r"scheduler listening on (\S+);", stack.log.read_text())
    assert scheduler is not None
    return environment() | {
        "SIGNALBOX_ROUTER": stack.address,
        "SIGNALBOX_SCHEDULER": scheduler[1],
        "PYTHONIOENCODING": "utf-8",
    }


def shown(stack: Stack, command: str, **variables: str) -> str:
    """Runs a command on a terminal of its own and returns what it wrote there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    process = subprocess.Popen(
        [*COMMAND, *command.split()],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=addressed(stack) | {"TERM": "xterm-256color"} | variables,
    )
    os.close(theirs)
    written = b""
    with suppress(OSError):  # Linux's end of a terminal that nobody writes to any more
        while part := os.read(ours, 1 << 16):
            written += part
    os.close(ours)
    assert process.wait(EVENT_S) == 0, written.decode()
    return written.decode()


@pytest.mark.parametrize("command", ALL)
@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_no_line_is_wider_than_the_terminal(
    command: str, variables: dict[str, str], stack: Stack
) -> None:
    text = shown(stack, command, **variables)
    assert max(len(ESCAPES.sub("", line).rstrip()) for line in text.splitlines()) <= COLUMNS
    assert not (variables and COLOURS.search(text))
    assert "TERM" not in variables or not ESCAPES.search(text)


@pytest.mark.parametrize("command", ALL)
def test_a_pipe_gets_no_escapes(command: str, stack: Stack) -> None:
    done = subprocess.run(
        [*COMMAND, *command.split()], capture_output=True, text=True, env=addressed(stack)
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout and "\x1b" not in done.stdout + done.stderr
