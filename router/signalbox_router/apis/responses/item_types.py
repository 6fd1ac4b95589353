"""Items of a Responses body's input: messages, and what earlier answers and tools said."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Tag

from signalbox_router.apis.openai.requests import foreign_fields
from signalbox_router.apis.openai.requests.foreign_fields import IGNORED, OPENAI, Foreign
from signalbox_router.apis.openai.requests.types import Body, Items

OF_ANSWERS: foreign_fields.Table = {
    name: Foreign(OPENAI, None, IGNORED)
    for name in ("created_by", "parsed", "parsed_arguments", "caller", "async")
}
"""Fields that other servers or clients add to the items of an answer, which clients send back."""


class ContentPart(Body):
    """A part of a message's content, or of a tool's output."""

    FOREIGN = OF_ANSWERS

    type: str
    """`input_text`, `output_text`, `text` or `refusal`; images, audio and files are not served."""
    text: str | None = None
    """The part's text."""
    refusal: str | None = None
    """The text of a refusal."""
    annotations: list[Any] | None = None
    """No effect: accepted in an answer that is sent back."""
    logprobs: list[Any] | None = None
    """No effect: accepted in an answer that is sent back."""
    prompt_cache_breakpoint: Any = None
    """No effect: prefixes are cached wherever requests share them."""


class _Item(Body):
    FOREIGN = OF_ANSWERS

    id: str | None = None
    """Id of an item of an answer; no effect."""
    status: str | None = None
    """No effect: accepted in an answer that is sent back."""


class InputMessage(_Item):
    """A message."""

    type: Literal["message"] | None = None
    """`message`, which is also what an item without a type is."""
    role: Literal["system", "developer", "user", "assistant"]
    """Author of the message; developer is treated as system."""
    content: str | Items[ContentPart]
    """Text of the message."""
    phase: str | None = None
    """No effect."""


class ReasoningPart(Body):
    """A part of a reasoning item."""

    type: str | None = None
    """No effect."""
    text: str
    """The part's text."""


class ReasoningInput(_Item):
    """Reasoning of an earlier answer, for chat templates that show it."""

    type: Literal["reasoning"]
    """`reasoning`."""
    encrypted_content: str | None = None
    """The reasoning as an answer had it; precedes content and summary."""
    content: Items[ReasoningPart] | None = None
    """The reasoning's text; precedes summary."""
    summary: Items[ReasoningPart] | None = None
    """The reasoning's text in an answer to a request with reasoning.summary."""


class _Call(_Item):
    call_id: str
    """Id of the call; the output repeats it."""
    name: str
    """Name of the tool."""
    namespace: str | None = None
    """Namespace of the tool, if it has one."""


class FunctionCall(_Call):
    """A call of a function that an earlier answer had."""

    type: Literal["function_call"]
    """`function_call`."""
    arguments: str
    """Arguments, a JSON object as a string. It may have been cut by max_tokens."""


class CustomCall(_Call):
    """A call of a custom tool that an earlier answer had."""

    type: Literal["custom_tool_call"]
    """`custom_tool_call`."""
    input: str
    """Input of the tool."""


class ToolOutput(_Item):
    """Output of a tool."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    """Kind of the call."""
    call_id: str
    """Id of the call."""
    output: str | Items[ContentPart]
    """The output's text."""
    name: str | None = None
    """Name of the tool. Default: that of the call."""
    namespace: str | None = None
    """Namespace of the tool, if it has one."""


class OtherItem(Body):
    """An item that is not served; it is refused by its type."""

    FOREIGN: ClassVar[foreign_fields.Table] = {}

    type: str
    """Type of the item."""


_OTHER = "other"
_SERVED = frozenset(
    ("message", "reasoning", "function_call", "custom_tool_call", "function_call_output",
     "custom_tool_call_output")
)  # fmt: skip


def _tag_of(item: Any) -> str:
    kind = item.get("type") if isinstance(item, Mapping) else getattr(item, "type", None)
    if kind is None:
        return "message"
    return kind if isinstance(kind, str) and kind in _SERVED else _OTHER


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[ReasoningInput, Tag("reasoning")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[CustomCall, Tag("custom_tool_call")]
    | Annotated[ToolOutput, Tag("function_call_output")]
    | Annotated[ToolOutput, Tag("custom_tool_call_output")]
    | Annotated[OtherItem, Tag(_OTHER)],
    Discriminator(_tag_of),
]
