"""Command-line flags made from settings, and settings turned back into flags."""

import argparse
import inspect
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo

from signalbox.settings.environment import ENV_PREFIX
from signalbox.settings.flag_kinds import (
    ON_OR_OFF,
    OPTIONAL,
    SEVERAL,
    SWITCH,
    Alias,
    ForeignFlag,
    Refused,
)
from signalbox.settings.flags.parser import CommandParser
from signalbox.settings.foreign_flags import MODEL_FLAG, other_names
from signalbox.settings.llama_cpp_flags import LLAMA_CPP_FLAGS
from signalbox.settings.setting_names import EARLIER, effect
from signalbox.settings.sources import CONFIG_FILE
from signalbox.settings.vllm_flags import VLLM_FLAGS
from signalbox_rpc.settings.secrets import in_plain_text, is_secret
from signalbox_rpc.settings.service_settings import Settings, flag_name

POSITIONAL = "model"
FURTHER = "more_models"
"""Setting that further positional arguments are."""
_MODEL = "MODEL"
PORT = "port"
"""Destination of --port in a command with two APIs, where it means --http-port."""
FOREIGN_GROUPS: Mapping[str, Mapping[str, ForeignFlag]] = {
    "flags of vllm serve": VLLM_FLAGS,
    "flags of llama-server and ollama run": LLAMA_CPP_FLAGS,
}
_WIDEST_METAVAR = 50
"""Characters of the values of a flag that are shown beside its name; more stand in its help."""


def add_flags(parser: argparse.ArgumentParser, settings_class: type[Settings]) -> None:
    """Adds a flag for each field; only flags that are given end up in the namespace."""
    fields = settings_class.model_fields
    words = f"[{_MODEL}] " if POSITIONAL in fields else ""
    several = f"[{_MODEL} ...] " if FURTHER in fields else ""
    parser.usage = f"%(prog)s {words}{several}[FLAG ...]"
    parser.epilog = (
        "--help=WORD shows the flags that are about a word. Each is a variable of the environment,"
        f" too: --log-level is {ENV_PREFIX}LOG_LEVEL."
    )
    group_of = groups_of(settings_class)
    titles = {name: group_of[name] for name in fields}
    # The fields of base classes, which are the most general, come first.
    ordered = dict.fromkeys(reversed(titles.values()))
    groups = {title: parser.add_argument_group(title) for title in ordered}
    for name, field in fields.items():
        if name == POSITIONAL:
            parser.add_argument(
                name, metavar=_MODEL, nargs="?", default=argparse.SUPPRESS, help=_help(field)
            )
            if FURTHER in fields:
                _add_further(parser)
        else:
            add_flag(groups[titles[name]], name, field)
    general = groups[Settings.GROUP]
    general.add_argument(
        flag_name(CONFIG_FILE),
        metavar="FILE",
        default=argparse.SUPPRESS,
        help=f"YAML file with these settings (env {ENV_PREFIX}CONFIG)",
    )
    if "grpc_port" in fields:
        groups[titles["grpc_port"]].add_argument(
            flag_name(PORT),
            metavar="N",
            default=argparse.SUPPRESS,
            help="the HTTP API's port, as in vLLM: --http-port",
        )
    for title, flags in FOREIGN_GROUPS.items():
        _add_foreign_flags(parser, settings_class, title, flags)
    for name, flag in EARLIER.items():
        if isinstance(flag, Refused) or flag.setting in fields:
            parser.add_argument(flag_name(name), help=argparse.SUPPRESS, **_taken(flag))


def _add_further(parser: argparse.ArgumentParser) -> None:
    assert isinstance(parser, CommandParser)
    parser.add_argument(
        FURTHER, metavar=_MODEL, nargs="*", default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )
    parser.words = FURTHER


def add_flag(group: argparse._ArgumentGroup, name: str, field: FieldInfo, **options: str) -> None:
    """Adds the flag of a setting. Args: options: of argparse, in place of the setting's own."""
    group.add_argument(flag_name(name), *other_names(name), **_options(field) | options)


