"""The one call that a client has forced: all that the model writes is its arguments."""

from collections.abc import Callable

from router.outputs import ToolCallDelta
from router.tool_output import Parsed


class ForcedCallParser:
    """Reads the arguments of one call, which are all that the model writes."""

    def __init__(self, name: str, *, make_id: Callable[[], str]) -> None:
        self.num_calls = 0
        self._name = name
        self._make_id = make_id

    def push(self, text: str) -> Parsed:
        if self.num_calls:
            return Parsed("", [ToolCallDelta(index=0, arguments=text)] if text else [])
        self.num_calls = 1
        call = ToolCallDelta(index=0, id=self._make_id(), name=self._name, arguments=text)
        return Parsed("", [call])

    def flush(self) -> Parsed:
        return Parsed("", [])
