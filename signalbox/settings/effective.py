"""The settings that a command would run with, each with its source, and the faults of a file."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from signalbox.settings.all_settings import KNOWN, SERVICES
from signalbox.settings.loading import (
    describe,
    in_one_line,
    merge,
    merge_sources,
)
from signalbox.settings.setting_names import translate, unknown_names
from signalbox.settings.sources import CONFIG_FILE, SettingsError, Source, config_file
from signalbox_rpc.settings.secrets import is_secret
from signalbox_rpc.settings.service_settings import Settings

HIDDEN = "(hidden)"
_CREDENTIALS = re.compile(r"(?<=//)[^/@\s]+(?=@)|(?<=\?)\S+")
"""User and password, and the query, of a URL."""
_PLACEHOLDER = "MODEL"
"""Stands for the model where none is given: the other settings can be shown without it."""


class Effective(NamedTuple):
    """A setting with the value that a command takes."""

    name: str
    value: Any
    """None if it is hidden, too."""
    source: str
    """"flag", "environment", "file" or "default"."""
    is_hidden: bool = False


def effective(
    settings_class: type[Settings], flags: dict[str, Any], notices: list[str]
) -> list[Effective]:
    """Returns each setting of a command. Raises SettingsError if the command would refuse one.

    Args:
        notices: lines that the command would log are added.
    """
    values, origins = merge(settings_class, flags, notices.append)
    if "model" in settings_class.model_fields and not values.keys() & {"model", "simulate"}:
        values["model"] = _PLACEHOLDER
    try:
        settings = settings_class(**values)
    except ValidationError as error:
        raise SettingsError(in_one_line(error, settings_class)) from None
    return list(_rows(settings, origins))


def _rows(settings: Settings, origins: Mapping[str, Source]) -> Iterator[Effective]:
    for name, field in type(settings).model_fields.items():
        source = origins[name].kind if name in origins else "default"
        if name == "model" and source == "default":
            yield Effective(name, None, source)
        elif is_secret(field) and getattr(settings, name):
            yield Effective(name, None, source, is_hidden=True)
        else:
            yield Effective(name, _shown(getattr(settings, name)), source)


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return _CREDENTIALS.sub(HIDDEN, str(value))
    return list(value) if isinstance(value, tuple) else value


def faults(path: str, settings_class: type[Settings] | None = None) -> list[str]:
    """Returns what is wrong in a YAML file, one line each. Raises SettingsError if it has no YAML.

    Args:
        settings_class: of the command that the file is for; None if the file is for serve, or for
            the services that are started one by one.
    """
    source = config_file({CONFIG_FILE: path}, CONFIG_FILE)
    unknown = unknown_names(source, KNOWN)
    found = set(unknown.values())
    values: dict[str, Any] = {}
    for name in source.values.keys() - unknown.keys():
        alone = Source(values={name: source.values[name]}, place=source.place)
        try:
            translate(alone, KNOWN, lambda _line: None)
            values |= alone.values
        except SettingsError as error:
            found.add(str(error))
    if not values.keys() & {"model", "model_tag", "simulate"}:
        values["model"] = _PLACEHOLDER
    known = Source(values=values, place=source.place)
    if settings_class is not None:
        return sorted(found.union(*_faults(known, settings_class)))
    (of_serve, whole), *others = (_faults(known, service) for service in SERVICES)
    parts = set[str]().union(*(together for _, together in others))
    found = found.union(of_serve, *(alone for alone, _ in others))
    return sorted(found | (whole | parts if whole and parts else set()))


def _faults(source: Source, settings_class: type[Settings]) -> tuple[set[str], set[str]]:
    """Returns the faults of single settings, and of settings that contradict each other."""
    try:
        values, _ = merge_sources(settings_class, (source,), lambda _line: None)
        settings_class(**values)
    except SettingsError as error:
        return {str(error)}, set()
    except ValidationError as error:
        single, together = set[str](), set[str]()
        for one in error.errors(include_url=False):
            text = f"{source.place}: {describe(one, settings_class, lambda name: name)}"
            (single if one["loc"] else together).add(text)
        return single, together
    return set(), set()
