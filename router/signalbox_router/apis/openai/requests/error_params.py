"""Names the invalid field of a request as its client wrote it: in OpenAI's words, or vLLM's.

The checks are those of inference.v1 and name its fields. Several of OpenAI's fields may map to one
of them; the body tells which one the client used.
"""

import re

from signalbox_router.apis.openai.requests.chat_types import ChatBody
from signalbox_router.apis.openai.requests.types import Body, CompletionBody, GenerationBody

_RENAMED = {
    "text": "prompt",
    "token_ids.ids": "prompt",
    "token_ids": "tokens",
    "tool_choice.tool": "tool_choice.function.name",
    "logit_bias.bias": "logit_bias",
    "logit_bias.token_id": "logit_bias",
    "beam_search.length_penalty": "length_penalty",
    "beam_search.early_stopping": "early_stopping",
    "beam_search": "use_beam_search",
}
_OF_FUNCTION = re.compile(r"^(tools\[\d+\]|messages\[\d+\]\.tool_calls\[\d+\])\.")
_STRUCTURE = "structured_output"
_GUIDED = ("guided_json", "guided_regex", "guided_grammar", "guided_choice")


def param_of(field: str, body: Body | None) -> str:
    """Returns the client's name for a field of inference.v1.

    Args:
        body: the request's body, if it could be read.
    """
    name = _param_of(field, body)
    return name if body is None else _as_written(name, body)


def _as_written(name: str, body: Body) -> str:
    """Returns the name of another server's field if the client has set ours by that."""
    for written, value in (body.model_extra or {}).items():
        foreign = body.FOREIGN.get(written)
        if foreign and foreign.does == name and not foreign.asks_for_nothing(value):
            return written
    return name


def _param_of(field: str, body: Body | None) -> str:
    field = field.removeprefix("sampling_params.").removeprefix("pooling_params.")
    if body is not None and (written := body.client_name(field)) is not None:
        return written
    field = _OF_FUNCTION.sub(r"\1.function.", _RENAMED.get(field, field))
    if not isinstance(body, GenerationBody):
        return field
    if field.partition(".")[0] == _STRUCTURE:
        return _structure(field.removeprefix(_STRUCTURE).removeprefix("."), body)
    if field == "beam_search.width":
        return "n" if body.best_of is None else "best_of"
    if isinstance(body, ChatBody):
        return _of_chat(field, body)
    if isinstance(body, CompletionBody) and field == "prompt_logprobs" and body.echo:
        return "logprobs" if body.prompt_logprobs is None else field
    return field


def _of_chat(field: str, body: ChatBody) -> str:
    if field == "max_tokens" and body.max_completion_tokens is not None:
        return "max_completion_tokens"
    if field.startswith("thinking."):
        return "thinking_token_budget" if field == "thinking.budget" else "reasoning_effort"
    return "top_logprobs" if field == "logprobs" else field


def _structure(kind: str, body: GenerationBody) -> str:
    """Returns the field that asked for a structure: without one, it is the forced tool's schema."""
    if body.structured_outputs is not None:
        name = "json" if kind == "json_schema" else kind
        return f"structured_outputs.{name}" if name else "structured_outputs"
    guided = [name for name in _GUIDED if getattr(body, name) is not None]
    if guided:  # there is only one structure
        return guided[0]
    if body.forces_call or body.response_format is None or body.response_format.type == "text":
        return "tools"
    if body.response_format.schema_ is not None:
        return "response_format.schema"
    if body.response_format.value is not None:
        return "response_format.value"
    return "response_format.json_schema.schema" if kind == "json_schema" else "response_format"
