"""Parser for a forced tool call: the model's whole text is the call's arguments."""

from collections.abc import Callable

from signalbox_router.parsers.parser_output import Parsed
from signalbox_router.requests.request_output import ToolCallDelta


class ForcedCallParser:
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
