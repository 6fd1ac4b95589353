"""Sources of settings: YAML file, environment and flags, each as names and raw values."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from signalbox.environment import ENV_PREFIX, VLLM_PREFIX, own_variables
from signalbox.settings.vllm_flags import VLLM_VARIABLES


class SettingsError(ValueError):
    """A setting is wrong; says which and why in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Settings from one place."""

    values: Mapping[str, Any]
    """Raw values by name, in lower case with underscores: texts, or the types that YAML has."""
    place: str = ""
    """Name of the source in messages; empty for the command line."""


def config_file(flags: Mapping[str, Any], flag: str) -> Source:
    """Returns the YAML file that a flag or the environment names. Raises SettingsError."""
    path = flags.get(flag) or os.environ.get(ENV_PREFIX + flag.upper())
    place = f"--{flag} {path}"
    return Source(values=_read(Path(path), place) if path else {}, place=place)


def environment() -> Source:
    """Returns our variables. Those that are no settings are among them."""
    found = own_variables(os.environ.items())
    return Source(
        values={name.lower(): value for name, value in found.items()}, place="the environment"
    )


def vllm_environment(tell: Callable[[str], None]) -> Source:
    """Returns the variables of vLLM's that stand for settings; tells of the others in one line."""
    names = [name for name in os.environ if name.startswith(VLLM_PREFIX)]
    known = {VLLM_PREFIX + name.upper(): setting for name, setting in VLLM_VARIABLES.items()}
    if others := sorted(set(names) - known.keys()):
        have = "has" if len(others) == 1 else "have"
        tell(f"{', '.join(others)} {have} no effect here")
    values = {known[name]: os.environ[name] for name in names if name in known}
    return Source(values=values, place="the environment")


def _read(path: Path, place: str) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise SettingsError(f"cannot read {place}: {reason}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{place}: expected `setting: value` lines")
    return {str(name).replace("-", "_"): value for name, value in content.items()}
