"""Formats in which the supported model families write their reasoning."""

from dataclasses import dataclass

AUTO, NONE = "auto", "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """Markers that a model family puts around its reasoning."""

    start: str
    end: str
    head: str = ""
    """A word after the start marker that is no part of the reasoning."""
    begins_within: bool = False
    """True if answers begin with reasoning even without a start marker."""


THINK = ReasoningFormat(start="<think>", end="</think>")
FORMATS = {
    "deepseek_r1": ReasoningFormat(start="<think>", end="</think>", begins_within=True),
    "qwen3": THINK,
    "granite": ReasoningFormat(start="Here is my thought process:", end="Here is my response:"),
    "mistral": ReasoningFormat(start="[THINK]", end="[/THINK]"),
    "seed_oss": ReasoningFormat(start="<seed:think>", end="</seed:think>"),
    "cohere_command3": ReasoningFormat(start="<|START_THINKING|>", end="<|END_THINKING|>"),
    "gemma4": ReasoningFormat(start="<|channel>", end="<channel|>", head="thought"),
}
"""Formats by vLLM's names."""
CHOICES = (AUTO, *FORMATS, NONE)
