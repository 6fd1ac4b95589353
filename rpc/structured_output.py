"""Structured outputs of either contract's SamplingParams as one plain value, and back.

The value is the kind, as the proto names it, and then its texts: ("regex", "a+"), ("json_object",),
("choice", "yes", "no"). It is frozen, hashes, and passes through every service as it came.
"""

from typing import Any

StructuredOutput = tuple[str, ...]


def read(params: Any) -> StructuredOutput | None:
    """Returns what the message asks for; ("",) stands for a constraint that is not there."""
    if not params.HasField("structured_output"):
        return None
    message = params.structured_output
    match message.WhichOneof("constraint"):
        case None:
            return ("",)
        case "json_object":
            return ("json_object",)
        case "choice":
            return ("choice", *message.choice.choices)
        case kind:
            return (kind, getattr(message, kind))


def write(params: Any, value: StructuredOutput | None) -> None:
    """Sets the field of the message, unless there is nothing to be set."""
    if value is None:
        return
    kind, *texts = value
    message = params.structured_output
    match kind:
        case "json_object":
            message.json_object.SetInParent()
        case "choice":
            message.choice.choices.extend(texts)
        case _:
            setattr(message, kind, texts[0])
