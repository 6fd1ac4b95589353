"""Makes flags from the fields of an options class: `--max-model-len N`, `--[no-]enforce-eager`."""

import argparse
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any, Protocol, TypeVar, get_args, get_type_hints

from signalbox.llm.vllm_options import ANY, VllmOptions

_ARGUMENT = re.compile(r"^ {4}([a-z][\w, ]*): (.*(?:\n {8}.*)*)", re.MULTILINE)
"""Matches the arguments of a docstring, with names and text."""


class Flags(Protocol):
    """An `argparse.ArgumentParser`, or a group of one."""

    add_argument: Callable[..., argparse.Action]


F = TypeVar("F", bound=Flags)


def add_flags(options: type[VllmOptions], parser: F) -> F:
    """Adds a flag for each field of a dataclass, with its default; returns the parser."""
    from signalbox.settings.vllm_flags import SHORT_FLAGS  # loads pydantic, for programs that parse

    hints, helps = get_type_hints(options), _helps(options)
    for one in fields(options):
        default = None if one.default is MISSING else one.default
        names = [short for short, name in SHORT_FLAGS.items() if name == one.name]
        names.append("--" + one.name.replace("_", "-"))
        kind = _kind(one, hints[one.name])
        if kind is bool:
            given: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
        else:
            given = {"type": kind, "metavar": one.name.rpartition("_")[2].upper()}
        if one.metadata.keys() & {"taken", "earlier"}:
            given["help"] = argparse.SUPPRESS
        else:
            given["help"] = (helps.get(one.name) or one.metadata["help"]).replace("%", "%%")
        parser.add_argument(*names, dest=one.name, default=default, **given)
    return parser


def options_of(options: type[VllmOptions], args: argparse.Namespace) -> dict[str, Any]:
    """Returns the values in a namespace that belong to fields of a dataclass."""
    names = [one.name for one in fields(options)]
    return {name: getattr(args, name) for name in names if hasattr(args, name)}


def _helps(options: type[VllmOptions]) -> dict[str, str]:
    """Returns the text about each field in the "Args:" of a class and its bases, in one line."""
    helps: dict[str, str] = {}
    for base in reversed(options.__mro__):
        _, _, args = inspect.cleandoc(base.__doc__ or "").partition("Args:\n")
        for names, text in _ARGUMENT.findall(args):
            helps |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return helps


def _kind(one: Field[Any], hint: Any) -> Callable[[str], Any]:
    """Returns the function that converts a flag's text to a value."""
    if "taken" in one.metadata:
        values = [
            value for value in one.metadata["taken"] if value is not None and value is not ANY
        ]
        is_data = any(isinstance(value, dict | list) for value in values)
        return json.loads if is_data else type(values[0]) if values else str
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    first = kinds[0]
    if first in (bool, float):
        return first  # type: ignore[no-any-return]
    if first is int:
        from signalbox_rpc.settings.quantities import whole_number

        return whole_number
    return str if first in (str, object) else json.loads
