"""Kinds of another server's flags: another name of a setting, without effect, or refused.

A flag is without effect only if it changes no result.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

SWITCH, ONE, SEVERAL, OPTIONAL = "switch", "one", "several", "optional"
"""Number of values that a flag takes; a switch has a --no- form, and an optional value is one of
ON_OR_OFF."""
ON_OR_OFF = ("on", "off", "auto", "1", "0", "true", "false")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spelled:
    """A flag as it is written."""

    takes: str = ONE
    also: tuple[str, ...] = ()
    """Other spellings of the flag."""
    off: tuple[str, ...] = ()
    """Other spellings of a switch's --no- form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias(_Spelled):
    """Another name of a setting."""

    setting: str
    member: str = ""
    """The member that the flag sets of a setting that is a JSON object: a number."""
    is_text: bool = False
    """True if the member is a text."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The setting's value for each of the flag's; any other is taken as it is."""
    convert: Callable[[str], Any] | None = None
    """Converts the flag's text. Raises ValueError."""
    meaning: str = ""
    """Text for the documentation, if the setting's value differs from the flag's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoEffect(_Spelled):
    """A flag that is accepted without effect; one log line names it."""

    why: str
    values: tuple[str, ...] = ()
    """Accepted values, in lower case; empty accepts all."""
    otherwise: str = ""
    """Remedy in the error for any other value."""
    beside: frozenset[str] = frozenset()
    """Flags beside which it says nothing new, so that no line names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(_Spelled):
    """A flag that ends the command with an error that names the remedy."""

    remedy: str


ForeignFlag = Alias | NoEffect | Refused
