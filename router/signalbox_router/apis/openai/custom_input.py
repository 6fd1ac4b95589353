"""Reads the input of a custom tool out of a call's arguments, which arrive in pieces.

The arguments are a JSON object with one text. What a model writes without a constraint may be
anything else: then the input is the arguments as they are.
"""

import json
import re

from signalbox_router.prompt.chat.conversation import INPUT

_OPENING = re.compile(rf'\s*+\{{\s*+"{INPUT}"\s*+:\s*+"')
_HIGH, _LOW = r"u[dD][89abAB][0-9a-fA-F]{2}", r"u[dD][c-fC-F][0-9a-fA-F]{2}"
_CHARS = re.compile(
    rf'(?:[^"\\]++|\\(?:["\\/bfnrt]|{_HIGH}\\{_LOW}|(?!{_HIGH}|{_LOW})u[0-9a-fA-F]{{4}}))*'
)
_LONGEST_OPENING = 1024
"""Characters that are searched for the opening with each piece; white space may go on."""
_BEGUN_ESCAPE = re.compile(
    rf"\\(?:u[0-9a-fA-F]{{0,3}}|{_HIGH}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?)?"
)
"""A text that may be the beginning of an escape, when it is all that there is."""


class CustomInput:
    """The input of one call."""

    def __init__(self) -> None:
        self._held = ""
        """Characters that were read and not yet interpreted."""
        self._is_within = False
        self._is_over = False

    def push(self, arguments: str) -> str:
        """Returns the text that is new."""
        if self._is_over:
            return ""
        self._held += arguments
        if not self._is_within:
            if (opening := _OPENING.match(self._held, 0, _LONGEST_OPENING)) is None:
                return ""
            self._is_within, self._held = True, self._held[opening.end() :]
        return self._read()

    def flush(self) -> str:
        """Returns what was held back, at the end of the call."""
        held, self._held = self._held, ""
        if self._is_over or self._is_within:
            return ""
        return _text_of(held)

    def _read(self) -> str:
        texts = []
        while self._held:
            found = _CHARS.match(self._held)
            assert found is not None
            texts.append(json.loads(f'"{found[0]}"', strict=False))
            self._held = self._held[found.end() :]
            if self._held.startswith('"'):
                self._is_over, self._held = True, ""
            elif not self._held or _BEGUN_ESCAPE.fullmatch(self._held):
                break
            else:  # no escape of JSON's: it stands for itself
                texts.append(self._held[0])
                self._held = self._held[1:]
        return "".join(texts)


def _text_of(arguments: str) -> str:
    """Returns the text of arguments that do not begin with it."""
    try:
        value = json.loads(arguments, strict=False)
    except ValueError:
        return arguments
    text = value.get(INPUT) if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments
