"""Converts OpenAI's and vLLM's structured outputs to those of inference.v1."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.apis.openai.requests.errors import BadRequest
from signalbox_router.apis.openai.requests.field_setters import set_field
from signalbox_router.apis.openai.requests.types import (
    GenerationBody,
    JsonSchema,
    ResponseFormat,
    StructuredOutputs,
)

_TAKEN: Mapping[str, Sequence[str]] = {
    "text": (),
    "json_object": ("schema_", "value"),
    "json_schema": ("json_schema", "schema_", "value"),
    "json": ("value",),
    "regex": ("value",),
}
"""Fields that may hold the structure, by type."""


def set_structured_output(params: pb.SamplingParams, body: GenerationBody) -> None:
    """Sets the one structured output that the body asks for; a forced tool call replaces the
    `response_format`.

    Raises BadRequest if the body asks for several, or for one without its schema.
    """
    asked = [
        *_of_format(None if body.forces_call else body.asked_format),
        *_of_vllm(body.structured_outputs),
        *(("json_schema", schema) for schema in [body.guided_json] if schema is not None),
        *(("regex", regex) for regex in [body.guided_regex] if regex is not None),
        *(("grammar", grammar) for grammar in [body.guided_grammar] if grammar is not None),
        *(("choice", choice) for choice in [body.guided_choice] if choice is not None),
    ]
    if len(asked) > 1:
        raise BadRequest("response_format: more than one structure is asked for", "response_format")
    for kind, value in asked:
        match kind:
            case "json_schema":
                text = value if isinstance(value, str) else json.dumps(value)
                params.structured_output.json_schema = text
            case "json_object":
                params.structured_output.json_object.SetInParent()
            case "choice":
                params.structured_output.choice.choices.extend(value)
            case _:
                set_field(params.structured_output, kind, value)


def _of_format(format_: ResponseFormat | None) -> Iterable[tuple[str, Any]]:
    """Yields the structure of a response_format, whose types take different fields."""
    if format_ is None:
        return
    taken = _TAKEN[format_.type]
    given = [name for name in _TAKEN["json_schema"] if getattr(format_, name) is not None]
    for name in given:
        if name not in taken:
            raise _bad_format(name, f"type {format_.type} does not take it")
    for name in given[1:]:
        raise _bad_format(name, "there is another schema")
    structure = _structure(format_, given[0]) if given else None
    if format_.type == "json_object" and structure in (("json_schema", {}), ("json_schema", True)):
        structure = None  # llama.cpp: an empty schema is any object
    if structure is not None:
        yield structure
    elif format_.type == "json_object":
        yield "json_object", None
    elif format_.type != "text":
        raise _bad_format(taken[0], "it must hold a schema or a regular expression")


def _structure(format_: ResponseFormat, name: str) -> tuple[str, Any]:
    value = getattr(format_, name)
    if isinstance(value, JsonSchema):
        value = value.schema_
    elif name == "value" and format_.type == "json_schema" and isinstance(value, dict):
        value = value.get("schema")
    kind = "regex" if format_.type == "regex" else "json_schema"
    if value is None or (kind == "regex" and not isinstance(value, str)):
        needed = "a regular expression" if kind == "regex" else "a schema"
        raise _bad_format(name, f"it must hold {needed}")
    return kind, value


def _bad_format(name: str, reason: str) -> BadRequest:
    param = f"response_format.{name.rstrip('_')}"
    return BadRequest(f"{param}: {reason}", param)


def _of_vllm(outputs: StructuredOutputs | None) -> Iterable[tuple[str, Any]]:
    if outputs is None:
        return
    structures = [
        ("json_schema", outputs.json_),
        ("json_object", outputs.json_object),
        ("regex", outputs.regex),
        ("grammar", outputs.grammar),
        ("choice", outputs.choice),
    ]
    given = [(kind, value) for kind, value in structures if value is not None]
    if not given:
        name = "structured_outputs"
        allowed = "json, json_object, regex, grammar and choice"
        raise BadRequest(f"{name}: one of {allowed} must be set", name)
    yield from given
