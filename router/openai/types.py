"""What clients send: OpenAI's fields, and the extra ones that vLLM's clients know.

Types are checked here, values where every API's are, in `validation`. Some fields are accepted
because they ask for nothing: those that only label a request, and those that are None or the
default.
"""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

Json = dict[str, Any]


class Body(BaseModel):
    """No value is converted. Fields that are not listed are kept for `unknown_fields`."""

    model_config = ConfigDict(extra="allow", strict=True)

    NOT_SERVED: ClassVar[frozenset[str]] = frozenset()
    """Fields of OpenAI's or vLLM's that change answers there; None and False ask for nothing."""


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """vLLM's: usage so far, in every event."""
    include_obfuscation: Literal[False] | None = None


class JsonSchema(Body):
    name: str | None = None
    description: str | None = None
    schema_: Json | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Body):
    """vLLM's; exactly one."""

    json_: Json | str | None = Field(None, alias="json")
    json_object: Literal[True] | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: list[str] | None = None


class Labels(Body):
    """Of no consequence here."""

    user: str | None = None
    metadata: dict[str, str] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class GenerationBody(Labels):
    """What completions and chats have in common."""

    NOT_SERVED = frozenset({
        "guided_decoding_backend", "guided_whitespace_pattern", "kv_transfer_params",
        "logits_processors", "mm_processor_kwargs", "logprob_token_ids", "repetition_detection",
        "thinking_token_budget", "vllm_xargs",
    })  # fmt: skip

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: ResponseFormat | None = None
    # vLLM's.
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: Literal[True] | None = None
    truncate_prompt_tokens: int | None = None
    prompt_logprobs: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Json | str | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    guided_choice: list[str] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    @property
    def forces_call(self) -> bool:
        """Whether the answer is to be a tool call."""
        return False


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    NOT_SERVED = GenerationBody.NOT_SERVED | {"prompt_embeds"}

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int | None = 16
    logprobs: int | None = None
    echo: bool | None = None
    suffix: Literal[""] | None = None
    add_special_tokens: bool | None = None


class TextPart(Body):
    type: Literal["text"]
    text: str


class CalledFunction(Body):
    name: str
    arguments: str


class ToolCall(Body):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None
    """Of a delta; clients send back what they got."""


class ChatMessage(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    # Of OpenAI's answers, which clients send back.
    refusal: None = None
    annotations: list[Any] | None = Field(None, max_length=0)
    audio: None = None
    function_call: None = None
    reasoning_content: None = None


class FunctionDefinition(Body):
    name: str
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None
    """Calls conform to the schema if the tool choice forces them; see the README."""


class Tool(Body):
    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(Body):
    name: str


class NamedToolChoice(Body):
    type: Literal["function"]
    function: FunctionName


class ConversationBody(Body):
    """What a prompt is rendered from."""

    messages: list[ChatMessage] | None = None
    tools: list[Tool] | None = None
    chat_template: str | None = None
    chat_template_kwargs: Json | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class ChatBody(ConversationBody, GenerationBody):
    """POST /v1/chat/completions."""

    NOT_SERVED = GenerationBody.NOT_SERVED | {
        "add_special_tokens", "audio", "documents", "echo", "function_call", "functions",
        "media_io_kwargs", "moderation", "prediction", "suffix", "verbosity", "web_search_options",
    }  # fmt: skip

    messages: list[ChatMessage]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    """A variable of the template."""
    modalities: list[Literal["text"]] | None = None

    @property
    def forces_call(self) -> bool:
        return self.tool_choice not in (None, "none", "auto")


class TokenizeBody(ConversationBody):
    """POST /tokenize, vLLM's: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    """Of a prompt; a template writes its own."""
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    """POST /detokenize, vLLM's."""

    model: str | None = None
    tokens: list[int]
