"""Reads the settings of a command from where they are given; see the package for who beats whom."""

import os
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from signalbox.environment import ENV_PREFIX
from signalbox.settings.base import CONFIG_FILE, Settings, flag_name
from signalbox.settings.router import RouterSettings
from signalbox.settings.scheduler import SchedulerSettings
from signalbox.settings.serve import ServeSettings
from signalbox.settings.worker import WorkerSettings

S = TypeVar("S", bound=Settings)

SERVICES: tuple[type[Settings], ...] = (
    ServeSettings,
    RouterSettings,
    SchedulerSettings,
    WorkerSettings,
)


class SettingsError(ValueError):
    """A setting is wrong; says which and why in one line."""


def load(settings_class: type[S], flags: dict[str, Any]) -> S:
    """Returns the settings of a command.

    Args:
        flags: those that were given on the command line; "config" is the YAML file.
    """
    config_file = flags.get(CONFIG_FILE) or os.environ.get(ENV_PREFIX + "CONFIG")
    content = _read_file(Path(config_file), settings_class) if config_file else {}
    values: dict[str, Any] = {**flags, CONFIG_FILE: content}
    try:
        return settings_class(**values)
    except ValidationError as error:
        raise SettingsError(_in_one_line(error)) from None


def _read_file(path: Path, settings_class: type[Settings]) -> dict[str, Any]:
    """Returns the file's settings for this command; one file may serve several commands."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise SettingsError(f"cannot read --config {path}: {reason}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"--config {path}: expected `setting: value` lines")
    values = {str(name).replace("-", "_"): value for name, value in content.items()}
    known = {field for service in SERVICES for field in service.model_fields}
    if unknown := values.keys() - known:
        raise SettingsError(f"--config {path}: no setting is called {min(unknown)}")
    return {name: values[name] for name in values if name in settings_class.model_fields}


def _in_one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    reason = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # several settings do not fit together
        return reason
    name = flag_name(str(first["loc"][0]))
    return f"{name} is {first['input']!r}: {reason[0].lower()}{reason[1:]}"
