"""Request bodies of Anthropic's Messages API.

Types are checked here; values are checked in `params_validation`, for all APIs. /docs and
/openapi.json show the docstrings as the descriptions of the fields.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from signalbox_router.apis.messages import foreign
from signalbox_router.apis.messages.client_tools import CLIENT_TOOLS
from signalbox_router.apis.openai.requests.types import (
    Body,
    BodyWithTools,
    Items,
    Json,
    StreamableBody,
)

CUSTOM = "custom"
_VERSION = re.compile(r"_[0-9]{8}$")


def family_of(kind: str) -> str:
    """Returns the type of a tool without the date of its version."""
    return _VERSION.sub("", kind)


def _kind_of(value: Any) -> Any:
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


def _block_tag(value: Any) -> str | None:
    """Returns a tag that is no key of a block, so that the path of an error is unambiguous."""
    return f"{kind} block" if isinstance(kind := _kind_of(value), str) else None


def _tool_tag(value: Any) -> str:
    kind = _kind_of(value)
    if kind is None or kind == CUSTOM:
        return "custom tool"
    return "client tool" if family_of(str(kind)) in CLIENT_TOOLS else "hosted tool"


class CacheControl(Body):
    """A mark for the prompt cache. Every prefix is cached, marked or not."""

    type: Literal["ephemeral"]
    """Only `ephemeral`."""
    ttl: Literal["5m", "1h"] | None = None
    """Time that the prefix is needed. The scheduler is told the longest of the last tool, the
    system prompt, the last message and the body, and shows it; prefixes stay for as long as there
    is room. Default 5m."""


class Block(Body):
    """A part of a message's content."""

    cache_control: CacheControl | None = None
    """A mark for the prompt cache; every prefix is cached anyway."""


class TextBlock(Block):
    """A text."""

    FOREIGN = foreign.TEXT

    type: Literal["text"]
    """`text`."""
    text: str
    """The text."""


class ToolUseBlock(Block):
    """A tool call of the model."""

    FOREIGN = foreign.CALL

    type: Literal["tool_use"]
    """`tool_use`."""
    id: str
    """Id of the call; its tool_result repeats it in tool_use_id."""
    name: str
    """Name of the tool."""
    input: Json
    """Arguments of the call."""


ResultBlock = Annotated[Annotated[TextBlock, Tag("text block")], Discriminator(_block_tag)]


class ToolResultBlock(Block):
    """The result of a tool call."""

    FOREIGN = foreign.CALL

    type: Literal["tool_result"]
    """`tool_result`."""
    tool_use_id: str
    """Id of the call."""
    content: str | Items[ResultBlock] | None = None
    """The result: a text, or text blocks."""
    is_error: bool | None = None
    """True if the call has failed: the model sees `Error:` in a line before the result."""


class ThinkingBlock(Body):
    """Reasoning of an earlier answer."""

    type: Literal["thinking"]
    """`thinking`."""
    thinking: str
    """No effect: the signature holds the text, which the client may have been spared."""
    signature: str
    """The signature as an answer had it. A block with one that this server has not written is left
    out, and named in the answer's input_transformations."""


class RedactedThinkingBlock(Body):
    """Reasoning of an earlier answer that its client has not seen."""

    type: Literal["redacted_thinking"]
    """`redacted_thinking`."""
    data: str
    """A signature; see the thinking block."""


ContentBlock = Annotated[
    Annotated[TextBlock, Tag("text block")]
    | Annotated[ThinkingBlock, Tag("thinking block")]
    | Annotated[RedactedThinkingBlock, Tag("redacted_thinking block")]
    | Annotated[ToolUseBlock, Tag("tool_use block")]
    | Annotated[ToolResultBlock, Tag("tool_result block")],
    Discriminator(_block_tag),
]


class MessageParam(Body):
    """One message of a conversation."""

    FOREIGN = foreign.MESSAGE

    role: Literal["user", "assistant", "system"]
    """Author of the message. A system message stays in its place."""
    content: str | Items[ContentBlock]
    """A text, or blocks: tool_use and thinking of the assistant, tool_result of the user."""
    clear_at: Literal["never", "next_user_message"] | None = None
    """`next_user_message`: a system message that is left out once a message of the user follows.
    Default never."""


class _OwnTool(Body):
    FOREIGN = foreign.TOOL

    input_examples: Items[Json] | None = None
    """Examples of arguments, which the model sees in the schema."""
    strict: bool | None = None
    """True if calls conform to the schema also where the model decides whether to call."""
    allowed_callers: Items[str] | None = None
    """A tool that only hosted code may call, not `direct`, is left out."""
    cache_control: CacheControl | None = None
    """A mark for the prompt cache; every prefix is cached anyway."""


class CustomTool(_OwnTool):
    """A tool of the client."""

    type: Literal["custom"] | None = None
    """`custom`."""
    name: str
    """Name of the tool: letters, digits, underscores, dots and hyphens."""
    description: str | None = None
    """Description of the tool, which the model sees."""
    input_schema: Json
    """JSON schema of the arguments."""


class ClientTool(_OwnTool):
    """A tool of the client with a schema that the API defines: bash, text editor, memory."""

    type: str
    """Type of the tool, such as `bash_20250124`."""
    name: str
    """The name that the API gives it."""
    max_characters: int | None = None
    """No effect on the model: a bound of the client for what the text editor shows."""


