"""Converts conversations of the Messages API to plain data.

Blocks of one message become several: results of tools are messages of their own in chat templates.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from signalbox_router.apis.agents import ReadConversation, decode_reasoning
from signalbox_router.apis.messages.client_tools import CLIENT_TOOLS, known_tool
from signalbox_router.apis.messages.types import (
    ClientTool,
    CustomTool,
    MessageParam,
    MessagesPromptBody,
    OutputFormat,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    family_of,
)
from signalbox_router.apis.openai.requests.errors import BadRequest, NotServed
from signalbox_router.apis.openai.requests.field_setters import UINT32_MAX
from signalbox_router.prompt.chat.conversation import (
    AUTOMATIC,
    UP_TO_TEMPLATE,
    Conversation,
    Message,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolMode,
    check_counts,
    check_num_parts,
)

HOSTED = (
    "web_search", "web_fetch", "code_execution", "tool_search_tool_bm25", "tool_search_tool_regex",
    "advisor", "computer", "computer_toolset", "browser_toolset",
)  # fmt: skip
"""Types of tools that the API's own servers execute, or whose results are images, without dates."""
BILLING_LINE = "x-anthropic-billing-header:"
"""Beginning of the line that is left out of a system prompt, at the start of one of its texts."""
_MCP = "mcp_toolset"
_MODES = {
    "auto": ToolMode.AUTO,
    "any": ToolMode.REQUIRED,
    "tool": ToolMode.REQUIRED,
    "none": ToolMode.NONE,
}


def read_conversation(body: MessagesPromptBody) -> ReadConversation:
    """Returns the conversation, unchecked. Raises BadRequest or InvalidArgument.

    It empties the body's list of messages: otherwise the objects would live until the request ends.
    """
    check_counts(num_messages=len(body.messages), num_tools=len(body.tools or ()))
    asked_format(body)
    dropped: list[dict[str, str]] = []
    places: list[int] = []
    messages = _joined(_messages(body, dropped, places), places)
    tools, omitted = _tools(body)
    continues = bool(body.messages) and body.messages[-1].role == "assistant"
    if continues and messages[-1].tool_calls:
        raise BadRequest(
            "messages: the last one has a tool_use block without its tool_result", "messages"
        )
    body.messages = []
    conversation = Conversation(
        messages=messages,
        tools=tools,
        tool_choice=_tool_choice(body, tools),
        parallel_tool_calls=not (body.tool_choice and body.tool_choice.disable_parallel_tool_use),
        add_generation_prompt=not continues,
        continue_final_message=continues,
        thinking=_thinking(body),
    )
    return ReadConversation(
        conversation=conversation,
        omitted=omitted,
        input_transformations=dropped,
        places=places,
    )


def asked_format(body: MessagesPromptBody) -> OutputFormat | None:
    """Returns the format of the text under either of its names. Raises BadRequest for both."""
    asked = body.output_config.format if body.output_config else None
    if asked is not None and body.output_format is not None:
        raise BadRequest("output_format: output_config.format is set, too", "output_format")
    return asked or body.output_format


def _messages(
    body: MessagesPromptBody, dropped: list[dict[str, str]], places: list[int]
) -> Iterator[Message]:
    """Yields the messages, after it has added the place of each: -1 is the system prompt."""
    if texts := _system(body.system):
        places.append(-1)
        yield Message("system", texts)
    last_user = max((i for i, one in enumerate(body.messages) if one.role == "user"), default=-1)
    for i, message in enumerate(body.messages):
        if isinstance(message.content, list):
            check_num_parts(len(message.content), field=f"messages[{i}].content")
        elif message.clear_at is None:
            places.append(i)
            yield Message(message.role, (message.content,))
            continue
        if message.clear_at is not None and message.role != "system":
            raise BadRequest(
                f"messages[{i}].clear_at: a message of the {message.role} stays", "messages"
            )
        if message.clear_at != "next_user_message" or last_user < i:
            for one in _of_blocks(i, message, dropped):
                places.append(i)
                yield one


def _system(content: str | list[TextBlock] | None) -> tuple[str, ...]:
    """Returns the texts of a system prompt.

    Claude Code writes a line there for the API's own servers that differs in each request, so that
    no prefix could be found behind it. It is left out.
    """
    texts = _texts(content or ())
    if not any(text.startswith(BILLING_LINE) for text in texts):
        return texts
    kept = (text.partition("\n")[2] if text.startswith(BILLING_LINE) else text for text in texts)
    return tuple(text for text in kept if text)


