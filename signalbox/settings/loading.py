"""Reads the settings of a command from where they are given; see the package for who beats whom."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from signalbox.environment import CLIENT_VARIABLES, ENV_PREFIX, OTHER_VARIABLES
from signalbox.settings.base import CONFIG_FILE, Settings, flag_name
from signalbox.settings.names import check_known, translate
from signalbox.settings.ports import is_off, split_port
from signalbox.settings.router import RouterSettings
from signalbox.settings.scheduler import SchedulerSettings
from signalbox.settings.secrets import is_secret
from signalbox.settings.serve import ServeSettings
from signalbox.settings.sources import (
    SettingsError,
    Source,
    config_file,
    environment,
    vllm_environment,
)
from signalbox.settings.vllm_flags import VLLM_FLAGS
from signalbox.settings.worker import WorkerSettings
from signalbox.spelling import did_you_mean

S = TypeVar("S", bound=Settings)

SERVICES: tuple[type[Settings], ...] = (
    ServeSettings,
    RouterSettings,
    SchedulerSettings,
    WorkerSettings,
)
_KNOWN = {field for service in SERVICES for field in service.model_fields}
"""One file may serve several commands, so it may have any service's settings."""


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
    check_known(file, _KNOWN)
    check_environment()
    given = Source(values={name: flags[name] for name in flags if name != CONFIG_FILE})
    notices: list[str] = []
    fields = settings_class.model_fields
    if shown := [name for name in given.values if name in fields and is_secret(fields[name])]:
        variable = ENV_PREFIX + shown[0].upper()
        notices.append(
            f"other users of this machine see {flag_name(shown[0])} in its list of processes;"
            f" {variable} in the environment is not shown"
        )
    sources = (file, vllm_environment(notices.append), environment(), given)
    values = _merge(settings_class, sources, notices.append)
    try:
        settings = settings_class(**values)
    except ValidationError as error:
        about_port = [notice for notice in notices if notice.startswith("--port ")]
        raise SettingsError("; ".join((_in_one_line(error, settings_class), *about_port))) from None
    for notice in notices:
        tell(notice)
    return settings


def check_environment() -> None:
    """Raises SettingsError for a variable with our prefix that nothing reads."""
    others = {name.lower() for name in CLIENT_VARIABLES | OTHER_VARIABLES}
    known = {*_KNOWN, *others, *VLLM_FLAGS}
    for name in sorted(environment().values):
        if name not in known:
            variables = (ENV_PREFIX + one.upper() for one in known)
            variable = ENV_PREFIX + name.upper()
            hint = did_you_mean(variable, variables)
            raise SettingsError(f"the environment: nothing reads {variable}{hint}")


def _merge(
    settings_class: type[Settings], sources: tuple[Source, ...], tell: Callable[[str], None]
) -> dict[str, Any]:
    """Returns the raw value of each field that is given; later sources beat earlier ones."""
    fields = settings_class.model_fields
    merged: dict[str, Any] = {}
    for source in sources:
        values = translate(source, fields, tell)
        if "grpc_port" in fields:
            http_is_off = is_off(sources, default=fields["http"].default)
            values = split_port(values, http_is_off=http_is_off, tell=tell)
        others = () if source.place else values.keys()  # a flag of no field is a mistake of ours
        merged |= {name: values[name] for name in values if name in fields or name in others}
    return _with_model(merged) if "model" in fields else merged


def _with_model(values: dict[str, Any]) -> dict[str, Any]:
    """Returns them with MODEL, where it stands behind a flag that takes several values."""
    if "model" in values or "simulate" in values:
        return values
    for name in ("served_model_name", "api_key"):
        given = values.get(name)
        if isinstance(given, list) and len(given) > 1:
            *rest, last = given
            if name == "api_key" and not Path(last).exists():  # then it may be a key
                raise SettingsError("give MODEL before --api-key, which takes several keys")
            return {**values, name: rest, "model": last}
    return values


def _in_one_line(error: ValidationError, settings_class: type[Settings]) -> str:
    first = error.errors(include_url=False)[0]
    reason = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # several settings do not fit together
        return reason
    field = str(first["loc"][0])
    name = flag_name(field)
    if field in settings_class.model_fields and is_secret(settings_class.model_fields[field]):
        return f"{name}: {reason[0].lower()}{reason[1:]}"
    return f"{name} is {first['input']!r}: {reason[0].lower()}{reason[1:]}"
