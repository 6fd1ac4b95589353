"""A conversation as it is rendered: messages, offered tools, and how the last message ends.

`variables` of each class returns the variables of chat templates, as Hugging Face defines them.
"""

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from signalbox_contract.errors import InvalidArgument
from signalbox_router.limits.json_text import TooMuchJson, parsed, partly_parsed
from signalbox_router.prompt.chat.provenance import (
    CLIENT,
    MODEL,
    TEMPLATE,
    Text,
    marked,
    plain,
    writers_of,
    written_by,
)
from signalbox_router.prompt.chat.template_facts import ContentForm

MAX_MESSAGES = 65_536
"""Most messages: as one takes at least two tokens in known templates, so many fill a window of
131,072."""
MAX_PARTS = 16_384
"""Most parts of one message's content, and most calls in it."""
MAX_TOOLS = 1024
"""Most tools: clients with several MCP servers offer hundreds. A forced call with more schemas than
`MAX_RULES_CHARS` holds is refused in any case."""
MAX_TEMPLATE_BYTES = 64 << 10
MAX_NAME_CHARS = 128
"""Most characters of a tool's name."""
_TOOL_NAME = re.compile(rf"[a-zA-Z0-9_.-]{{1,{MAX_NAME_CHARS}}}", re.ASCII)
_OUR_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt"})


def check_counts(*, num_messages: int, num_tools: int) -> None:
    """Checks the numbers of messages and tools before they are processed."""
    if num_messages > MAX_MESSAGES:
        raise InvalidArgument("messages", f"a list of {num_messages}", f"at most {MAX_MESSAGES}")
    if num_tools > MAX_TOOLS:
        raise InvalidArgument("tools", f"a list of {num_tools}", f"at most {MAX_TOOLS}")


def check_num_parts(num_parts: int, *, field: str) -> None:
    """Checks the number of a message's parts or calls."""
    if num_parts > MAX_PARTS:
        raise InvalidArgument(field, f"a list of {num_parts}", f"at most {MAX_PARTS}")


INPUT = "input"
"""The one argument of a custom tool, as which the model sees its input."""


def arguments_of(text: str) -> Mapping[str, Any]:
    """Returns the arguments of an earlier call as an object, which chat templates expect.

    Arguments that were cut by length are what there is of them. Another text that is no object is
    one argument, as a custom tool's input is. Raises TooMuchJson.
    """
    if text.strip() in ("", "null"):
        return {}
    try:
        value = parsed(text)
    except TooMuchJson:
        raise
    except ValueError:
        value = partly_parsed(text)
    return value if isinstance(value, dict) else {INPUT: text}


class ToolCall(NamedTuple):
    """A tool call that the model has made in an earlier turn."""

    id: str
    name: str
    arguments: Mapping[str, Any]

    def variables(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


class Message(NamedTuple):
    """One turn of a conversation."""

    role: str
    content: str | tuple[str, ...]
    """A text, or the texts of several parts."""
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str = ""
    name: str = ""
    reasoning: str = ""
    """Reasoning of an assistant message, before its text."""

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.content,) if isinstance(self.content, str) else self.content

    @property
    def has_content(self) -> bool:
        """True if the message may be rendered; an assistant's may be empty, as answers may."""
        return bool(self.parts or self.tool_calls) or self.role == "assistant"

    @property
    def text(self) -> Text:
        """The parts, joined as vLLM and llama.cpp join them."""
        writer = MODEL if self.role == "assistant" else CLIENT
        return written_by(TEMPLATE, "\n").join([marked(part, writer) for part in self.parts])

    def variables(self, form: ContentForm, *, suffix: str = "") -> dict[str, Any]:
        """Returns the template's variables without empty ones: templates ask whether they are
        defined.

        Args:
            suffix: appended to the text.
        """
        *others, last = self.parts or ("",)
        texts = (*others, last + suffix)
        content: str | list[dict[str, str]] = "\n".join(texts) if others else texts[0]
        if form is ContentForm.LIST or (form is ContentForm.PARTS and others):
            content = [{"type": "text", "text": text} for text in texts]
        variables: dict[str, Any] = {"role": self.role, "content": content}
        if self.tool_calls:
            variables["tool_calls"] = [call.variables() for call in self.tool_calls]
        if self.tool_call_id:
            variables["tool_call_id"] = self.tool_call_id
        if self.reasoning:  # under both names that templates know, as in transformers
            variables["reasoning_content"] = variables["thinking"] = self.reasoning
        if self.name:
            variables["name"] = self.name
        return variables


class FreeText(NamedTuple):
    """The input of a custom tool: a text, in place of JSON arguments."""

    syntax: Literal["", "regex", "lark"] = ""
    """Syntax of the grammar that the whole text conforms to; "" is any text."""
    definition: str = ""
    """The grammar."""


class Tool(NamedTuple):
    """A tool that the model may call: a function, or a custom tool as a function of one text."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    """JSON schema of the arguments; None takes no arguments."""
    strict: bool = False
    """True if calls conform to the schema also where the model decides whether to call."""
    free_text: FreeText | None = None
    """Input of a custom tool, see `custom_tool`."""

    def variables(self) -> dict[str, Any]:
        """Returns the template's variables without unset ones, as transformers does."""
        function: dict[str, Any] = {"name": self.name}
        if self.description:
            function["description"] = self.description
        if self.parameters is not None:
            function["parameters"] = self.parameters
        return {"type": "function", "function": function}


