"""Reads the settings of a command from where they are given; see the package for who beats whom."""

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import ValidationError

from signalbox.settings.base import CONFIG_FILE, Settings, flag_name
from signalbox.settings.ports import is_off, split_port
from signalbox.settings.router import RouterSettings
from signalbox.settings.scheduler import SchedulerSettings
from signalbox.settings.serve import ServeSettings
from signalbox.settings.sources import SettingsError, Source, config_file, environment
from signalbox.settings.worker import WorkerSettings

S = TypeVar("S", bound=Settings)

SERVICES: tuple[type[Settings], ...] = (
    ServeSettings,
    RouterSettings,
    SchedulerSettings,
    WorkerSettings,
)
_KNOWN = {field for service in SERVICES for field in service.model_fields}


def load(
    settings_class: type[S],
    flags: dict[str, Any],
    *,
    tell: Callable[[str], None] = lambda _line: None,
) -> S:
    """Returns the settings of a command. Raises SettingsError.

    Args:
        flags: those that were given on the command line; "config" is the YAML file.
        tell: told in one line of each setting that is not read as it may have been meant.
    """
    file = config_file(flags, CONFIG_FILE)
    _check_names(file)
    given = Source(values={name: flags[name] for name in flags if name != CONFIG_FILE})
    notices: list[str] = []
    values = _merge(settings_class, (file, environment(), given), notices.append)
    try:
        settings = settings_class(**values)
    except ValidationError as error:
        raise SettingsError("; ".join((_in_one_line(error), *notices))) from None
    for notice in notices:
        tell(notice)
    return settings


def _merge(
    settings_class: type[Settings], sources: tuple[Source, ...], tell: Callable[[str], None]
) -> dict[str, Any]:
    """Returns the raw value of each field that is given; later sources beat earlier ones."""
    fields = settings_class.model_fields
    merged: dict[str, Any] = {}
    for source in sources:
        values = source.values
        if "grpc_port" in fields:
            http_is_off = is_off(sources, default=fields["http"].default)
            values = split_port(values, http_is_off=http_is_off, tell=tell)
        others = () if source.place else values.keys()  # a flag of no field is a mistake of ours
        merged |= {name: values[name] for name in values if name in fields or name in others}
    return merged


def _check_names(file: Source) -> None:
    """One file may serve several commands, so it may have any service's settings."""
    if unknown := file.values.keys() - _KNOWN:
        raise SettingsError(f"{file.place}: no setting is called {min(unknown)}")


def _in_one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    reason = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # several settings do not fit together
        return reason
    name = flag_name(str(first["loc"][0]))
    return f"{name} is {first['input']!r}: {reason[0].lower()}{reason[1:]}"
