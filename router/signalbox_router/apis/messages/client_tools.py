"""Tools that clients execute and whose schemas the Messages API defines, not the request.

Claude knows them by heart; other models are told. The names of arguments are the API's.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

Schema = Mapping[str, Any]


class Known(NamedTuple):
    """A tool as the model is told of it."""

    description: str
    parameters: Schema


def _schema(required: tuple[str, ...], **properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _line(description: str) -> Schema:
    return {"type": "integer", "description": description}


def _command(*commands: str) -> Schema:
    return {"type": "string", "enum": list(commands), "description": "What to do"}


_RANGE: Schema = {
    "type": "array",
    "items": {"type": "integer"},
    "minItems": 2,
    "maxItems": 2,
    "description": "view: first and last line to show, counted from 1; -1 is the file's last",
}
_EDITED: Mapping[str, Schema] = {
    "path": _text("Path of the file or folder"),
    "file_text": _text("create: content of the new file"),
    "old_str": _text("str_replace: text that occurs exactly once in the file"),
    "new_str": _text("str_replace: text that replaces it"),
    "insert_line": _line("insert: number of the line after which the text goes; 0 is the start"),
    "insert_text": _text("insert: the text"),
    "view_range": _RANGE,
}
_OLDER = {name: schema for name, schema in _EDITED.items() if name != "insert_text"} | {
    "new_str": _text("str_replace: text that replaces it; insert: the text"),
}
_EDITOR = "Shows, creates and changes text files."

CLIENT_TOOLS: Mapping[str, Known] = {
    "bash": Known(
        "Runs commands in one shell session, which keeps its state.",
        _schema(
            (),
            command=_text("The command to run; needed unless restart is true"),
            restart={"type": "boolean", "description": "True starts the session again"},
        ),
    ),
    "text_editor": Known(
        _EDITOR,
        _schema(
            ("command", "path"),
            command=_command("view", "create", "str_replace", "insert"),
            **_EDITED,
        ),
    ),
    "memory": Known(
        "Keeps notes between conversations, as files below /memories.",
        _schema(
            ("command",),
            command=_command("view", "create", "str_replace", "insert", "delete", "rename"),
            **_EDITED,
            old_path=_text("rename: present path"),
            new_path=_text("rename: new path"),
        ),
    ),
}
"""Tools by their type without its version's date."""
_UNDOING = Known(
    _EDITOR,
    _schema(
        ("command", "path"),
        command=_command("view", "create", "str_replace", "insert", "undo_edit"),
        **_OLDER,
    ),
)
_OLDER_TYPES = ("text_editor_20241022", "text_editor_20250124")


def known_tool(kind: str, family: str) -> Known:
    """Returns the tool of a type, whose family is one of CLIENT_TOOLS."""
    return _UNDOING if kind in _OLDER_TYPES else CLIENT_TOOLS[family]
