"""Tools of a Responses body, and the choice among them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Tag

from signalbox_router.apis.openai.requests import foreign_fields
from signalbox_router.apis.openai.requests.foreign_fields import OPENAI, Foreign
from signalbox_router.apis.openai.requests.types import Body, Items, Json

OF_TOOLS: foreign_fields.Table = {
    "defer_loading": Foreign(OPENAI, False, foreign_fields.IGNORED),
    "async": Foreign(OPENAI, False),
    "output_schema": Foreign(OPENAI, None, foreign_fields.IGNORED),
    "allowed_callers": Foreign(OPENAI, None, nothing=(["direct"], ["direct", "programmatic"])),
}


class _OwnTool(Body):
    FOREIGN = OF_TOOLS

    name: str
    """Name of the tool: letters, digits, underscores and hyphens."""
    description: str | None = None
    """Description of the tool, which the model sees."""


class Function(_OwnTool):
    """A function that the model may call."""

    type: Literal["function"]
    """`function`."""
    parameters: Json | None = None
    """JSON schema of the arguments."""
    strict: bool | None = None
    """True if calls conform to the schema whenever the model calls. Default false."""


class ToolFormat(Body):
    """Format of a custom tool's input."""

    IS_CLOSED = True

    type: Literal["text", "grammar"]
    """`text`: any text; `grammar`: as the definition says."""
    syntax: Literal["regex", "lark"] | None = None
    """Syntax of the definition."""
    definition: str | None = None
    """The grammar."""


class Custom(_OwnTool):
    """A tool whose input is a text."""

    type: Literal["custom"]
    """`custom`."""
    format: ToolFormat | None = None
    """Format of the input. Default: any text."""


class OtherTool(Body):
    """A tool that OpenAI's servers execute. It is left out with its options and named in the
    answer, or refused if the model must call it."""

    model_config = ConfigDict(extra="ignore")

    type: str
    """Type of the tool."""


def _tag_of(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, Mapping) else getattr(tool, "type", None)
    return kind if kind in ("function", "custom", "namespace") else "other"


_InNamespace = Annotated[
    Annotated[Function, Tag("function")]
    | Annotated[Custom, Tag("custom")]
    | Annotated[OtherTool, Tag("other")],
    Discriminator(_tag_of),
]


class Namespace(Body):
    """Tools under a common name."""

    type: Literal["namespace"]
    """`namespace`."""
    name: str
    """Name of the namespace."""
    description: str | None = None
    """Description, which the model sees with each tool."""
    tools: Items[_InNamespace]
    """The tools: functions and custom tools."""


OfferedTool = Annotated[
    Annotated[Function, Tag("function")]
    | Annotated[Custom, Tag("custom")]
    | Annotated[Namespace, Tag("namespace")]
    | Annotated[OtherTool, Tag("other")],
    Discriminator(_tag_of),
]


class ToolReference(Body):
    """A tool, by its name."""

    type: str
    """`function`, `custom` or `namespace`; a hosted tool is not called."""
    name: str | None = None
    """Name of the tool."""
    namespace: str | None = None
    """Namespace of the tool, if it has one."""
    server_label: str | None = None
    """Label of an MCP server, which is not called."""


class ToolChoiceObject(ToolReference):
    """The tool that the model must call, or the tools that it may call."""

    IS_CLOSED = True

    type: str
    """`function` or `custom`: the tool that must be called; `allowed_tools`: those that may."""
    mode: Literal["auto", "required"] | None = None
    """Says of allowed_tools whether one of them must be called."""
    tools: Items[ToolReference] | None = None
    """The tools of allowed_tools."""