def _add_foreign_flags(
    parser: argparse.ArgumentParser,
    settings_class: type[Settings],
    title: str,
    flags: Mapping[str, ForeignFlag],
) -> None:
    """Adds the flags of another server; of one service, only other names of its settings."""
    assert isinstance(parser, CommandParser)
    fields = settings_class.model_fields
    group = parser.add_argument_group(title)
    for name, flag in flags.items():
        names = [spelling_of(name), *other_names(name)]
        if not settings_class.IS_WHOLE_STACK:
            if not isinstance(flag, Alias):
                parser.remedies |= dict.fromkeys(names, effect(name))
                continue
            if flag.setting not in fields:
                continue
        group.add_argument(*names, dest=name, help=effect(name).replace("%", "%%"), **_taken(flag))
        if flag.off:
            off: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
            group.add_argument(*flag.off, dest=name, action="store_const", const=False, **off)
    parser.unlisted.add(title)
    if settings_class.IS_WHOLE_STACK:
        parser.epilog = f"{parser.epilog} --help={title.split()[2]} shows the {title}."


class _Named(argparse.Action):
    """Stores the spelling that was given, in the place of the value, which may be a secret."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        _values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, option_string)


def spelling_of(name: str) -> str:
    """Returns the flag of a row."""
    return flag_name("model" if name == MODEL_FLAG else name)


def _taken(flag: ForeignFlag) -> dict[str, Any]:
    options: dict[str, Any] = {"default": argparse.SUPPRESS}
    if flag.takes == SWITCH:
        return {**options, "action": argparse.BooleanOptionalAction}
    if flag.takes == OPTIONAL:
        return {**options, "nargs": "?", "const": "on", "choices": ON_OR_OFF, "metavar": "on|off"}
    if isinstance(flag, Refused):  # with a value or without, it is refused by its name
        return {**options, "action": _Named, "nargs": "?", "metavar": "VALUE"}
    return {**options, "metavar": "VALUE", **({"nargs": "+"} if flag.takes == SEVERAL else {})}


def groups_of(settings_class: type[Settings]) -> dict[str, str]:
    """Returns the group of each field: that of the most general class which declares it."""
    groups: dict[str, str] = {}
    for one in reversed(settings_class.__mro__):
        for name in inspect.get_annotations(one):
            groups.setdefault(name, vars(one).get("GROUP", ""))
    return groups


def to_flags(settings: Settings, settings_class: type[Settings], **replaced: Any) -> list[str]:
    """Returns the arguments that give another command the same settings.

    Args:
        settings_class: of the other command; fields that it lacks are left out, and so are secrets.
        replaced: fields whose values differ from `settings`.
    """
    flags, model = [], ""
    for name, field in settings_class.model_fields.items():
        value = replaced.get(name, getattr(settings, name, field.default))
        if name == POSITIONAL:
            model = value
        elif value != field.default and not is_secret(field):
            flags.extend(_flags(name, value))
    return [*flags, *(["--", model] if model else [])]


def to_environment(settings: Settings, settings_class: type[Settings]) -> dict[str, str]:
    """Returns the variables for the secrets that `to_flags` leaves out: command lines are
    public."""
    return {
        ENV_PREFIX + name.upper(): in_plain_text(value)
        for name, field in settings_class.model_fields.items()
        if is_secret(field) and (value := getattr(settings, name, ()))
    }


def _flags(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag_name(name) if value else flag_name(f"no_{name}")]
    several = value if isinstance(value, tuple) else (value,)
    return [f"{flag_name(name)}={one}" for one in several]


def _options(field: FieldInfo) -> dict[str, Any]:
    options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _help(field)}
    if field.annotation in (bool, bool | None):
        return {**options, "action": argparse.BooleanOptionalAction}
    if isinstance(field.default, tuple):
        return {**options, "nargs": "+", "action": "extend", "metavar": _metavar(field)}
    choices = "|".join(choices_of(field))
    if len(choices) > _WIDEST_METAVAR:
        listed = f"{choices.replace('|', ', ')}; {options['help']}"
        return {**options, "metavar": "NAME", "help": listed}
    return {**options, "metavar": choices or _metavar(field)}


def choices_of(field: FieldInfo) -> list[str]:
    """Returns the texts that a setting may be, if it is one of several."""
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return [str(one) for one in kind]
    return [one for one in get_args(kind) if isinstance(one, str)]


def _metavar(field: FieldInfo) -> str:
    kinds = get_args(field.annotation) or (field.annotation,)
    return {int: "N", float: "X", Path: "PATH"}.get(kinds[0], "TEXT")


def _help(field: FieldInfo) -> str:
    default = "" if field.default in (None, (), "") else f" (default {field.default})"
    return f"{field.description}{default}".replace("%", "%%")
