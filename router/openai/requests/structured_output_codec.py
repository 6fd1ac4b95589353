"""Converts OpenAI's and vLLM's structured outputs to those of inference.v1."""

import json
from collections.abc import Iterable
from typing import Any

from protos.inference.v1 import inference_pb2 as pb
from router.openai.requests.errors import BadRequest
from router.openai.requests.field_setters import set_field
from router.openai.requests.types import GenerationBody, ResponseFormat, StructuredOutputs


def set_structured_output(params: pb.SamplingParams, body: GenerationBody) -> None:
    """Sets the one structured output that the body asks for; a forced tool call replaces the
    `response_format`.

    Raises BadRequest if the body asks for several, or for one without its schema.
    """
    asked = [
        *_of_format(None if body.forces_call else body.response_format),
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
    if format_ is None or format_.type == "text":
        return
    if format_.type == "json_object":
        yield "json_object", None
    elif format_.json_schema is None or format_.json_schema.schema_ is None:
        param = "response_format.json_schema"
        raise BadRequest(f"{param}: it must hold a schema", param)
    else:
        yield "json_schema", format_.json_schema.schema_


def _of_vllm(outputs: StructuredOutputs | None) -> Iterable[tuple[str, Any]]:
    if outputs is None:
        return
    for kind, value in (
        ("json_schema", outputs.json_),
        ("json_object", outputs.json_object),
        ("regex", outputs.regex),
        ("grammar", outputs.grammar),
        ("choice", outputs.choice),
    ):
        if value is not None:
            yield kind, value
