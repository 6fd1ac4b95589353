"""The options of an engine that are settings of services too: default, help and range are theirs.

An option of `signalbox worker` or `signalbox scheduler` is an option of `EngineArgs`, or is in
`SERVICE_ONLY` with the reason; a test compares the three.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import Field, field, fields
from typing import Any, Concatenate, ParamSpec, TypeVar

from pydantic import ValidationError

from signalbox.settings.all_settings import SERVICES
from signalbox.settings.loading import in_one_line
from signalbox.settings.setting_names import old_name
from signalbox.settings.spelling import did_you_mean
from signalbox_router.config import RequestSettings
from signalbox_scheduler.config import SchedulingSettings
from signalbox_worker.service.worker_settings import EngineSettings

P = ParamSpec("P")
R = TypeVar("R")

_NO_QUEUE = "the caller holds all prompts in memory anyway"
_NO_SERVICE = "there are no other processes"
SERVICE_ONLY: Mapping[str, str] = {
    "lora": "a request names its adapter by lora_request",
    "adapter_dir": "a request names its adapter by lora_request",
    "simulate": "use `signalbox serve --simulate`",
    "simulated_gpu_blocks": "use `signalbox serve --simulate`",
    "simulated_cpu_blocks": "use `signalbox serve --simulate`",
    "simulated_store_blocks": "use `signalbox serve --simulate`",
    "simulated_groups": "use `signalbox serve --simulate`",
    "simulated_step_ms": "use `signalbox serve --simulate`",
    "simulated_token_us": "use `signalbox serve --simulate`",
    "simulated_pooling": "use `signalbox serve --simulate`",
    "prefix_caching": "its name here is enable_prefix_caching, as in vLLM",
    "max_queued_requests": _NO_QUEUE,
    "max_queued_tokens": _NO_QUEUE,
    "max_tenant_requests": "there is one tenant",
    "worker_wait": _NO_SERVICE,
    "worker_quarantine": _NO_SERVICE,
    "audit_cpu": "audits are computed while a server waits for requests",
    "recording_path": "use `signalbox serve --recording-path`",
    "disaggregation": "there is one worker",
}
"""Options of worker and scheduler that an engine refuses, and why."""


class InProcessSettings(EngineSettings, SchedulingSettings, RequestSettings):
    """Settings of the services in the caller's process."""


def option(setting: str, **changes: Any) -> Any:
    """Returns the dataclass field of an option that is a setting.

    Args:
        changes: `default`, if the engine's differs from that of the service.
    """
    default = changes.get("default", InProcessSettings.model_fields[setting].default)
    return field(default=default, metadata={"setting": setting, "help": description_of(setting)})


def earlier(setting: str) -> Any:
    """Returns the dataclass field of an option's old name, which works for one release."""
    return field(default=None, repr=False, metadata={"earlier": setting})


def description_of(setting: str) -> str:
    """Returns the help text of a setting."""
    return InProcessSettings.model_fields[setting].description or ""


def checked(options: Any, **replaced: Any) -> InProcessSettings:
    """Returns the settings in an instance of a dataclass; None asks for the service's default.

    Raises ValueError that names the option which is wrong.

    Args:
        replaced: settings with another value than the instance has.
    """
    named = {one.metadata["setting"]: one.name for one in settings_of(options)}
    values = {setting: _plain(getattr(options, name)) for setting, name in named.items()}
    values |= _given_by_old_names(options)
    given = {name: value for name, value in (values | replaced).items() if value is not None}
    try:
        return InProcessSettings(**given)
    except ValidationError as error:
        message = in_one_line(error, InProcessSettings, lambda name: named.get(name, name))
        raise ValueError(message) from None


def _given_by_old_names(options: Any) -> dict[str, Any]:
    """Returns the settings that are given by old names. Raises ValueError for one given twice."""
    given = {}
    defaults = {one.name: one.default for one in fields(options)}
    for one in fields(options):
        value, setting = getattr(options, one.name), one.metadata.get("earlier")
        if setting and value is not None:
            if getattr(options, setting) != defaults[setting]:
                raise ValueError(f"{one.name} and {setting} are the same option; give one of them")
            warnings.warn(f"{one.name} {old_name(setting)}", FutureWarning, stacklevel=2)
            given[setting] = value
    return given


def settings_of(options: Any) -> list[Field[Any]]:
    """Returns the fields of a dataclass that are settings."""
    return [one for one in fields(options) if "setting" in one.metadata]


def _plain(value: Any) -> Any:
    """Returns a path or a dtype of PyTorch as text, and anything else as it is."""
    is_plain = value is None or isinstance(value, bool | int | float | str | list | tuple | Mapping)
    return value if is_plain else str(value).removeprefix("torch.")


def check_known(options: Mapping[str, object], known: Callable[..., Any]) -> None:
    """Raises TypeError that names an option which is no field of a dataclass."""
    names = {one.name for one in fields(known)}  # type: ignore[arg-type]
    for name in sorted(options.keys() - names):
        if name in SERVICE_ONLY:
            raise TypeError(f"LLM has no option {name!r}: {SERVICE_ONLY[name]}")
        if any(name in service.model_fields for service in SERVICES):
            flag = "--" + name.replace("_", "-")
            raise TypeError(f"LLM has no option {name!r}: it is for services, as {flag}")
        raise TypeError(f"LLM has no option {name!r}{did_you_mean(name, names)}")


def takes_options_of(
    make: Callable[P, Any], **defaults: object
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """Gives a method the parameters of a dataclass, for type checkers and for `help`.

    Args:
        defaults: those that differ from the dataclass's.
    """
    given = inspect.signature(make).parameters.values()
    parameters = [one.replace(default=defaults.get(one.name, one.default)) for one in given]
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)

    def decorate(method: Callable[..., R]) -> Callable[Concatenate[Any, P], R]:
        method.__signature__ = inspect.Signature([itself, *parameters])  # type: ignore[attr-defined]
        return method

    return decorate
