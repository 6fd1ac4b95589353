"""The interface of tool call parsers, and the buffer of what they have parsed."""

from typing import NamedTuple, Protocol

from signalbox_router.prompt.tokenization.detokenizer import MARK as MARK
from signalbox_router.requests.request_output import ToolCallDelta


class Parsed(NamedTuple):
    """Text, calls and reasoning that a piece of text resulted in."""

    text: str
    calls: list[ToolCallDelta]
    reasoning: str = ""
    """Reasoning, in formats whose markup of calls and of reasoning is one."""


class Output:
    """Collects text and calls. White space at the end of text or between calls is dropped."""

    def __init__(self) -> None:
        self.is_reasoning = False
        """True while what is said is reasoning."""
        self._text: list[str] = []
        self._num_chars = 0
        """Characters of the text."""
        self._reasoning: list[str] = []
        self._space = ""
        self._is_blank = True
        """True if there was no text since the beginning or the last call."""
        self._calls: list[ToolCallDelta] = []
        self._arguments: list[str] = []
        self._index = 0
        self._is_wanted = True

    def say(self, text: str) -> None:
        if MARK in text:
            text = text.replace(MARK, "")
        if self.is_reasoning:
            self._reasoning.append(text)
            return
        if self._is_blank:
            text = self._space + text
            self._is_blank = not text or text.isspace()
            self._space = text if self._is_blank else ""
        if not self._is_blank:
            self._append(text)

    def say_space(self) -> None:
        self._append(self._space)

    def begin(self, index: int, call_id: str, name: str, *, is_wanted: bool) -> None:
        """Begins a call; one that is not wanted produces no output."""
        self._close_arguments()
        self._space, self._is_blank = "", True
        self._index, self._is_wanted = index, is_wanted
        if is_wanted:
            call = ToolCallDelta(index=index, id=call_id, name=name, offset=self._num_chars)
            self._calls.append(call)

    def add_arguments(self, text: str) -> None:
        self._arguments.append(text)

    def pop(self) -> Parsed:
        self._close_arguments()
        parsed = Parsed("".join(self._text), self._calls, "".join(self._reasoning))
        self._text, self._calls, self._reasoning = [], [], []
        self._num_chars = 0
        return parsed

    def _append(self, text: str) -> None:
        self._text.append(text)
        self._num_chars += len(text)

    def _close_arguments(self) -> None:
        arguments = "".join(self._arguments).replace(MARK, "")
        self._arguments.clear()
        if not arguments or not self._is_wanted:
            return
        if not self._calls or self._calls[-1].index != self._index:
            self._calls.append(ToolCallDelta(index=self._index))
        self._calls[-1].arguments += arguments


class Parser(Protocol):
    """Parses the text of one sequence."""

    num_calls: int
    """Number of calls that have begun."""

    def push(self, text: str) -> Parsed:
        """Reads more text."""
        ...

    def flush(self) -> Parsed:
        """Returns what was held back, at the end of the text."""
        ...
