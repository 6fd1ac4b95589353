"""The chat template of a model that has several, by name or in several files.

As in transformers, files of templates count, and tokenizer_config.json where there are none; a
template "tool_use" is for conversations with tools, "default" for the others.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from signalbox_worker.config import ModelError

_FILE, _FOLDER = "chat_template.jinja", "additional_chat_templates"
_DEFAULT, _WITH_TOOLS = "default", "tool_use"
_PLAIN = "{{ '' }}"
"""Keeps a line from being trimmed at the tag of a block beside it."""


def templates_of_files(path: Path) -> dict[str, str]:
    """Returns the templates of a directory's files by name. Raises ModelError."""
    files = {_DEFAULT: path / _FILE} if (path / _FILE).is_file() else {}
    files |= {file.stem: file for file in sorted((path / _FOLDER).glob("*.jinja"))}
    try:
        return {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    except (OSError, UnicodeError) as error:
        raise ModelError(f"{path} has a chat template that cannot be read ({error})") from None


def one_template(templates: Any) -> str | None:
    """Returns what does the work of templates by name; None if no conversation has one.

    Raises KeyError or TypeError if they are not sound.

    Args:
        templates: one, a mapping, or a list of names and templates as tokenizer_config.json has.
    """
    if templates is None or isinstance(templates, str):
        return templates
    if isinstance(templates, list):
        templates = {entry["name"]: entry["template"] for entry in templates}
    if not isinstance(templates, Mapping):
        raise TypeError(f"{str(templates)[:40]} is no chat template")
    default, with_tools = templates.get(_DEFAULT), templates.get(_WITH_TOOLS)
    if default is None or with_tools is None:
        return default
    parts = [f"{_PLAIN}{one.removesuffix(chr(10))}{_PLAIN}" for one in (with_tools, default)]
    return "{% if tools %}" + "{% else %}".join(parts) + "{% endif %}"
