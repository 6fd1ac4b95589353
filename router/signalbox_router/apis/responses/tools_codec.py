"""Converts the tools of the Responses API, of which the model knows functions alone.

A custom tool is a function of one text, and a tool of a namespace a function with both names.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from signalbox_router.apis.openai.requests.errors import BadRequest, NotServed
from signalbox_router.apis.responses.tool_types import (
    Custom,
    Function,
    Namespace,
    OfferedTool,
    OtherTool,
    ToolChoiceObject,
    ToolFormat,
    ToolReference,
)
from signalbox_router.apis.responses.types import PromptBody
from signalbox_router.prompt.chat.conversation import (
    FreeText,
    Tool,
    ToolChoice,
    ToolMode,
    check_counts,
    custom_tool,
)

HOSTED = frozenset(
    ("apply_patch", "code_interpreter", "computer", "computer_use", "computer_use_preview",
     "file_search", "image_generation", "local_shell", "programmatic_tool_calling", "shell",
     "tool_search", "web_search", "web_search_2025_08_26", "web_search_preview",
     "web_search_preview_2025_03_11")
)  # fmt: skip
"""Types of tools that OpenAI's servers execute, or that its models were trained to write."""
_MCP = "mcp"
_MAX_JOINED_CHARS = 64
_HASH_CHARS = 8
_MODES = {"none": ToolMode.NONE, "auto": ToolMode.AUTO, "required": ToolMode.REQUIRED}


class Origin(NamedTuple):
    """A tool as its client names it."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


class Offered(NamedTuple):
    """The tools of a request."""

    tools: Sequence[Tool]
    origins: Mapping[str, Origin]
    """Each tool as the request has it, by the name that the model knows."""
    omitted: Sequence[str]
    """Types of tools that the model is not told of."""
    choice: ToolChoice


class _Placed(NamedTuple):
    place: str
    tool: Tool
    origin: Origin


def model_name(name: str, namespace: str | None) -> str:
    """Returns the name of a tool for the model: both names, and a hash of what is cut off."""
    if not namespace:
        return name
    joined = f"{namespace}{name}" if namespace.endswith("_") else f"{namespace}__{name}"
    if len(joined) <= _MAX_JOINED_CHARS:
        return joined
    digest = hashlib.sha256(joined.encode()).hexdigest()[:_HASH_CHARS]
    return f"{joined[: _MAX_JOINED_CHARS - _HASH_CHARS - 1]}_{digest}"


def offered_tools(body: PromptBody) -> Offered:
    """Returns the tools and the choice among them. Raises BadRequest, or NotServed for a hosted
    tool that the model must call."""
    tools = body.tools or []
    check_counts(num_messages=0, num_tools=len(tools))
    placed: list[_Placed] = []
    omitted: list[str] = []
    for i, tool in enumerate(tools):
        placed += _placed(tool, f"tools[{i}]", omitted)
    body.place_tools((one.place for one in placed), map(_schema_place, placed))
    found = [one.tool for one in placed]
    origins = {one.tool.name: one.origin for one in placed}
    return Offered(found, origins, list(dict.fromkeys(omitted)), _choice(body, origins, omitted))


def _schema_place(placed: _Placed) -> str:
    name = "format.definition" if placed.origin.is_custom else "parameters"
    return f"{placed.place}.{name}"


def _placed(tool: OfferedTool, place: str, omitted: list[str]) -> Iterator[_Placed]:
    if isinstance(tool, Namespace):
        for i, one in enumerate(tool.tools):
            where = f"{place}.tools[{i}]"
            if isinstance(one, OtherTool):
                _omit(one, where, omitted)
            else:
                yield _one(one, where, tool)
    elif isinstance(tool, OtherTool):
        _omit(tool, place, omitted)
    else:
        yield _one(tool, place, None)


def _one(tool: Function | Custom, place: str, namespace: Namespace | None) -> _Placed:
    of_namespace = (None, None) if namespace is None else (namespace.name, namespace.description)
    name = model_name(tool.name, of_namespace[0])
    description = "\n\n".join(filter(None, (of_namespace[1], tool.description)))
    origin = Origin(tool.name, of_namespace[0], isinstance(tool, Custom))
    if isinstance(tool, Function):
        made = Tool(name, description, tool.parameters, bool(tool.strict))
    else:
        made = custom_tool(name, description, _free_text(tool.format, f"{place}.format"))
    return _Placed(place, made, origin)


def _free_text(format_: ToolFormat | None, place: str) -> FreeText:
    if format_ is None or format_.type == "text":
        return FreeText()
    for name in ("syntax", "definition"):
        if getattr(format_, name) is None:
            raise BadRequest(f"{place}.{name}: a grammar needs it", f"{place}.{name}")
    return FreeText(format_.syntax or "", format_.definition or "")


def _omit(tool: OtherTool, place: str, omitted: list[str]) -> None:
    if tool.type == _MCP:
        raise NotServed(f"{place}: MCP servers are not called from here", f"{place}.type")
    if tool.type not in HOSTED:
        allowed = "function, custom and namespace are served"
        raise BadRequest(f"{place}.type: {allowed}, and not {tool.type!r}", f"{place}.type")
    omitted.append(tool.type)


def _choice(body: PromptBody, origins: Mapping[str, Origin], omitted: Sequence[str]) -> ToolChoice:
    choice = body.tool_choice
    if choice is None:
        return ToolChoice()
    if isinstance(choice, ToolChoiceObject):
        return _chosen(choice, origins)
    if choice == "required" and not origins:
        named = f" but {', '.join(omitted)}, which are not served" if omitted else ""
        raise BadRequest(f"tool_choice: there are no tools{named}", "tool_choice")
    return ToolChoice(_MODES[choice])


def _chosen(choice: ToolChoiceObject, origins: Mapping[str, Origin]) -> ToolChoice:
    if choice.type != "allowed_tools":
        return ToolChoice(ToolMode.REQUIRED, _called(choice, "tool_choice", origins))
    if choice.mode is None or choice.tools is None:
        raise BadRequest("tool_choice: allowed_tools needs mode and tools", "tool_choice")
    allowed: list[str] = []
    for i, tool in enumerate(choice.tools):
        if tool.type == "namespace":
            allowed += [key for key, one in origins.items() if one.namespace == tool.name]
        elif tool.type not in HOSTED:
            allowed.append(_called(tool, f"tool_choice.tools[{i}]", origins))
    if not allowed and choice.mode == "required":
        raise BadRequest("tool_choice.tools: none of them is served", "tool_choice.tools")
    return ToolChoice(_MODES[choice.mode if allowed else "none"], allowed=tuple(allowed))


def _called(tool: ToolReference, place: str, origins: Mapping[str, Origin]) -> str:
    """Returns the name that the model knows a tool by. Raises NotServed for a hosted one."""
    if tool.type in (*HOSTED, _MCP):
        raise NotServed(f"{place}.type: {tool.type} is not served", f"{place}.type")
    if tool.type not in ("function", "custom"):
        allowed = "function, custom and allowed_tools are served"
        raise BadRequest(f"{place}.type: {allowed}, and not {tool.type!r}", f"{place}.type")
    name = model_name(tool.name or "", tool.namespace)
    if name not in origins or origins[name].is_custom is not (tool.type == "custom"):
        raise BadRequest(f"{place}.name: no {tool.type} tool has this name", f"{place}.name")
    return name
