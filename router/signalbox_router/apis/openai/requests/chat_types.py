"""Request bodies of the chat endpoints: OpenAI's messages and tools, and vLLM's extra fields."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from signalbox_router.apis.openai.requests import foreign_fields
from signalbox_router.apis.openai.requests.types import Body, GenerationBody, Items, Json

FUNCTION, CUSTOM = "function tool", "custom tool"
"""Kinds of tools, and of what refers to them, as tags that are no key of a body."""

_TOOL = re.compile(r"tools\[(\d+)\]")


def _kind_of(value: Any) -> str:
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return f"{kind or 'function'} tool"


class TextPart(Body):
    """A text part of a message's content."""

    type: Literal["text"]
    """Only text is supported: no images, audio or files."""
    text: str
    """The part's text."""


class CalledFunction(Body):
    """Name and arguments of a tool call."""

    name: str
    """Name of the function."""
    arguments: str
    """Arguments, a JSON object as a string. It may have been cut by max_tokens."""


class FunctionToolCall(Body):
    """A tool call of the model."""

    id: str
    """Id of the call; the tool's message repeats it in tool_call_id."""
    type: Literal["function"] = "function"
    """`function`."""
    function: CalledFunction
    """The function that was called."""
    index: int | None = None
    """No effect: accepted because streamed deltas have it and clients send them back."""


class CalledCustomTool(Body):
    """Name and input of a call of a custom tool."""

    name: str
    """Name of the tool."""
    input: str
    """Input of the tool."""


class CustomToolCall(Body):
    """A call of a custom tool by the model."""

    id: str
    """Id of the call; the tool's message repeats it in tool_call_id."""
    type: Literal["custom"]
    """`custom`."""
    custom: CalledCustomTool
    """The tool that was called."""
    index: int | None = None
    """No effect: accepted because streamed deltas have it and clients send them back."""


ChatToolCall = Annotated[
    Annotated[FunctionToolCall, Tag(FUNCTION)] | Annotated[CustomToolCall, Tag(CUSTOM)],
    Discriminator(_kind_of),
]


class ChatMessage(Body):
    """One message of a conversation."""

    FOREIGN = foreign_fields.MESSAGE

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """Author of the message; developer is treated as system."""
    content: str | Items[TextPart] | None = None
    """Text of the message; required unless it is the assistant's or tool_calls is set."""
    name: str | None = None
    """Name of the author, for chat templates that show it."""
    tool_calls: Items[ChatToolCall] | None = None
    """Tool calls of an assistant message."""
    tool_call_id: str | None = None
    """Id of the call that a tool message answers."""
    # Fields of an answer, which clients send back as the assistant's message.
    refusal: None = None
    """Accepted, null, in an answer that is sent back."""
    annotations: list[Any] | None = Field(None, max_length=0)
    """Accepted, empty, in an answer that is sent back."""
    audio: None = None
    """Accepted, null, in an answer that is sent back."""
    function_call: None = None
    """Accepted, null, in an answer that is sent back; see tool_calls."""
    reasoning_content: str | None = None
    """DeepSeek's name of reasoning."""
    reasoning: str | None = None
    """Reasoning of an assistant message, for chat templates that show it."""


class FunctionDefinition(Body):
    """A function that the model may call."""

    FOREIGN = foreign_fields.FUNCTION

    name: str
    """Name of the function: letters, digits, underscores and hyphens."""
    description: str | None = None
    """Description of the function, which the model sees."""
    parameters: Json | None = None
    """JSON schema of the arguments."""
    strict: bool | None = None
    """True if calls conform to the schema also where the model decides whether to call, if its
    format opens calls with a marker. Calls that tool_choice forces conform in any case."""


class FunctionTool(Body):
    """A tool that the model may call."""

    FOREIGN = foreign_fields.TOOL

    type: Literal["function"] = "function"
    """`function`."""
    function: FunctionDefinition
    """The function."""


class ChatGrammar(Body):
    """Grammar of a custom tool's input."""

    syntax: Literal["regex", "lark"]
    """Syntax of the definition."""
    definition: str
    """The grammar."""


