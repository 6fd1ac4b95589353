"""Bodies of OpenAI's Responses API. Sampling has the fields of chats."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from signalbox_router.apis.openai.requests import foreign_fields
from signalbox_router.apis.openai.requests.foreign_fields import (
    CHAT,
    OPENAI,
    REFUSED,
    VLLM,
    Foreign,
    Table,
    ignored,
    refused,
)
from signalbox_router.apis.openai.requests.types import (
    Body,
    BodyWithTools,
    GenerationBody,
    Items,
    Json,
    JsonSchema,
    PromptCacheOptions,
    ResponseFormat,
)
from signalbox_router.apis.responses.item_types import InputItem
from signalbox_router.apis.responses.tool_types import OfferedTool, ToolChoiceObject

LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
_LIMIT = "max_output_tokens"
_OF_STATE: Table = refused(
    OPENAI, "background", "background_options", "previous_response_id", "conversation", "prompt",
    "context_management",
)  # fmt: skip
"""Fields of answers that are kept: this API keeps none."""
_OTHERS: Table = {
    **refused(
        OPENAI, "moderation", "access_programs", "image", "personality", "messages",
        "reasoning_effort", "modalities", logprobs=False, generate=True,
    ),
    **refused(
        VLLM, "chat_template", "chat_template_kwargs", "echo", "continue_final_message",
        "parse_special_tokens", "previous_input_messages", "enable_response_messages",
        add_generation_prompt=True, include_reasoning=True,
    ),
    **ignored(OPENAI, "prediction"),
    "enable_thinking": Foreign(foreign_fields.QWEN),
    "max_tokens": Foreign(OPENAI, None, _LIMIT),
    "max_completion_tokens": Foreign(OPENAI, None, _LIMIT),
}  # fmt: skip


def _row(row: Foreign) -> Foreign:
    """Returns a chat's row for a body whose fields are not all those of chats."""
    if row.does in ("max_tokens", "max_completion_tokens"):
        return row._replace(does=_LIMIT)
    is_ours = not row.is_served or row.does in GenerationBody.model_fields.keys() - {"n"}
    return row if is_ours else row._replace(does=REFUSED)


RESPONSES: Table = {
    **{name: _row(row) for name, row in CHAT.items() if name not in (_LIMIT, "text", "verbosity")},
    **_OTHERS,
    **_OF_STATE,
}
INPUT_TOKENS: Table = {**_OF_STATE, "personality": Foreign(OPENAI)}
CACHE_OPTIONS: Table = {
    name: row
    for name, row in PromptCacheOptions.FOREIGN.items()
    if name != "comparison_response_id"
}
TEXT: Table = {"verbosity": Foreign(OPENAI, "medium")}
REASONING: Table = {"mode": Foreign(OPENAI, "standard"), "context": Foreign(OPENAI, "auto")}


class TextFormat(Body):
    """Structure of the text. Has no effect if tool_choice forces a call."""

    IS_CLOSED = True

    type: Literal["text", "json_object", "json_schema"]
    """`text`: no structure; `json_object`: any JSON object; `json_schema`: as the schema says."""
    name: str | None = None
    """A label; no effect."""
    description: str | None = None
    """A label; no effect. The model does not see it."""
    schema_: Json | None = Field(None, alias="schema")
    """The JSON schema; required if the type is json_schema."""
    strict: bool | None = None
    """No effect: answers always conform to the schema."""


class TextOptions(Body):
    """Options of the text."""

    FOREIGN = TEXT

    format: TextFormat | None = None
    """Structure of the text. Default: none."""


class ReasoningOptions(Body):
    """Options of reasoning."""

    FOREIGN = REASONING

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """Effort, as the chat template takes it; `none` turns thinking off."""
    summary: Literal["auto", "concise", "detailed"] | None = None
    """The form of reasoning in the answer: with a summary the whole text is one, without it is
    content."""
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    """Older name of summary."""


class ResponsesStreamOptions(Body):
    """Options of a streamed answer."""

    include_obfuscation: Literal[False] | None = None
    """Must be false: events are not padded."""


class ComparingCacheOptions(PromptCacheOptions):
    """Options of the prompt cache, and of what the answer says of it."""

    FOREIGN = CACHE_OPTIONS

    comparison_response_id: str | None = None
    """Id of the response whose request the prompt is compared with: one of the same tenant and API
    key that had a session or this field. The answer's prompt_cache_diagnostics then say what broke
    the prefix. Null is the response that is continued, else the session's last."""


