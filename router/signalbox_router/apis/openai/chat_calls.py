"""Tool calls of a chat's answer in OpenAI's shape; a custom tool's call has a text as its input."""

from collections.abc import Collection
from typing import Any

from signalbox_router.apis.openai.custom_input import CustomInput
from signalbox_router.requests.request_output import Delta, ToolCallDelta

Call = dict[str, Any]


class ChatCalls:
    """The calls of one choice."""

    def __init__(self, custom_tools: Collection[str]) -> None:
        self._custom_tools = custom_tools
        self._index = 0
        self._input: CustomInput | None = None
        """Reads the open call, if it is of a custom tool."""

    def deltas(self, delta: Delta) -> list[Call]:
        """Returns the new parts of calls; what begins one has its id and name."""
        calls: list[Call] = []
        for call in delta.tool_calls:
            if call.id:
                calls += self._end()
                if call.name in self._custom_tools:
                    self._index, self._input = call.index, CustomInput()
            if (part := self._part(call)) is not None:
                calls.append(part)
        return calls if delta.finish is None else calls + self._end()

    def _part(self, call: ToolCallDelta) -> Call | None:
        if self._input is None:
            function = {"arguments": call.arguments}
            if not call.id:
                return {"index": call.index, "function": function}
            return _begun(call, "function", {"name": call.name, **function})
        text = self._input.push(call.arguments)
        if call.id:
            return _begun(call, "custom", {"name": call.name, "input": text})
        return _more(call.index, text) if text else None

    def _end(self) -> list[Call]:
        reader, self._input = self._input, None
        text = reader.flush() if reader is not None else ""
        return [_more(self._index, text)] if text else []


def _begun(call: ToolCallDelta, kind: str, called: dict[str, str]) -> Call:
    return {"index": call.index, "id": call.id, "type": kind, kind: called}


def _more(index: int, text: str) -> Call:
    return {"index": index, "custom": {"input": text}}


def add_call(calls: list[Call], part: Call) -> None:
    """Adds a part to the calls of a whole answer, which have no index."""
    index = part.pop("index")
    if "id" in part:
        calls.append(part)
    elif "custom" in part:
        calls[index]["custom"]["input"] += part["custom"]["input"]
    else:
        calls[index]["function"]["arguments"] += part["function"]["arguments"]