class ChatToolFormat(Body):
    """Format of a custom tool's input."""

    IS_CLOSED = True

    type: Literal["text", "grammar"]
    """`text`: any text; `grammar`: as the grammar says."""
    grammar: ChatGrammar | None = None
    """The grammar; required if the type is grammar."""


class CustomDefinition(Body):
    """A tool whose input is a text."""

    name: str
    """Name of the tool: letters, digits, underscores and hyphens."""
    description: str | None = None
    """Description of the tool, which the model sees."""
    format: ChatToolFormat | None = None
    """Format of the input. Default: any text."""


class ChatCustomTool(Body):
    """A custom tool that the model may call."""

    FOREIGN = foreign_fields.TOOL

    type: Literal["custom"]
    """`custom`."""
    custom: CustomDefinition
    """The tool."""


ChatTool = Annotated[
    Annotated[FunctionTool, Tag(FUNCTION)] | Annotated[ChatCustomTool, Tag(CUSTOM)],
    Discriminator(_kind_of),
]


class ToolName(Body):
    """Name of a tool."""

    name: str
    """Name of a tool in tools."""


class NamedToolChoice(Body):
    """A function by its name; as the value of tool_choice it must be called."""

    type: Literal["function"] = "function"
    """`function`."""
    function: ToolName
    """The function."""


class NamedCustomToolChoice(Body):
    """A custom tool by its name; as the value of tool_choice it must be called."""

    type: Literal["custom"]
    """`custom`."""
    custom: ToolName
    """The tool."""


NamedTool = Annotated[
    Annotated[NamedToolChoice, Tag(FUNCTION)] | Annotated[NamedCustomToolChoice, Tag(CUSTOM)],
    Discriminator(_kind_of),
]


class AllowedTools(Body):
    """The tools that may be called."""

    mode: Literal["auto", "required"]
    """`auto`: the model decides; `required`: it calls one or more of them."""
    tools: Items[NamedTool]
    """The tools, by their names."""


class AllowedToolChoice(Body):
    """Value of tool_choice that leaves the prompt as it is and restricts the calls."""

    type: Literal["allowed_tools"]
    """`allowed_tools`."""
    allowed_tools: AllowedTools
    """The tools that may be called."""


ToolChoice = Annotated[
    Annotated[NamedToolChoice, Tag(FUNCTION)]
    | Annotated[NamedCustomToolChoice, Tag(CUSTOM)]
    | Annotated[AllowedToolChoice, Tag("allowed_tools tool")],
    Discriminator(_kind_of),
]


class ChatReasoning(Body):
    """Options of reasoning, in the form of Ollama, OpenRouter and SGLang."""

    FOREIGN = foreign_fields.REASONING
    IS_CLOSED = True

    effort: str | None = None
    """The same as reasoning_effort."""
    exclude: bool | None = None
    """True is the same as include_reasoning false."""


class ConversationBody(Body):
    """Fields that a chat template renders into a prompt."""

    messages: Items[ChatMessage] | None = None
    """The conversation, oldest message first."""
    tools: Items[ChatTool] | None = None
    """Tools that the model may call."""
    chat_template: str | None = None
    """vLLM: Jinja chat template that replaces the model's."""
    chat_template_kwargs: Json | None = None
    """vLLM: further variables of the chat template."""
    add_generation_prompt: bool | None = None
    """vLLM: true if the prompt ends with the start of the assistant's turn. Default: true unless
    continue_final_message is set."""
    continue_final_message: bool | None = None
    """vLLM: true if the answer continues the last message. Default false."""
    reasoning_effort: str | None = None
    """none, minimal, low, medium, high, xhigh or max, as the chat template takes it; none turns
    thinking off."""
    reasoning: ChatReasoning | None = None
    """Another form of reasoning_effort and include_reasoning."""
    enable_thinking: bool | None = None
    """Qwen's API: true has the chat template enable thinking, if it can say so."""
    parse_special_tokens: bool | None = None
    """True if control tokens are also recognised in the text of messages and tools, and not in the
    chat template's own text alone. Default false."""

    @property
    def custom_tools(self) -> dict[int, ChatCustomTool]:
        """The custom tools by their position among all."""
        tools = enumerate(self.tools or ())
        return {i: tool for i, tool in tools if isinstance(tool, ChatCustomTool)}

    def client_name(self, field: str) -> str | None:
        found = _TOOL.match(field)
        if found is None or int(found[1]) not in self.custom_tools:
            return super().client_name(field)
        rest = field[found.end() :].replace(".parameters", ".format.grammar.definition")
        return f"{found[0]}.custom{rest}"