def custom_tool(name: str, description: str, free_text: FreeText) -> Tool:
    """Returns a tool whose calls have a text as their only argument.

    A regular expression is a part of the schema. A Lark grammar, which a schema cannot express, is
    told to the model there.
    """
    text: dict[str, Any] = {"type": "string"}
    if free_text.syntax == "regex":
        text["pattern"] = f"^(?:{free_text.definition})$"
    elif free_text.syntax:
        text["description"] = f"Text of this Lark grammar:\n{free_text.definition}"
    parameters = {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return Tool(name, description, parameters, bool(free_text.syntax), free_text)


class ToolMode(enum.Enum):
    """Rule for the model's calls of tools."""

    AUTO = enum.auto()
    NONE = enum.auto()
    REQUIRED = enum.auto()


class ToolChoice(NamedTuple):
    """Rule for the model's calls of tools, with the one tool that it must call, if any."""

    mode: ToolMode = ToolMode.AUTO
    tool: str = ""
    """Name of the one tool to call with REQUIRED; "" is any."""
    allowed: tuple[str, ...] = ()
    """Names of the tools that may be called; empty is all. The prompt describes the others too, so
    that requests share it."""


AUTOMATIC = ToolChoice()


class Thinking(NamedTuple):
    """Options of the reasoning before an answer; what is None is left to the template."""

    is_enabled: bool | None = None
    effort: str | None = None
    """Effort, of `thinking_form.EFFORTS` or as the model's template names it; "none" disables
    thinking."""
    budget: int | None = None
    """Most tokens of reasoning; None is unlimited."""
    is_adaptive: bool = False
    """True if the model decides whether to think, where its template can say so; with
    `is_enabled`."""


UP_TO_TEMPLATE = Thinking()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Input of a chat template, and options for parsing the answer."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = AUTOMATIC
    parallel_tool_calls: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """True if the answer continues the last message."""
    chat_template: str | None = None
    """Template of the client that replaces the model's."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further variables; they replace those of `thinking`."""
    thinking: Thinking = UP_TO_TEMPLATE
    parse_special_tokens: bool = False
    """True if control tokens are also recognised in the client's text, not only in the
    template's."""

    @property
    def offered_tools(self) -> Sequence[Tool]:
        """The tools that the prompt describes to the model."""
        return () if self.tool_choice.mode is ToolMode.NONE else self.tools

    @property
    def callable_tools(self) -> Sequence[Tool]:
        """The offered tools that the model may call."""
        allowed = frozenset(self.tool_choice.allowed)
        return [tool for tool in self.offered_tools if not allowed or tool.name in allowed]

    def opening_of(self, text: Text) -> str:
        """Returns the end of the rendered text that begins the answer: what the template wrote
        last, or the last message that the answer continues."""
        writers = writers_of(text)
        if self.continue_final_message:
            return plain(text[writers.rfind(CLIENT) + 1 :])
        return plain(text[len(writers.rstrip(TEMPLATE)) :])

    def variables(
        self,
        form: ContentForm,
        *,
        suffix: str = "",
        thinking: Mapping[str, Any] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """Returns the template's variables.

        Args:
            suffix: appended to the last message to find its end.
            thinking: variables for `thinking`, see `thinking_form`.
        """
        *others, last = self.messages
        messages = [message.variables(form) for message in others]
        messages.append(last.variables(form, suffix=suffix))
        return {
            "documents": None,
            **thinking,
            **self.template_kwargs,
            "messages": messages,
            "tools": [tool.variables() for tool in self.offered_tools] or None,
            "add_generation_prompt": self.add_generation_prompt,
        }

    def check(self) -> None:
        """Raises InvalidArgument for messages without content and for options that contradict
        each other."""
        if not self.messages:
            raise InvalidArgument("messages", [], "at least one message")
        for i, message in enumerate(self.messages):
            if not message.has_content:
                raise InvalidArgument(f"messages[{i}].content", None, "a text or at least one part")
        if self.continue_final_message and self.add_generation_prompt:
            allowed = "false beside continue_final_message"
            raise InvalidArgument("add_generation_prompt", True, allowed)
        if self.chat_template is not None and not self._has_template_of_legal_size():
            count = f"a template of {len(self.chat_template)} characters"
            raise InvalidArgument("chat_template", count, f"1 to {MAX_TEMPLATE_BYTES} bytes")
        for name in self.template_kwargs:
            if name in _OUR_VARIABLES or not name.isidentifier():
                allowed = "names of variables that are not set otherwise"
                raise InvalidArgument("chat_template_kwargs", name, allowed)
        self._check_tools()

    def _has_template_of_legal_size(self) -> bool:
        assert self.chat_template is not None
        return 1 <= len(self.chat_template.encode()) <= MAX_TEMPLATE_BYTES

    def _check_tools(self) -> None:
        check_counts(num_messages=len(self.messages), num_tools=len(self.tools))
        names = set[str]()
        for i, tool in enumerate(self.tools):
            if not _TOOL_NAME.fullmatch(tool.name) or tool.name in names:
                allowed = "1 to 128 of a-z, A-Z, 0-9, _, . and -, each name once"
                raise InvalidArgument(f"tools[{i}].name", tool.name, allowed)
            names.add(tool.name)
        choice = self.tool_choice
        if choice.tool and choice.tool not in names:
            raise InvalidArgument("tool_choice.tool", choice.tool, "the name of one of tools")
        for i, name in enumerate(choice.allowed):
            if name not in names:
                raise InvalidArgument(f"tool_choice.tools[{i}]", name, "the name of one of tools")
        if choice.mode is ToolMode.REQUIRED and not self.tools:
            raise InvalidArgument("tool_choice", choice.mode.name, "auto or none without tools")
