"""Reads the settings of a command from flags, environment and file, in that order of precedence."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from signalbox.settings.environment import CLIENT_VARIABLES, ENV_PREFIX, OTHER_VARIABLES
from signalbox.settings.foreign_flags import FOREIGN_FLAGS
from signalbox.settings.setting_names import EARLIER, check_known, translate
from signalbox.settings.sources import (
    CONFIG_FILE,
    SettingsError,
    Source,
    config_file,
    environment,
    vllm_environment,
)
from signalbox.settings.spelling import did_you_mean
from signalbox_rpc.settings.secrets import is_secret
from signalbox_rpc.settings.service_settings import Settings, SettingsGroup, flag_name

S = TypeVar("S", bound=Settings)
_PASSWORD = re.compile(r"(://[^/@:]*:)[^/]*@")
"""The password of a URL, and what is before it."""
_OFF = ("false", "no", "off", "f", "n", "0")
"""Texts that pydantic reads as False."""


def load(
    settings_class: type[S],
    flags: dict[str, Any],
    *,
    tell: Callable[[str], None] = lambda _line: None,
) -> S:
    """Returns the settings of a command. Raises SettingsError.

    Args:
        flags: flags of the command line; "config" is the YAML file.
        tell: called with one line for each setting that may be read in an unexpected way.
    """
    notices: list[str] = []
    values, _ = merge(settings_class, flags, notices.append)
    try:
        settings = settings_class(**values)
    except ValidationError as error:
        written = {"http_port": "--port"} if "http_port" not in flags and "port" in flags else {}
        wrong = in_one_line(error, settings_class, lambda name: written.get(name, flag_name(name)))
        raise SettingsError(wrong) from None
    for notice in notices:
        tell(notice)
    return settings


def merge(
    settings_class: type[Settings], flags: dict[str, Any], tell: Callable[[str], None]
) -> tuple[dict[str, Any], dict[str, Source]]:
    """Returns the raw value of each setting that is given, and its source. Raises SettingsError."""
    file = config_file(flags, CONFIG_FILE)
    if file.values:
        from signalbox.settings.all_settings import KNOWN

        check_known(file, KNOWN)
    check_environment()
    given = Source(values={name: flags[name] for name in flags if name != CONFIG_FILE})
    fields = settings_class.model_fields
    if shown := [name for name in given.values if name in fields and is_secret(fields[name])]:
        variable = ENV_PREFIX + shown[0].upper()
        tell(
            f"other users of this machine see {flag_name(shown[0])} in its list of processes;"
            f" {variable} in the environment is not shown"
        )
    return merge_sources(settings_class, (file, vllm_environment(tell), environment(), given), tell)


def check_environment() -> None:
    """Raises SettingsError for a variable with our prefix that nothing reads."""
    given = environment().values
    if not given:
        return  # as in each process of a local stack, which imports one service's settings
    from signalbox.settings.all_settings import KNOWN

    others = {name.lower() for name in CLIENT_VARIABLES | OTHER_VARIABLES}
    known = {*KNOWN, *others, *FOREIGN_FLAGS, *EARLIER}
    for name in sorted(given):
        if name not in known:
            hint = did_you_mean(name.upper(), map(str.upper, known), prefix=ENV_PREFIX)
            raise SettingsError(f"the environment: nothing reads {ENV_PREFIX}{name.upper()}{hint}")


def merge_sources(
    settings_class: type[Settings], sources: tuple[Source, ...], tell: Callable[[str], None]
) -> tuple[dict[str, Any], dict[str, Source]]:
    """Returns the raw value of each given field, and its source; later sources take precedence."""
    fields = settings_class.model_fields
    merged: dict[str, Any] = {}
    origins: dict[str, Source] = {}
    for source in sources:
        values = translate(source, fields, tell)
        if "grpc_port" in fields:
            values = _with_http_port(values, sources)
        others = () if source.place else values.keys()  # a flag without a field is a bug
        found = {name: values[name] for name in values if name in fields or name in others}
        merged |= found
        origins |= dict.fromkeys(found, source)
    if "model" in fields and (whole := _with_model(merged)) is not merged:
        return whole, {**origins, "model": sources[-1]}
    return merged, origins


def _with_http_port(values: dict[str, Any], sources: tuple[Source, ...]) -> dict[str, Any]:
    """Returns one source's settings with `port` as `http_port`, in a command with two APIs.

    It turns the HTTP API on in a command where that is off by default.
    """
    if "port" not in values:
        return values
    if "http_port" in values:
        raise SettingsError(
            "--port and --http-port are both the HTTP API's port; --grpc-port is that of gRPC"
        )
    given = [source.values["http"] for source in sources if "http" in source.values]
    if given and str(given[-1]).lower() in _OFF:
        raise SettingsError(
            "--port is the HTTP API's port, which --no-http turns off; --grpc-port is that of gRPC"
        )
    rest = {name: value for name, value in values.items() if name != "port"}
    return {"http": True, **rest, "http_port": values["port"]}


def _with_model(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values with MODEL, even if it follows a flag that takes several values."""
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


def in_one_line(
    error: ValidationError,
    settings_class: type[SettingsGroup],
    shown: Callable[[str], str] = flag_name,
) -> str:
    """Returns what is wrong first, without the value of a secret.

    Args:
        shown: returns what the message calls a field.
    """
    return describe(error.errors(include_url=False)[0], settings_class, shown)


def describe(
    first: ErrorDetails,
    settings_class: type[SettingsGroup],
    shown: Callable[[str], str] = flag_name,
) -> str:
    """Returns one of the faults that pydantic has found, as `in_one_line` does."""
    reason = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # several settings contradict each other
        return reason
    field = str(first["loc"][0])
    name = shown(field)
    if field in settings_class.model_fields and is_secret(settings_class.model_fields[field]):
        return f"{name}: {reason[0].lower()}{reason[1:]}"
    value = _PASSWORD.sub(r"\1***@", repr(first["input"]))
    return f"{name} is {value}: {reason[0].lower()}{reason[1:]}"


def in_words_of_flags(message: str) -> str:
    """Returns a service's message with field names replaced by flags."""
    from signalbox.settings.all_settings import FIELD

    return FIELD.sub(lambda found: flag_name(found[0]), message)