class Prediction(Body):
    """OpenAI's predicted output: text that the answer repeats in large part."""

    type: Literal["content"]
    """`content`."""
    content: str | Items[TextPart]
    """The text; parts are joined."""

    @property
    def text(self) -> str:
        parts = self.content
        return parts if isinstance(parts, str) else "".join(part.text for part in parts)


class ChatBody(ConversationBody, GenerationBody):
    """Body of POST /v1/chat/completions."""

    FOREIGN = foreign_fields.CHAT

    messages: Items[ChatMessage]
    """The conversation, oldest message first."""
    max_tokens: int | None = None
    """Maximum tokens of a choice, at least 1. Default: what the prompt leaves of the window."""
    max_completion_tokens: int | None = None
    """OpenAI's newer name of max_tokens; takes precedence over it."""
    logprobs: bool | None = None
    """True if choices have log probabilities. Default false."""
    top_logprobs: int | None = None
    """Most likely tokens to report at each position, in [0, 20]; needs logprobs. Default 0."""
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    """`none`: no calls; `auto`: the model decides; `required` or a tool: forces a call, and
    replaces response_format; or the tools that may be called. Default: auto if there are tools."""
    parallel_tool_calls: bool | None = None
    """True if one answer may have several calls. Default true."""
    thinking_token_budget: int | None = None
    """vLLM: most tokens of reasoning; then it ends, and the answer begins. Default: no bound."""
    include_reasoning: bool | None = None
    """vLLM: false leaves the reasoning out of the answer, and with it token ids and log
    probabilities, which would show it. Default true."""
    prediction: Prediction | None = None
    """Text that the answer repeats in large part, of at most as many tokens as the window; where
    the server speculates, the answer comes sooner. Not with use_beam_search, nor with speculation
    false."""
    modalities: Items[Literal["text"]] | None = None
    """Only text is supported."""
    echo: bool | None = None
    """vLLM: true if answers begin with the text of the last message, if that is the assistant's.
    Default false."""

    @property
    def echoed(self) -> str:
        """Text that answers begin with."""
        if not self.echo or not self.messages or self.messages[-1].role != "assistant":
            return ""
        content = self.messages[-1].content or ""
        return content if isinstance(content, str) else "\n".join(part.text for part in content)

    @property
    def shows_reasoning(self) -> bool:
        """True if the answer has the model's reasoning."""
        excludes = self.reasoning is not None and self.reasoning.exclude
        return self.include_reasoning is not False and not excludes

    @property
    def forces_call(self) -> bool:
        choice = self.tool_choice
        if isinstance(choice, AllowedToolChoice):
            return choice.allowed_tools.mode == "required"
        return choice not in (None, "none", "auto")


class TokenizeBody(ConversationBody):
    """Body of POST /tokenize, as in vLLM: a prompt or messages."""

    FOREIGN = foreign_fields.TOKENIZE

    model: str | None = None
    """Name of the served model. Default: the served model."""
    prompt: str | None = None
    """Text to tokenize; exactly one of prompt and messages is set."""
    add_special_tokens: bool | None = None
    """True if the tokenizer adds its special tokens, such as BOS, to the prompt. No effect on
    messages, whose template writes its own. Default true."""
    return_token_strs: bool | None = None
    """True if the answer has each token as the vocabulary spells it. Default false."""


class DetokenizeBody(Body):
    """Body of POST /detokenize, as in vLLM."""

    model: str | None = None
    """Name of the served model. Default: the served model."""
    tokens: Items[int]
    """Token ids to convert to text."""
    skip_special_tokens: bool | None = None
    """SGLang: true if special tokens are left out of the text. Default false."""
