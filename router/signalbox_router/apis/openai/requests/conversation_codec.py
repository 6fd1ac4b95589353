"""Converts OpenAI's conversations, messages and tools to those of inference.v1."""

import json
from dataclasses import replace
from typing import Any

from google.protobuf import json_format, struct_pb2

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.apis.inference import chat_codec
from signalbox_router.apis.openai.requests.chat_types import (
    AllowedToolChoice,
    ChatBody,
    ChatCustomTool,
    ChatMessage,
    ChatToolFormat,
    ConversationBody,
    CustomToolCall,
    FunctionTool,
    FunctionToolCall,
    NamedCustomToolChoice,
    NamedToolChoice,
)
from signalbox_router.apis.openai.requests.errors import BadRequest
from signalbox_router.apis.openai.requests.field_setters import set_field
from signalbox_router.prompt.chat.conversation import (
    INPUT,
    Conversation,
    FreeText,
    check_counts,
    check_num_parts,
    custom_tool,
)

_ROLES = {
    "system": pb.CHAT_ROLE_SYSTEM,
    "developer": pb.CHAT_ROLE_SYSTEM,
    "user": pb.CHAT_ROLE_USER,
    "assistant": pb.CHAT_ROLE_ASSISTANT,
    "tool": pb.CHAT_ROLE_TOOL,
}
_MODES = {
    "auto": pb.TOOL_CHOICE_MODE_AUTO,
    "none": pb.TOOL_CHOICE_MODE_NONE,
    "required": pb.TOOL_CHOICE_MODE_REQUIRED,
}


def conversation_of(body: ConversationBody) -> Conversation:
    """Returns the conversation to render, for a client that only asks for its tokens."""
    conversation = with_custom_tools(chat_codec.conversation(chat_request(body)), body)
    conversation.check()
    return conversation


def chat_request(body: ConversationBody) -> pb.ChatRequest:
    """Returns the conversation and its rendering options; options of the answer are not set yet.

    It empties the body's list of messages: otherwise the objects would live until the request ends,
    and slow down the garbage collector.
    """
    check_counts(num_messages=len(body.messages or ()), num_tools=len(body.tools or ()))
    request = pb.ChatRequest(
        messages=[_message(i, message) for i, message in enumerate(body.messages or ())],
        tools=[_tool(tool) for tool in body.tools or ()],
    )
    if body.messages:
        body.messages = []
    for name in (
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "parse_special_tokens",
    ):
        set_field(request, name, getattr(body, name))
    if body.add_generation_prompt and not body.continue_final_message:
        request.ClearField("continue_final_message")
    _set_thinking(request.thinking, body)
    for name, value in (body.chat_template_kwargs or {}).items():
        request.chat_template_kwargs[name].CopyFrom(_value(value))
    return request


def _set_thinking(thinking: pb.Thinking, body: ConversationBody) -> None:
    """Sets what fields of their own say of the thinking; variables of the template that say
    something else are refused."""
    kwargs = dict(body.chat_template_kwargs or {})
    given = [
        ("reasoning_effort", "reasoning_effort", body.reasoning_effort),
        ("enable_thinking", "enable_thinking", body.enable_thinking),
    ]
    if body.reasoning is not None:
        given.append(("reasoning.effort", "reasoning_effort", body.reasoning.effort))
    for param, name, value in given:
        if value is not None and kwargs.setdefault(name, value) != value:
            raise BadRequest(f"{param}: the template's {name} has another value", param)
    set_field(thinking, "is_enabled", body.enable_thinking)
    efforts = (body.reasoning_effort, body.reasoning and body.reasoning.effort)
    set_field(thinking, "effort", next((one for one in efforts if one is not None), None))


def set_tool_choice(request: pb.ChatRequest, body: ChatBody) -> None:
    choice = body.tool_choice
    if choice is not None and body.tools:
        match choice:
            case AllowedToolChoice():
                request.tool_choice.mode = _MODES[choice.allowed_tools.mode]
            case str():
                request.tool_choice.mode = _MODES[choice]
            case _:
                request.tool_choice.tool = _named(choice, "tool_choice", body)
    elif choice not in (None, "none", "auto"):
        raise BadRequest("tool_choice: there are no tools", "tool_choice")
    set_field(request, "parallel_tool_calls", body.parallel_tool_calls)


