"""Formats in which the supported model families write tool calls into their text."""

import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass

ARGUMENTS_MARKER = "[ARGS]"
"""Separates a call's name from its arguments in the text of Mistral's later models."""


def _make_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def _make_id_of_nine() -> str:
    return secrets.token_hex(5)[:9]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallFormat:
    """A format. Each call is a JSON object with a name and its arguments, or a list of such
    objects."""

    start: str = ""
    """Marker that opens calls, anywhere in the text; its first character must occur in it only
    once."""
    end: str = ""
    """Marker that closes calls."""
    is_bare: bool = False
    """True if any JSON object in the text that names a tool is a call, also in a code fence."""
    is_named: bool = False
    """True if a call may also be a name followed by arguments."""
    separators: str = ""
    """Characters between calls, beside white space."""
    make_id: Callable[[], str] = _make_id

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be special tokens, and that the parser must see."""
        return tuple(filter(None, (self.start, self.end, ARGUMENTS_MARKER * self.is_named)))


HERMES = "hermes"
LLAMA3_JSON = "llama3_json"
MISTRAL = "mistral"
JSON = "json"
AUTO, NONE = "auto", "none"

FORMATS = {
    HERMES: ToolCallFormat(start="<tool_call>", end="</tool_call>"),  # Qwen's too
    LLAMA3_JSON: ToolCallFormat(start="<|python_tag|>", is_bare=True, separators=";"),
    # Mistral's templates refuse ids of any other length.
    MISTRAL: ToolCallFormat(start="[TOOL_CALLS]", is_named=True, make_id=_make_id_of_nine),
    JSON: ToolCallFormat(is_bare=True, separators=",;"),
}
"""Formats by vLLM's names."""
CHOICES = (AUTO, *FORMATS, NONE)


def detect(template: str) -> ToolCallFormat:
    """Returns the format of the model that a chat template was written for."""
    for name in (HERMES, MISTRAL, LLAMA3_JSON):
        if FORMATS[name].start in template:
            return FORMATS[name]
    # Llama 3.2's template does not mention the tag.
    return FORMATS[LLAMA3_JSON if "<|start_header_id|>" in template else JSON]


def choose(name: str, template: str) -> ToolCallFormat | None:
    """Returns the format of a setting; None leaves the text unchanged."""
    if name == NONE:
        return None
    return detect(template) if name == AUTO else FORMATS[name]
