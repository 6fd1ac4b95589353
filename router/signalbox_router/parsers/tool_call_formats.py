"""The tool formats that there are, and the choice of one for a model.

A format is found, not listed: each module in the folder `formats` has some in its `FORMATS`, and an
installed package has one for each entry point of `GROUP`, which is called like the format.
"""

import importlib
import pkgutil
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from signalbox_router.parsers.tool_call_format import AnswerFormat, ToolCallFormat
from signalbox_router.prompt.tokenization.vocabulary import Vocabulary

GROUP = "signalbox.tool_call_formats"
HERMES, JSON = "hermes", "json"
"""The format of the instructions for a model without one, and the format where none is detected."""
AUTO, NONE = "auto", "none"
_FOLDER = f"{__package__}.formats"


class FormatError(ValueError):
    """A package's format cannot be used."""


def _own() -> list[ToolCallFormat]:
    path = importlib.import_module(_FOLDER).__path__
    names = sorted(module.name for module in pkgutil.iter_modules(path))
    modules = [importlib.import_module(f"{_FOLDER}.{name}") for name in names]
    return [format_ for module in modules for format_ in module.FORMATS]


OWN = _own()
"""The formats of this package."""
_BY_NAME = {name: format_ for format_ in OWN for name in (format_.name, *format_.aliases)}
_OF_PACKAGES = {entry.name: entry for entry in entry_points(group=GROUP)}
CHOICES = (AUTO, *dict.fromkeys((*_BY_NAME, *_OF_PACKAGES)), NONE)
"""Values of --tool-call-parser."""


def named(name: str) -> ToolCallFormat:
    """Returns a format by its name; one of a package replaces ours of the same name."""
    entry = _OF_PACKAGES.get(name)
    return _BY_NAME[name] if entry is None else _loaded(entry)


@cache
def _loaded(entry: EntryPoint) -> ToolCallFormat:
    origin = f"entry point {entry.name!r} of {GROUP}"
    try:
        format_ = entry.load()
    except Exception as error:  # foreign code may raise anything
        lines = str(error).splitlines() or [""]
        raise FormatError(
            f"{origin}: {entry.value} cannot be imported ({type(error).__name__}: {lines[0]})"
        ) from error
    if not isinstance(format_, ToolCallFormat):
        raise FormatError(f"{origin}: {entry.value} is no ToolCallFormat")
    return format_


def check(name: str) -> None:
    """Raises FormatError if a package's format cannot be used that a setting may choose."""
    for one in _OF_PACKAGES if name == AUTO else (name,):
        if one != NONE:
            named(one)


def detect(template: str, vocabulary: Vocabulary) -> ToolCallFormat:
    """Returns the format of the model that has this chat template and this vocabulary.

    The template tells it, or else a token that opens calls.
    """
    own = _own_or_replaced()
    formats = [*map(named, _OF_PACKAGES), *sorted(own, key=lambda one: one.is_generic)]
    found = [one for one in formats if one.detects(template, vocabulary)]
    if not found:
        first = sorted(own, key=lambda one: not one.is_generic)
        found = [one for one in first if one.opening and _has(vocabulary, one.opening[0])]
    return found[0] if found else named(JSON)


def _own_or_replaced() -> list[ToolCallFormat]:
    """Returns the formats of this package, each as that of a package which replaces it, if any."""
    return [named(one.name) for one in OWN]


def _has(vocabulary: Vocabulary, token: str) -> bool:
    return vocabulary.token_id(token) is not None


def choose(name: str, template: str, vocabulary: Vocabulary) -> ToolCallFormat | None:
    """Returns the format of a setting; None leaves the text unchanged."""
    if name == NONE:
        return None
    return detect(template, vocabulary) if name == AUTO else named(name)


def choose_whole(name: str, template: str, vocabulary: Vocabulary) -> AnswerFormat | None:
    """Returns the format of a setting if its markup is of all of an answer, also without tools."""
    if name == NONE:
        return None
    formats = [*map(named, _OF_PACKAGES), *_own_or_replaced()] if name == AUTO else [named(name)]
    for one in formats:
        if isinstance(one, AnswerFormat) and (name != AUTO or one.detects(template, vocabulary)):
            return one
    return None
