"""Sources of settings: YAML file, environment and flags, each as names and raw values."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from signalbox.settings.environment import ENV_PREFIX, VLLM_PREFIX, own_variables
from signalbox.settings.vllm_flags import VLLM_VARIABLES

CONFIG_FILE = "config"
"""Name of the flag for the YAML file, which has no field."""
ENVIRONMENT = "the environment"
_QUOTED = re.compile(r"""(["']).*\1""")


class SettingsError(ValueError):
    """A setting is invalid; the message gives its name and the reason in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Settings from one place."""

    values: Mapping[str, Any]
    """Raw values by name, in lower case with underscores: texts, or the types that YAML has."""
    place: str = ""
    """Name of the source in messages; empty for the command line."""

    @property
    def kind(self) -> str:
        """Returns "flag", "environment" or "file"."""
        if not self.place:
            return "flag"
        return "environment" if self.place == ENVIRONMENT else "file"


def config_file(flags: Mapping[str, Any], flag: str) -> Source:
    """Returns the YAML file that a flag or the environment names. Raises SettingsError."""
    path = flags.get(flag) or os.environ.get(ENV_PREFIX + flag.upper())
    place = f"--{flag} {path}"
    content = _read(Path(path), place) if path else {}
    return Source(values={name.replace("-", "_"): content[name] for name in content}, place=place)


def models_file(path: str) -> Source:
    """Returns the YAML file of --models: what it says of each model, by name. Raises
    SettingsError."""
    place = f"--models {path}"
    return Source(values=_read(Path(path), place, "NAME"), place=place)


def environment() -> Source:
    """Returns our environment variables, including those that are not settings."""
    found = own_variables(os.environ.items())
    return Source(values={name.lower(): value for name, value in found.items()}, place=ENVIRONMENT)


def vllm_environment(tell: Callable[[str], None]) -> Source:
    """Returns vLLM's variables that stand for settings; reports the others in one line."""
    names = [name for name in os.environ if name.startswith(VLLM_PREFIX)]
    known = {VLLM_PREFIX + name.upper(): setting for name, setting in VLLM_VARIABLES.items()}
    if others := sorted(set(names) - known.keys()):
        have = "has" if len(others) == 1 else "have"
        tell(f"{', '.join(others)} {have} no effect here")
    values = {known[name]: os.environ[name] for name in names if name in known}
    return Source(values=values, place=ENVIRONMENT)


def _read(path: Path, place: str, key: str = "setting") -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys)
    except yaml.YAMLError as error:
        raise SettingsError(f"cannot read {place}: {_fault(error)}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"cannot read {place}: it is not UTF-8") from None
    except OSError as error:
        raise SettingsError(f"cannot read {place}: {error.strerror}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{place}: expected `{key}: value` lines")
    return {str(name): value for name, value in content.items()}


class _UniqueKeys(yaml.SafeLoader):
    """Loads as `yaml.safe_load`, but refuses a key that a mapping has twice."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            name = (key.tag, key.value)
            if name in lines:
                problem = f"the key of line {lines[name]} comes again"
                raise yaml.composer.ComposerError(None, None, problem, key.start_mark)
            lines[name] = key.start_mark.line + 1
        return node


def _fault(error: yaml.YAMLError) -> str:
    """Returns what is wrong and where, without text of the file, which may be a secret."""
    mark = getattr(error, "problem_mark", None)
    problem = _QUOTED.sub("a text", getattr(error, "problem", None) or "it is no YAML")
    return problem if mark is None else f"line {mark.line + 1}: {problem}"
