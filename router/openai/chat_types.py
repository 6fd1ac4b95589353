"""Bodies of chats: OpenAI's messages and tools, and the requests made of them."""

from typing import Any, Literal

from pydantic import Field

from router.openai.types import Body, GenerationBody, Json


class TextPart(Body):
    """A part of a message's content."""

    type: Literal["text"]
    """Images, audio and files are not served."""
    text: str
    """The part's text."""


class CalledFunction(Body):
    """What was called."""

    name: str
    """The function's name."""
    arguments: str
    """A JSON object, as text."""


class ToolCall(Body):
    """A call that the model has made."""

    id: str
    """What the tool's answer names in tool_call_id."""
    type: Literal["function"] = "function"
    """Custom tools are not served."""
    function: CalledFunction
    """What was called."""
    index: int | None = None
    """Of a streamed delta; clients send back what they got."""


class ChatMessage(Body):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """The author; developer is system."""
    content: str | list[TextPart] | None = None
    """The text; required unless there are tool_calls."""
    name: str | None = None
    """The author's name, for templates that show it."""
    tool_calls: list[ToolCall] | None = None
    """What the assistant has called."""
    tool_call_id: str | None = None
    """Of a tool's answer: the call that it answers."""
    # Of OpenAI's answers, which clients send back.
    refusal: None = None
    """Of an answer that is sent back."""
    annotations: list[Any] | None = Field(None, max_length=0)
    """Of an answer that is sent back; empty."""
    audio: None = None
    """Of an answer that is sent back."""
    function_call: None = None
    """Of an answer that is sent back; see tool_calls."""
    reasoning_content: str | None = None
    """As reasoning, under DeepSeek's name."""
    reasoning: str | None = None
    """Of an answer that is sent back."""


class FunctionDefinition(Body):
    """A function that the model may call."""

    name: str
    """Letters, digits, underscores and hyphens."""
    description: str | None = None
    """What the model is told of it."""
    parameters: Json | None = None
    """A JSON schema of the arguments."""
    strict: bool | None = None
    """Calls conform to the schema if the tool choice forces them, either way."""


class Tool(Body):
    """A tool that the model may call."""

    type: Literal["function"]
    """Custom tools are not served."""
    function: FunctionDefinition
    """The function."""


class FunctionName(Body):
    """A function by name."""

    name: str
    """One of the tools'."""


class NamedToolChoice(Body):
    """Forces a call of one function."""

    type: Literal["function"]
    """Custom tools are not served."""
    function: FunctionName
    """What is called."""


class ConversationBody(Body):
    """What a prompt is rendered from."""

    messages: list[ChatMessage] | None = None
    """The conversation, oldest message first."""
    tools: list[Tool] | None = None
    """What the model may call; needs a chat template that shows tools."""
    chat_template: str | None = None
    """vLLM's: a Jinja template in place of the model's."""
    chat_template_kwargs: Json | None = None
    """vLLM's: further variables of the template."""
    add_generation_prompt: bool | None = None
    """vLLM's: whether the prompt ends where an answer begins. Default true."""
    continue_final_message: bool | None = None
    """vLLM's: whether the last message is left open, to be continued. Default false."""


class ChatBody(ConversationBody, GenerationBody):
    """Body of POST /v1/chat/completions."""

    NOT_SERVED = GenerationBody.NOT_SERVED | {
        "add_special_tokens", "audio", "documents", "echo", "function_call", "functions",
        "media_io_kwargs", "moderation", "prediction", "verbosity", "web_search_options",
    }  # fmt: skip

    messages: list[ChatMessage]
    """The conversation, oldest message first."""
    max_tokens: int | None = None
    """Most tokens of a choice, at least 1. Default: what the model's window leaves."""
    max_completion_tokens: int | None = None
    """As max_tokens, which it goes before."""
    logprobs: bool | None = None
    """Whether choices have log probabilities. Default false."""
    top_logprobs: int | None = None
    """Alternatives reported for each token, in [0, 20]; needs logprobs. Default 0."""
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    """Whether tools are called; required and a named tool force a call, and win over
    response_format. Default: auto if there are tools."""
    parallel_tool_calls: bool | None = None
    """Whether one answer may hold several calls. Default true."""
    reasoning_effort: str | None = None
    """A variable of the template."""
    modalities: list[Literal["text"]] | None = None
    """Answers are text."""

    @property
    def forces_call(self) -> bool:
        return self.tool_choice not in (None, "none", "auto")


class TokenizeBody(ConversationBody):
    """Body of POST /tokenize, vLLM's: a prompt or messages."""

    model: str | None = None
    """Name of the served model. Default: whatever is served."""
    prompt: str | None = None
    """A text; exactly one of prompt and messages."""
    add_special_tokens: bool | None = None
    """Whether a prompt gets the tokenizer's special tokens; a template writes its own. Default
    true."""
    return_token_strs: bool | None = None
    """Whether the answer has each token as the vocabulary spells it. Default false."""


class DetokenizeBody(Body):
    """Body of POST /detokenize, vLLM's."""

    model: str | None = None
    """Name of the served model. Default: whatever is served."""
    tokens: list[int]
    """Token ids."""