ToolParam = Annotated[
    Annotated[CustomTool, Tag("custom tool")]
    | Annotated[ClientTool, Tag("client tool")]
    | Annotated[Json, Tag("hosted tool")],
    Discriminator(_tool_tag),
]


class ToolChoiceParam(Body):
    """Rule for the model's calls of tools."""

    IS_CLOSED = True

    type: Literal["auto", "any", "tool", "none"]
    """`auto`: the model decides; `any` or `tool`: forces a call, and replaces the output format;
    `none`: no calls."""
    name: str | None = None
    """Name of the tool to call, if type is tool."""
    disable_parallel_tool_use: bool | None = None
    """True if an answer has at most one call. Default false."""


class ThinkingParam(Body):
    """Options of thinking."""

    FOREIGN = foreign.THINKING

    type: Literal["enabled", "adaptive", "disabled"]
    """`enabled` and `adaptive` have the template enable thinking, `disabled` has it not, and leaves
    reasoning out of the answer."""
    budget_tokens: int | None = None
    """Most tokens of reasoning, at least 1; needs type enabled. Default: unlimited."""
    display: Literal["summarized", "omitted"] | None = None
    """`omitted`: thinking blocks have a signature and no text. Default summarized, which is the
    whole text."""


class OutputFormat(Body):
    """Structure of the answer's text."""

    IS_CLOSED = True

    type: Literal["json_schema"]
    """`json_schema`."""
    schema_: Json = Field(alias="schema")
    """The JSON schema."""


class OutputConfig(Body):
    """Options of the answer."""

    FOREIGN = foreign.OUTPUT

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """Effort, as the chat template takes it."""
    format: OutputFormat | None = None
    """Structure of the text. Has no effect if tool_choice forces a call."""


class Metadata(Body):
    """Labels of a request."""

    user_id: str | None = None
    """A label; no effect, unless it names a session, as Claude Code's does: with several schedulers
    the request goes to the one that had the session's last request."""


class MessageDiagnostics(Body):
    """Asks the answer to say in its diagnostics what broke the prefix of the prompt."""

    previous_message_id: str | None = None
    """Id of the message whose request the prompt is compared with: one of the same tenant and API
    key that had a session or diagnostics. Null compares nothing. Default: the last request of the
    session."""

    @property
    def compares(self) -> bool:
        """False if the client says that there is no earlier message."""
        is_set = "previous_message_id" in self.model_fields_set
        return self.previous_message_id is not None or not is_set


class MessagesPromptBody(BodyWithTools):
    """Fields that are rendered into a prompt."""

    RENAMED: ClassVar[Mapping[str, str]] = foreign.RENAMED

    messages: Items[MessageParam]
    """The conversation, oldest message first. Neighbours of one author are one turn; if the last is
    the assistant's, the answer continues it."""
    system: str | Items[TextBlock] | None = None
    """System prompt."""
    tools: Items[ToolParam] | None = None
    """Tools that the model may call. Tools that the API's own servers execute are left out, unless
    tool_choice names one; the header x-signalbox-omitted-tools lists them."""
    tool_choice: ToolChoiceParam | None = None
    """Rule for calls of tools. Default: auto if there are tools."""
    thinking: ThinkingParam | None = None
    """Options of thinking. Default: as the template has it."""
    output_config: OutputConfig | None = None
    """Options of the answer."""
    output_format: OutputFormat | None = None
    """Older name of output_config.format."""
    context_management: Json | None = None
    """No edit is applied, and the answer says so: its applied_edits are empty."""
    cache_control: CacheControl | None = None
    """A mark for the prompt cache; every prefix is cached anyway."""

    @property
    def forces_call(self) -> bool:
        """True if the answer must be a tool call."""
        return self.tool_choice is not None and self.tool_choice.type in ("any", "tool")

    def client_name(self, field: str) -> str:
        if field.partition(".")[0] != "structured_output":
            return super().client_name(field) or field
        newer = self.output_config.format if self.output_config else None
        if self.forces_call or newer is self.output_format is None:
            return "tools"
        return "output_format.schema" if newer is None else "output_config.format.schema"


class CountTokensBody(MessagesPromptBody):
    """Body of POST /v1/messages/count_tokens."""

    FOREIGN = foreign.MESSAGES


class MessagesBody(MessagesPromptBody, StreamableBody):
    """Body of POST /v1/messages."""

    FOREIGN = foreign.MESSAGES

    max_tokens: int
    """Maximum tokens of the answer. One beyond the window is cut; 0 computes the prompt alone, so
    that it is cached."""
    temperature: float | None = None
    """Softmax temperature in [0, 2]; 0 is greedy. Default: the model's, else 1."""
    top_p: float | None = None
    """Probability mass of nucleus sampling, in (0, 1]. Default: the model's, else 1."""
    top_k: int | None = None
    """Number of most likely tokens to keep; 0 keeps all. Default: the model's, else 0."""
    stop_sequences: Items[str] | None = None
    """Strings that end the answer: at most 64, of 1 to 1,024 bytes each."""
    metadata: Metadata | None = None
    """Labels of the request."""
    diagnostics: MessageDiagnostics | None = None
    """Asks that the answer say what broke the prefix of its prompt."""
    service_tier: Literal["auto", "standard_only"] | None = None
    """No effect: there is one tier."""

    @property
    def shows_thinking(self) -> bool:
        return self.thinking is None or self.thinking.type != "disabled"