def _of_blocks(i: int, message: MessageParam, dropped: list[dict[str, str]]) -> Iterator[Message]:
    """Yields the messages that a message's blocks stand for, in their order."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    blocks = [message.content] if isinstance(message.content, str) else message.content
    for j, block in enumerate(blocks):
        match block:
            case str():
                texts.append(block)
            case TextBlock():
                texts.append(block.text)
            case ToolUseBlock() if message.role == "assistant":
                calls.append(ToolCall(block.id, block.name, block.input))
            case ThinkingBlock() | RedactedThinkingBlock() if message.role == "assistant":
                thought = decode_reasoning(_sealed(block))
                if thought is None:
                    dropped.append(_dropped(f"messages.{i}.content.{j}"))
                else:
                    thoughts.append(thought)
            case ToolResultBlock() if message.role == "user":  # before any text beside it
                yield Message("tool", _result(block), tool_call_id=block.tool_use_id)
            case _:
                place = f"messages[{i}].content[{j}]"
                raise BadRequest(f"{place}: no message of the {message.role} has it", place)
    if texts or message.role == "assistant":
        reasoning = "\n".join(thoughts)
        yield Message(message.role, tuple(texts), tool_calls=tuple(calls), reasoning=reasoning)
    elif not blocks:
        place = f"messages[{i}].content"
        raise BadRequest(f"{place}: it is empty", place)


def _dropped(path: str) -> dict[str, str]:
    """Returns the entry for a block of reasoning, with the API's reason for one that the model may
    not read."""
    return {"type": "thinking_dropped", "path": path, "reason": "model_binding_mismatch"}


def _sealed(block: ThinkingBlock | RedactedThinkingBlock) -> str:
    return block.signature if isinstance(block, ThinkingBlock) else block.data


def _result(block: ToolResultBlock) -> tuple[str, ...]:
    texts = _texts(block.content or "")
    return ("Error:", *texts) if block.is_error else texts


def _texts(content: str | Iterable[TextBlock]) -> tuple[str, ...]:
    return (content,) if isinstance(content, str) else tuple(block.text for block in content)


def _joined(messages: Iterable[Message], places: list[int]) -> list[Message]:
    """Returns the messages with neighbours of one author as one turn, as the API has it; its place
    is that of the first."""
    turns: list[list[Message]] = []
    for message in messages:
        if turns and message.role == turns[-1][0].role and message.role in ("user", "assistant"):
            turns[-1].append(message)
            places.pop()
        else:
            turns.append([message])
    return [_turn(one) for one in turns]


def _turn(messages: Sequence[Message]) -> Message:
    first, *others = messages
    if not others:
        return first
    return first._replace(
        content=tuple(part for one in messages for part in one.parts),
        tool_calls=tuple(call for one in messages for call in one.tool_calls),
        reasoning="\n".join(one.reasoning for one in messages if one.reasoning),
    )


def _tools(body: MessagesPromptBody) -> tuple[list[Tool], list[str]]:
    """Returns the tools that the model is told of; and the types of those that are hosted, and the
    names of those that only hosted code may call."""
    tools, omitted, places = [], [], []
    for i, tool in enumerate(body.tools or ()):
        if isinstance(tool, dict):
            omitted.append(_hosted(i, tool, body))
        elif tool.allowed_callers and "direct" not in tool.allowed_callers:
            omitted.append(tool.name)
        else:
            tools.append(_tool(tool))
            places.append(f"tools[{i}]")
    body.place_tools(places, (f"{place}.input_schema" for place in places))
    return tools, omitted


def _hosted(position: int, tool: dict[str, Any], body: MessagesPromptBody) -> str:
    """Returns the type of a tool that is left out. Raises NotServed if it must not be, and
    BadRequest if there is no such type."""
    kind, name = str(tool["type"]), tool.get("name")
    family, field = family_of(kind), f"tools[{position}]"
    if family == _MCP:
        raise NotServed(f"{field}: {_MCP} is not served, as no MCP servers are", field)
    if family not in HOSTED:
        served = ", ".join(("custom", *CLIENT_TOOLS))
        raise BadRequest(f"{field}.type: {served} are served, and not {kind[:100]!r}", field)
    chosen = body.tool_choice.name if body.tool_choice is not None else None
    if chosen is not None and chosen in (name, kind, family):
        raise NotServed(f"tool_choice.name: {kind} is not served", "tool_choice.name")
    return kind


def _tool(tool: CustomTool | ClientTool) -> Tool:
    if isinstance(tool, CustomTool):
        description, schema = tool.description or "", tool.input_schema
    else:
        description, parameters = known_tool(tool.type, family_of(tool.type))
        schema = dict(parameters)
    if tool.input_examples:
        schema = {**schema, "examples": tool.input_examples}
    return Tool(tool.name, description, schema, strict=bool(tool.strict))


def _tool_choice(body: MessagesPromptBody, tools: Sequence[Tool]) -> ToolChoice:
    choice = body.tool_choice
    if choice is None:
        return AUTOMATIC
    if (choice.type == "tool") is (choice.name is None):
        raise BadRequest("tool_choice.name: it is for the type tool alone", "tool_choice.name")
    mode = _MODES[choice.type]
    if mode is ToolMode.REQUIRED and not tools:
        raise BadRequest("tool_choice: there are no tools that can be called", "tool_choice")
    return ToolChoice(mode, choice.name or "")


def _thinking(body: MessagesPromptBody) -> Thinking:
    effort = body.output_config.effort if body.output_config else None
    thinking = body.thinking
    if thinking is None:
        return UP_TO_TEMPLATE if effort is None else Thinking(effort=effort)
    budget, field = thinking.budget_tokens, "thinking.budget_tokens"
    if (thinking.type == "enabled") is (budget is None):
        raise BadRequest(f"{field}: it is for the type enabled alone, which needs it", field)
    if budget is not None and budget < 1:
        raise BadRequest(f"{field}: allowed: at least 1; given: {budget}", field)
    most = None if budget is None else min(budget, UINT32_MAX)
    is_adaptive = thinking.type == "adaptive"
    return Thinking(thinking.type != "disabled", effort, most, is_adaptive)
