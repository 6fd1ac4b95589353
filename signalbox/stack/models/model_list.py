"""Reads the models that `serve` is given: MODEL, NAME=MODEL, and the file of --models."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from signalbox.settings.loading import in_one_line, merge_sources
from signalbox.settings.serve_settings import (
    OF_SEVERAL,
    ServeCommandSettings,
    ServeSettings,
)
from signalbox.settings.setting_names import unknown_names
from signalbox.settings.sources import SettingsError, Source, models_file
from signalbox_scheduler.config import SchedulingSettings
from signalbox_worker.runner.loading.model_source import model_name
from signalbox_worker.service.worker_settings import EngineSettings

_NAME = re.compile(r"[^\s,=]{1,100}")
"""Names in labels of metrics, in lists with commas, and before an equals sign."""
_NAMED = re.compile(r"(?P<name>[^\s,=/\\]{1,100})=(?P<model>.+)", re.DOTALL)
_OWN = (
    EngineSettings.model_fields.keys() | SchedulingSettings.model_fields.keys() | {"workers"}
) - {"served_model_name"}
"""Settings that a model of the file may have for itself."""


class NamedModel(NamedTuple):
    """A model's name for clients, and the settings of its workers and scheduler."""

    name: str
    settings: ServeSettings


def named_models(
    settings: ServeCommandSettings, tell: Callable[[str], None] = lambda _line: None
) -> list[NamedModel]:
    """Returns the models in the order of the command line, those of the file last.

    Raises SettingsError for settings that are refused, for two models of one name, and for a name
    of --keep-warm that is none.
    """
    found = [*_of_command_line(settings), *_of_file(settings, tell)]
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(
                f"two models are called {name}; give one another name, as NAME=MODEL"
            )
        if not _NAME.fullmatch(name):
            raise SettingsError(
                f"a model cannot be called {name!r}: names have no spaces, commas and equals signs,"
                " and at most 100 characters; write NAME=MODEL"
            )
    for name in settings.keep_warm:
        if name not in names:
            raise SettingsError(f"--keep-warm names {name}; the models are {', '.join(names)}")
    return found


def split_name(text: str) -> tuple[str, str]:
    """Returns name and model of NAME=MODEL; the name is empty for a model alone, which may be a
    path with an equals sign."""
    named = _NAMED.fullmatch(text)
    if named is None or Path(text).exists():
        return "", text
    return named["name"], named["model"]


def _of_command_line(settings: ServeCommandSettings) -> Iterator[NamedModel]:
    given = [settings.model] if settings.model or settings.simulate else []
    for text in (*given, *settings.more_models):
        name, model = split_name(text)
        yield _named(settings, {"model": model} if model else {}, name)


def _of_file(settings: ServeCommandSettings, tell: Callable[[str], None]) -> Iterator[NamedModel]:
    if settings.models is None:
        return
    file = models_file(settings.models)
    if not file.values:
        raise SettingsError(f"{file.place} has no models; write NAME: MODEL")
    for name, value in file.values.items():
        place = f"{file.place}: {name}"
        values = {"model": value} if isinstance(value, str) else value
        if not isinstance(values, dict) or not values.keys() & {"model", "simulate"}:
            raise SettingsError(f"{place}: write NAME: MODEL, or NAME with settings and its model")
        own = {str(key).replace("-", "_"): one for key, one in values.items()}
        source = Source(values=own, place=place)
        for message in unknown_names(source, _OWN).values():
            raise SettingsError(f"{message}; a model has settings of worker and scheduler")
        merged, _ = merge_sources(ServeSettings, (source,), tell)
        if others := merged.keys() - _OWN:
            raise SettingsError(f"{place}: {min(others)} is the same for all models; give a flag")
        yield _named(settings, merged, name, place=f"{place}: ")


def _named(
    settings: ServeCommandSettings, own: dict[str, Any], name: str, *, place: str = ""
) -> NamedModel:
    apart = OF_SEVERAL | {"model", "simulate"}
    shared = {key: getattr(settings, key) for key in settings.model_fields_set - apart}
    values = {**shared, **own}
    if own.get("simulate"):  # flags of models have no effect on one that is none
        of_models = EngineSettings.model_fields.keys() - EngineSettings.OF_BOTH - own.keys()
        values = {key: value for key, value in values.items() if key not in of_models}
    elif settings.simulate and not own.get("model"):
        values["simulate"] = True
    try:
        model = ServeSettings(**values)
    except ValidationError as error:
        raise SettingsError(place + in_one_line(error, ServeSettings)) from None
    name = name or ("simulated" if model.simulate else model_name(model))
    return NamedModel(name, model.model_copy(update={"served_model_name": (name,)}))
