"""A config.json with the defaults of its family's class in transformers, which notes what is read.

The table beside this module is generated from transformers (scripts/family_table.py). What the file
leaves out has the default of the family's class. A name that transformers' code reads and a family
here does not is refused, unless its value changes nothing; a name that neither reads is neutral.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar

from signalbox_worker.config import ModelError

TABLE = Path(__file__).with_name("family_table.json")
ANY_MODEL = "PreTrainedConfig"
"""Class whose defaults all families share."""
_NEUTRAL = frozenset(
    {
        # of training
        "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "sparse_prediction",
        "sparse_pred_ignore_index",
        # of what a call returns, or how it is computed
        "attn_implementation", "chunk_size_feed_forward", "deterministic_flash_attn",
        "experts_implementation", "name_or_path", "number_of_conv_states", "output_attentions",
        "reorder_and_upcast_attn", "use_cache",
        # of heads that are read elsewhere, or not used
        "classifier_activation", "classifier_bias", "classifier_pooling", "decoder_bias",
        "id2label", "num_labels", "problem_type",
        # of the loader, of tokens, and of padding within a batch
        "architectures", "dtype", "torch_dtype",
    }
)  # fmt: skip
"""Names whose value a family's reader need not know, beside those of `_NEUTRAL_PARTS`; a test
compares with transformers."""
_NEUTRAL_PARTS = ("drop", "_token_id")
"""Parts of names of training, and of tokens."""
_MOST = (1 << 31) - 1
T = TypeVar("T")


class UnsoundConfig(ModelError):
    """A config.json that describes no model, whichever implementation reads it."""


@dataclass(frozen=True, slots=True)
class ConfigClass:
    """Fields and other names of a configuration class of transformers, with their defaults."""

    architectures: frozenset[str]
    """Registered architectures whose configuration it is."""
    aliases: Mapping[str, str]
    """Names that stand for another."""
    fields: frozenset[str]
    """Names of the class's fields, which other names for the same override."""
    defaults: Mapping[str, Any]
    """Defaults of the fields, and of other names that its code reads."""
    not_null: frozenset[str]
    """Fields that cannot be null."""
    unread: frozenset[str]
    """Fields that no code reads."""

    def is_read(self, name: str) -> bool:
        """Says whether a value can change what transformers computes."""
        is_neutral = name in self.unread or name in _NEUTRAL
        is_neutral = is_neutral or any(part in name for part in _NEUTRAL_PARTS)
        return name in self.defaults and not is_neutral


@cache
def families() -> Mapping[str, ConfigClass]:
    """Returns the table, by the names of configuration classes."""
    entries = json.loads(TABLE.read_text(encoding="utf-8"))
    return {name: _family(**entry) for name, entry in entries.items()}


def _family(
    architectures: list[str],
    aliases: dict[str, str],
    fields: dict[str, Any],
    others: dict[str, Any],
    not_null: list[str],
    unread: list[str],
) -> ConfigClass:
    defaults = others | {aliases.get(name, name): default for name, default in fields.items()}
    return ConfigClass(
        frozenset(architectures),
        aliases,
        frozenset(fields),
        defaults,
        frozenset(not_null),
        frozenset(unread),
    )


