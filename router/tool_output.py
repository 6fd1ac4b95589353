"""What a parser of tool calls is, and what it has read and not yet handed on."""

from typing import NamedTuple, Protocol

from router.outputs import ToolCallDelta


class Parsed(NamedTuple):
    """What a piece of text led to."""

    text: str
    calls: list[ToolCallDelta]


class Output:
    """Collects text and calls. Spaces that no text follows are left out beside calls."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._space = ""
        self._is_blank = True
        """No text since the beginning or the last call."""
        self._calls: list[ToolCallDelta] = []
        self._arguments: list[str] = []
        self._index = 0
        self._is_wanted = True

    def say(self, text: str) -> None:
        if self._is_blank:
            text = self._space + text
            self._is_blank = not text or text.isspace()
            self._space = text if self._is_blank else ""
        if not self._is_blank:
            self._text.append(text)

    def say_space(self) -> None:
        self._text.append(self._space)

    def begin(self, index: int, call_id: str, name: str, *, is_wanted: bool) -> None:
        """Begins a call; one that is not wanted leaves no trace."""
        self._close_arguments()
        self._space, self._is_blank = "", True
        self._index, self._is_wanted = index, is_wanted
        if is_wanted:
            self._calls.append(ToolCallDelta(index=index, id=call_id, name=name))

    def add_arguments(self, text: str) -> None:
        self._arguments.append(text)

    def take(self) -> Parsed:
        self._close_arguments()
        parsed = Parsed("".join(self._text), self._calls)
        self._text, self._calls = [], []
        return parsed

    def _close_arguments(self) -> None:
        arguments = "".join(self._arguments)
        self._arguments.clear()
        if not arguments or not self._is_wanted:
            return
        if not self._calls or self._calls[-1].index != self._index:
            self._calls.append(ToolCallDelta(index=self._index))
        self._calls[-1].arguments += arguments


class Parser(Protocol):
    """The state of one sequence."""

    num_calls: int
    """Calls that have begun."""

    def push(self, text: str) -> Parsed:
        """Reads more text."""
        ...

    def flush(self) -> Parsed:
        """Returns what was held back, at the end of the text."""
        ...