def set_budget(request: pb.ChatRequest, body: ChatBody) -> None:
    budget, param = body.thinking_token_budget, "thinking_token_budget"
    if budget is not None:
        set_field(request.thinking, "budget", budget, param=param)


def _message(position: int, message: ChatMessage) -> pb.ChatMessage:
    content = message.content
    if isinstance(content, list):
        check_num_parts(len(content), field=f"messages[{position}].content")
    if content is None:
        texts = []
    else:
        texts = [content] if isinstance(content, str) else [part.text for part in content]
    return pb.ChatMessage(
        role=_ROLES[message.role],
        content=[pb.ContentPart(text=text) for text in texts],
        tool_calls=[_tool_call(call) for call in message.tool_calls or ()],
        tool_call_id=message.tool_call_id or "",
        reasoning=message.reasoning or message.reasoning_content or "",
        name=message.name or "",
    )


def _tool_call(call: FunctionToolCall | CustomToolCall) -> pb.ToolCall:
    if isinstance(call, CustomToolCall):
        arguments = json.dumps({INPUT: call.custom.input})
        return pb.ToolCall(id=call.id, name=call.custom.name, arguments=arguments)
    return pb.ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)


def _tool(tool: FunctionTool | ChatCustomTool) -> pb.Tool:
    if isinstance(tool, ChatCustomTool):  # `with_custom_tools` adds the rest
        return pb.Tool(name=tool.custom.name)
    function = tool.function
    return pb.Tool(
        name=function.name,
        description=function.description or "",
        parameters="" if function.parameters is None else json.dumps(function.parameters),
        strict=bool(function.strict),
    )


def _named(choice: NamedToolChoice | NamedCustomToolChoice, place: str, body: ChatBody) -> str:
    """Returns the name of a tool. Raises BadRequest if there is none of that kind and name."""
    kind, name = wanted = _kind_and_name(choice)
    if not any(_kind_and_name(tool) == wanted for tool in body.tools or ()):
        field = f"{place}.{kind}.name"
        raise BadRequest(f"{field}: no {kind} in tools has this name", field)
    return name


def _kind_and_name(
    tool: FunctionTool | ChatCustomTool | NamedToolChoice | NamedCustomToolChoice,
) -> tuple[str, str]:
    if isinstance(tool, ChatCustomTool | NamedCustomToolChoice):
        return tool.type, tool.custom.name
    return tool.type, tool.function.name


def with_allowed_tools(conversation: Conversation, body: ChatBody) -> Conversation:
    """Returns the conversation with the tools that may be called, for which inference.v1 has no
    field."""
    choice = body.tool_choice
    if not isinstance(choice, AllowedToolChoice):
        return conversation
    place = "tool_choice.allowed_tools.tools"
    allowed = tuple(
        _named(one, f"{place}[{i}]", body) for i, one in enumerate(choice.allowed_tools.tools)
    )
    if not allowed:
        raise BadRequest(f"{place}: it is empty", place)
    return replace(conversation, tool_choice=conversation.tool_choice._replace(allowed=allowed))


def with_custom_tools(conversation: Conversation, body: ConversationBody) -> Conversation:
    """Returns the conversation with the custom tools, which inference.v1 does not have."""
    custom = body.custom_tools
    if not custom:
        return conversation
    tools = [*conversation.tools]
    for i, tool in custom.items():
        asked = tool.custom
        free_text = _free_text(asked.format, f"tools[{i}].custom.format")
        tools[i] = custom_tool(asked.name, asked.description or "", free_text)
    return replace(conversation, tools=tools)


def _free_text(format_: ChatToolFormat | None, place: str) -> FreeText:
    if format_ is None or format_.type == "text":
        return FreeText()
    if format_.grammar is None:
        raise BadRequest(f"{place}.grammar: Field required", f"{place}.grammar")
    return FreeText(format_.grammar.syntax, format_.grammar.definition)


def _value(value: Any) -> struct_pb2.Value:
    try:
        return json_format.ParseDict(value, struct_pb2.Value())
    except (json_format.ParseError, RecursionError, OverflowError) as error:
        raise BadRequest(f"chat_template_kwargs: {error}", "chat_template_kwargs") from None
