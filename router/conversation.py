"""A conversation as it is rendered: turns, the tools on offer, and how the last turn is left.

`variables` of each part are what chat templates expect, as Hugging Face defines it.
"""

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from router.template_facts import ContentForm
from rpc.errors import InvalidArgument

MAX_TOOLS = 128
MAX_TEMPLATE_BYTES = 64 << 10
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}", re.ASCII)
_OUR_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt"})


class ToolCall(NamedTuple):
    """A call that the model has made in an earlier turn."""

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
    """A text, or those of several parts."""
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str = ""
    name: str = ""
    reasoning: str = ""
    """Reasoning of an assistant message, which precedes its text."""

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.content,) if isinstance(self.content, str) else self.content

    @property
    def text(self) -> str:
        """The parts, joined as vLLM and llama.cpp join them."""
        return "\n".join(self.parts)

    def variables(self, form: ContentForm, *, suffix: str = "") -> dict[str, Any]:
        """Leaves out what is empty: templates ask whether it is defined.

        Args:
            suffix: is appended to the text.
        """
        *others, last = self.parts or ("",)
        content: str | list[dict[str, str]] = "\n".join([*others, last + suffix])
        if form is ContentForm.LIST or (form is ContentForm.PARTS and others):
            content = [{"type": "text", "text": text} for text in (*others, last + suffix)]
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


class Tool(NamedTuple):
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    """JSON Schema; None takes no arguments."""

    def variables(self) -> dict[str, Any]:
        """Leaves out what the client has not given, as transformers does."""
        function: dict[str, Any] = {"name": self.name}
        if self.description:
            function["description"] = self.description
        if self.parameters is not None:
            function["parameters"] = self.parameters
        return {"type": "function", "function": function}


class ToolMode(enum.Enum):
    """Whether the model calls tools."""

    AUTO = enum.auto()
    NONE = enum.auto()
    REQUIRED = enum.auto()


class ToolChoice(NamedTuple):
    """Whether the model calls tools, and which."""

    mode: ToolMode = ToolMode.AUTO
    tool: str = ""
    """With REQUIRED: the one that it calls, if not any."""


AUTOMATIC = ToolChoice()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a chat template is given, and how its answer is read."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = AUTOMATIC
    parallel_tool_calls: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """The last message is left open."""
    chat_template: str | None = None
    """The client's own, instead of the model's."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def offered_tools(self) -> Sequence[Tool]:
        """What the model sees."""
        return () if self.tool_choice.mode is ToolMode.NONE else self.tools

    def variables(self, form: ContentForm, *, suffix: str = "") -> dict[str, Any]:
        """`suffix` is appended to the last message, so that its end can be found."""
        *others, last = self.messages
        messages = [message.variables(form) for message in others]
        messages.append(last.variables(form, suffix=suffix))
        return {
            "documents": None,
            **self.template_kwargs,
            "messages": messages,
            "tools": [tool.variables() for tool in self.offered_tools] or None,
            "add_generation_prompt": self.add_generation_prompt,
        }

    def check(self) -> None:
        """Raises InvalidArgument for what does not fit together."""
        if not self.messages:
            raise InvalidArgument("messages", [], "at least one message")
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
        if len(self.tools) > MAX_TOOLS:
            raise InvalidArgument("tools", f"a list of {len(self.tools)}", f"at most {MAX_TOOLS}")
        names = [tool.name for tool in self.tools]
        for i, name in enumerate(names):
            if not _TOOL_NAME.fullmatch(name) or name in names[:i]:
                allowed = "1 to 64 of a-z, A-Z, 0-9, _, . and -, each name once"
                raise InvalidArgument(f"tools[{i}].name", name, allowed)
        choice = self.tool_choice
        if choice.tool and choice.tool not in names:
            raise InvalidArgument("tool_choice.tool", choice.tool, "the name of one of tools")
        if choice.mode is ToolMode.REQUIRED and not self.tools:
            raise InvalidArgument("tool_choice", choice.mode.name, "auto or none without tools")
