"""Converts structured outputs of the two contracts' SamplingParams to one plain value, and back.

The value is the kind, as the proto names it, and then its texts: ("regex", "a+"), ("json_object",),
("choice", "yes", "no"). It is immutable and hashable, and every service passes it on unchanged. If
it is a part of the text, the router puts "rules" and the rules in Lark of the whole before it.
"""

from typing import Any

StructuredOutput = tuple[str, ...]


def read(params: Any) -> StructuredOutput | None:
    """Returns the structured output of a message; ("",) if its constraint is not set."""
    return decode(params.structured_output) if params.HasField("structured_output") else None


def decode(message: Any) -> StructuredOutput:
    """Returns the value of a StructuredOutput; ("",) if its constraint is not set."""
    value = _constraint(message)
    rules = getattr(message, "rules", "")  # of the services' contract alone
    return ("rules", rules, *filter(None, value)) if rules else value


def _constraint(message: Any) -> StructuredOutput:
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
    """Sets the message's field, unless the value is None."""
    if value is not None:
        encode(params.structured_output, value)


def encode(message: Any, value: StructuredOutput) -> None:
    kind, *texts = value
    match kind:
        case "rules":
            message.rules, *rest = texts
            if rest:
                encode(message, tuple(rest))
        case "json_object":
            message.json_object.SetInParent()
        case "choice":
            message.choice.choices.extend(texts)
        case _:
            setattr(message, kind, texts[0])