class PromptBody(BodyWithTools):
    """Fields that become a prompt."""

    RENAMED: ClassVar[Mapping[str, str]] = {
        "messages": "input",
        "max_tokens": _LIMIT,
        "logprobs": "top_logprobs",
        "tool_choice.tool": "tool_choice.name",
    }
    MAX_VALUES: ClassVar[Mapping[str, int]] = {"input": 1 << 18}

    input: str | Items[InputItem] | None = None
    """A text, or the items of a conversation, oldest first."""
    instructions: str | None = None
    """System message before the input."""
    tools: Items[OfferedTool] | None = None
    """Tools that the model may call: functions, custom tools and namespaces of them."""
    tool_choice: Literal["none", "auto", "required"] | ToolChoiceObject | None = None
    """`none`: no calls; `auto`: the model decides; `required` or a tool: forces a call, and
    replaces text.format; or the tools that may be called. Default: auto if there are tools."""
    parallel_tool_calls: bool | None = None
    """True if one answer may have several calls. Default true."""
    reasoning: ReasoningOptions | None = None
    """Options of reasoning."""
    text: TextOptions | None = None
    """Options of the text."""
    truncation: Literal["auto", "disabled"] | None = None
    """`auto` leaves the oldest turns of a conversation out that is longer than the window.
    Default disabled."""


class InputTokensBody(PromptBody):
    """Body of POST /v1/responses/input_tokens."""

    FOREIGN = INPUT_TOKENS


class ResponsesBody(PromptBody, GenerationBody):
    """Body of POST /v1/responses."""

    FOREIGN = RESPONSES

    input: str | Items[InputItem]
    """A text, or the items of a conversation, oldest first."""
    max_output_tokens: int | None = None
    """Maximum tokens of the answer, reasoning included, at least 1. Default: what the prompt
    leaves of the window."""
    include: Items[str] | None = None
    """`reasoning.encrypted_content` and `message.output_text.logprobs`. Those of OpenAI's hosted
    tools have no effect."""
    top_logprobs: int | None = None
    """Most likely tokens to report at each position of the text, in [0, 20]. Default 0."""
    max_tool_calls: int | None = None
    """No effect: it counts calls of hosted tools, and there are none."""
    store: Literal[False] | None = None
    """Must be false, which is the default here: answers are not stored."""
    prompt_cache_options: ComparingCacheOptions | None = None
    """Options of the prompt cache."""
    client_metadata: Json | None = None
    """Labels; no effect."""
    metadata: dict[str, str] | None = None
    """Labels, which the answer repeats."""
    stream_options: ResponsesStreamOptions | None = None  # type: ignore[assignment]
    """Options of a streamed answer."""
    n: Literal[1] | None = None
    """Must be 1."""
    response_format: None = None
    """Must be null: see text.format."""
    prompt_logprobs: None = None
    """Must be null: the answer has no place for them."""
    logprob_token_ids: None = None
    """Must be null: see top_logprobs."""
    return_token_ids: Literal[False] | None = None
    """Must be false: the answer has no place for them."""

    @property
    def forces_call(self) -> bool:
        choice = self.tool_choice
        if isinstance(choice, ToolChoiceObject):
            return choice.type != "allowed_tools" or choice.mode == "required"
        return choice == "required"

    @property
    def asked_format(self) -> ResponseFormat | None:
        format_ = self.text.format if self.text else None
        if format_ is None:
            return None
        if format_.type != "json_schema":
            return ResponseFormat(type=format_.type)
        schema = JsonSchema.model_validate({"schema": format_.schema_})
        return ResponseFormat(type="json_schema", json_schema=schema)

    @property
    def shows_logprobs(self) -> bool:
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())

    @property
    def summarizes(self) -> bool:
        """True if the answer's reasoning has the form of a summary."""
        reasoning = self.reasoning
        return reasoning is not None and bool(reasoning.summary or reasoning.generate_summary)

    @property
    def is_compared(self) -> bool:
        """True if the answer is to say what broke the prefix."""
        options = self.prompt_cache_options
        return options is not None and "comparison_response_id" in options.model_fields_set

    @property
    def compared_id(self) -> str | None:
        """Id of the response whose request the prompt is compared with; None is the session's
        last."""
        options = self.prompt_cache_options
        return None if options is None else options.comparison_response_id

    def client_name(self, field: str) -> str | None:
        if field.startswith("structured_output") and not self.forces_call:
            format_ = self.text.format if self.text else None
            if format_ is not None and format_.type != "text":
                return "text.format.schema"
        return super().client_name(field)


def dumped(value: Any) -> Any:
    """Returns a body's part as its client wrote it, without nulls."""
    if not isinstance(value, Body):
        return value
    return value.model_dump(exclude_unset=True, exclude_none=True, by_alias=True)
