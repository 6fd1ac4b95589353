"""Command-line flags made from settings, and settings turned back into flags."""

import argparse
from typing import Any, get_args

from pydantic.fields import FieldInfo

from signalbox.environment import ENV_PREFIX
from signalbox.settings import CONFIG_FILE, Settings, flag_name

POSITIONAL = "model"
PORT = "port"
"""Of a command with two APIs; see `signalbox.settings.ports`."""


def add_flags(parser: argparse.ArgumentParser, settings_class: type[Settings]) -> None:
    """Adds a flag for each field; only flags that are given end up in the namespace."""
    parser.add_argument(
        flag_name(CONFIG_FILE),
        metavar="FILE",
        default=argparse.SUPPRESS,
        help=f"YAML file with the settings below (env {ENV_PREFIX}CONFIG)",
    )
    for name, field in settings_class.model_fields.items():
        if name == POSITIONAL:
            parser.add_argument(
                name, metavar="MODEL", nargs="?", default=argparse.SUPPRESS, help=_help(name, field)
            )
        else:
            parser.add_argument(flag_name(name), **_options(name, field))
    if "grpc_port" in settings_class.model_fields:
        parser.add_argument(
            flag_name(PORT),
            metavar="N",
            default=argparse.SUPPRESS,
            help="the HTTP API's port, as in vLLM: --http-port",
        )


def to_flags(settings: Settings, settings_class: type[Settings], **replaced: Any) -> list[str]:
    """Returns the arguments that make another command's settings equal to these.

    Args:
        settings_class: of the other command; fields that it lacks are left out.
        replaced: fields whose values differ from `settings`.
    """
    flags, model = [], None
    for name, field in settings_class.model_fields.items():
        value = replaced.get(name, getattr(settings, name, field.default))
        if name == POSITIONAL:
            model = value
        elif value != field.default:
            flags.append(_flag(name, value))
    return [*flags, *(["--", model] if model is not None else [])]


def _flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return flag_name(name) if value else flag_name(f"no_{name}")
    return f"{flag_name(name)}={value}"


def _options(name: str, field: FieldInfo) -> dict[str, Any]:
    options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _help(name, field)}
    if field.annotation in (bool, bool | None):
        return {**options, "action": argparse.BooleanOptionalAction}
    choices = [choice for choice in get_args(field.annotation) if isinstance(choice, str)]
    return {**options, "metavar": "|".join(choices) or _metavar(field)}


def _metavar(field: FieldInfo) -> str:
    kinds = get_args(field.annotation) or (field.annotation,)
    return {int: "N", float: "X"}.get(kinds[0], "TEXT")


def _help(name: str, field: FieldInfo) -> str:
    default = "" if field.default is None else f" (default {field.default})"
    text = f"{field.description}{default}; env {ENV_PREFIX}{name.upper()}"
    return text.replace("%", "%%")