class FamilyConfig(Mapping[str, Any]):
    """The fields of a config.json, with defaults for what it leaves out; null stays null."""

    def __init__(self, given: Mapping[str, Any], family: str = ANY_MODEL) -> None:
        """Args: family: name of a configuration class of transformers; one that the table lacks
        has the defaults that all families share."""
        self._family = families().get(family) or families()[ANY_MODEL]
        self._names: dict[str, str] = {}
        """Names in the file, by those they stand for; where two stand for one, the old one wins."""
        for name in sorted(given, key=lambda one: one not in self._family.fields):
            self._names[self._family.aliases.get(name, name)] = name
        self._given = {own: given[name] for own, name in self._names.items()}
        self._was_read = set[str]()

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "FamilyConfig":
        """Returns a configuration itself, or one with the defaults that all families share."""
        return config if isinstance(config, cls) else cls(config)

    @classmethod
    def of_file(cls, config: Mapping[str, Any]) -> "FamilyConfig":
        """Returns a config.json with the defaults of its architecture's class."""
        architecture = (config.get("architectures") or [""])[0]
        own = (name for name, one in families().items() if architecture in one.architectures)
        return cls(config, next(own, ANY_MODEL))

    def __getitem__(self, name: str) -> Any:
        own = self._family.aliases.get(name, name)
        self._was_read.add(own)
        if own not in self._given:
            return self._family.defaults.get(own)
        if self._given[own] is None and own in self._family.not_null:
            raise UnsoundConfig(f"config.json says {self._names[own]} = null, which is no value")
        return self._given[own]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def says(self, name: str) -> bool:
        return self._family.aliases.get(name, name) in self._given

    def default(self, name: str) -> Any:
        """Returns what the class has for a field that the file leaves out."""
        return self._family.defaults.get(self._family.aliases.get(name, name))

    def disregard(self, *names: str) -> None:
        """Notes names as read whose values change nothing of what the file describes. Raises
        UnsoundConfig for null where a field takes none."""
        for name in names:
            self.get(name)

    def replacing(self, **values: Any) -> "FamilyConfig":
        """Returns a copy with other values, which notes what is read here."""
        copy = object.__new__(FamilyConfig)
        copy._family, copy._was_read = self._family, self._was_read
        copy._names = self._names | {name: name for name in values}
        copy._given = self._given | values
        return copy

    def refuse_unread(self) -> None:
        """Raises ModelError for a name that nothing here has read, if its value matters."""
        for own, value in self._given.items():
            if own in self._was_read or not self._family.is_read(own):
                continue
            default = self._family.defaults.get(own)
            is_off = value is False and default is None  # a switch
            if value != default and not is_off:
                raise ModelError(
                    f"{self._given['architectures'][0]} with {self._names[own]} "
                    f"{json.dumps(value)[:80]} is not supported, and may compute something else; "
                    "use another model, or take the field out if it says nothing"
                )


def family(name: str) -> Callable[[Callable[[Any], T]], Callable[[Mapping[str, Any]], T]]:
    """Makes a family's reader complete what it reads, and refuse what it does not know.

    Args:
        name: configuration class of transformers. A reader that calls another one keeps its own.
    """

    def decorate(reader: Callable[[Any], T]) -> Callable[[Mapping[str, Any]], T]:
        @wraps(reader)
        def read(config: Mapping[str, Any]) -> T:
            if isinstance(config, FamilyConfig):
                return reader(config)
            own = FamilyConfig(config, name)
            try:
                result = reader(own)
            except ArithmeticError as error:
                raise UnsoundConfig(
                    f"config.json has a number that nothing can be computed with: {error}"
                ) from error
            own.refuse_unread()
            return result

        return read

    return decorate


def required(config: Mapping[str, Any], key: str) -> Any:
    """Returns a field of config.json. Raises ModelError if it is missing."""
    if config.get(key) is None:
        raise ModelError(f"config.json has no {key!r}; it is incomplete")
    return config[key]


def counted(
    config: Mapping[str, Any],
    key: str,
    default: int | None = None,
    *,
    least: int = 1,
    most: int = _MOST,
) -> int:
    """Returns a field that counts something. Raises ModelError unless it is in [least, most].

    Args:
        default: if the field is null or missing.
    """
    value = config.get(key)
    if value is None:
        value = required(config, key) if default is None else default
    if type(value) is not int or not least <= value <= most:
        raise UnsoundConfig(
            f"config.json says {key} = {str(value)[:40]}, which is no whole number in "
            f"[{least}, {most}]"
        )
    return value


def positive(config: Mapping[str, Any], key: str) -> float:
    """Returns a factor. Raises ModelError unless it is positive."""
    value = required(config, key)
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise UnsoundConfig(f"config.json says {key} = {str(value)[:40]}, which is no factor")
    return float(value)


def small(config: Mapping[str, Any], key: str) -> float:
    """Returns an epsilon. Raises ModelError unless it is 0 or a number above."""
    value = required(config, key)
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise UnsoundConfig(f"config.json says {key} = {str(value)[:40]}, which is no small number")
    return float(value)


def flag(config: Mapping[str, Any], key: str) -> bool:
    """Returns a switch, off if it is missing. Raises ModelError for a value that is none."""
    value = config.get(key)
    if not isinstance(value, bool | None):
        raise UnsoundConfig(f"config.json says {key} = {str(value)[:40]}; use true or false")
    return bool(value)
