"""Converts bodies of embeddings, scores and classes to the calls that gRPC makes, too."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

from signalbox_contract.errors import MAX_VALUE_CHARS, InvalidArgument
from signalbox_router.apis.openai.requests.errors import BadRequest
from signalbox_router.apis.openai.requests.pooling_types import (
    ClassifyBody,
    CohereEmbedBody,
    EncodedBody,
    InputBody,
    PoolingBody,
    RerankBody,
    ScoreBody,
)
from signalbox_router.generation.pooling.calls import (
    ClassifyCall,
    EmbedCall,
    ScoreCall,
    check_num_inputs,
    retrieval_prompt,
)
from signalbox_router.generation.pooling.embed_dtypes import EmbedDtype
from signalbox_router.params.params_validation import check_priority
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.requests.api_request import PromptText, PromptTokens

_QUERIES, _DOCUMENTS = ("text_1", "queries", "data_1"), ("text_2", "documents", "items", "data_2")
_RETRIEVAL: dict[str, Literal["query", "document"]] = {
    "search_query": "query",
    "search_document": "document",
}
_TASKS = ("classification", "clustering")
"""Cohere's other kinds of input, for which few models have a prompt."""


class VectorForm(NamedTuple):
    """Form of vectors in JSON."""

    dtype: EmbedDtype = "float32"
    is_base64: bool = False
    """True if a vector is its bytes in base64, and no list of numbers."""
    is_big_endian: bool = False


def vector_form(body: EncodedBody) -> VectorForm:
    """Raises BadRequest if two fields ask for different types."""
    encoding = body.encoding_format or "float"
    if encoding in ("float", "base64"):
        return VectorForm(
            body.embed_dtype or "float32", encoding == "base64", body.endianness == "big"
        )
    if body.embed_dtype not in (None, encoding):
        message = f"encoding_format: {encoding} excludes embed_dtype {body.embed_dtype}"
        raise BadRequest(message, "encoding_format")
    return VectorForm(cast(EmbedDtype, encoding))


def _dtype_field(body: EncodedBody) -> str:
    return "encoding_format" if body.embed_dtype is None else "embed_dtype"


def embed_call(
    body: EncodedBody, request_id: str, *, task: Literal["embed", "token_embed"] = "embed"
) -> EmbedCall:
    if body.prompt_name is not None and body.prompt_text is not None:
        raise BadRequest("prompt_text: it excludes prompt_name", "prompt_text")
    return EmbedCall(
        **_common(body, request_id),
        inputs=_inputs(body),
        dimensions=body.dimensions,
        prompt_name=body.prompt_name,
        prompt_text=body.prompt_text,
        task=task,
        dtypes=(vector_form(body).dtype,),
        dtype_field=_dtype_field(body),
    )


def classify_call(body: ClassifyBody | EncodedBody, request_id: str) -> ClassifyCall:
    if isinstance(body, EncodedBody) and (dtype := vector_form(body).dtype) != "float32":
        raise InvalidArgument(_dtype_field(body), dtype, "float32 for the classes of a text")
    return ClassifyCall(**_common(body, request_id), inputs=_inputs(body))


def score_call(body: ScoreBody, request_id: str) -> ScoreCall:
    (first, queries), (second, documents) = _given(body, _QUERIES), _given(body, _DOCUMENTS)
    check_num_inputs(len(documents), field=second)
    return ScoreCall(
        **_common(body, request_id),
        queries=queries,
        documents=documents,
        instruction=body.instruction,
        query_field=first,
        document_field=second,
    )


def rerank_call(body: RerankBody, request_id: str) -> ScoreCall:
    check_num_inputs(len(body.documents), field="documents")
    if body.top_n is not None and body.top_n < 0:
        raise InvalidArgument("top_n", body.top_n, "at least 0")
    return ScoreCall(
        **_common(body, request_id),
        queries=[body.query],
        documents=documents_of(body),
        instruction=body.instruction,
        query_field="query",
    )


def documents_of(body: RerankBody) -> list[str]:
    return [one if isinstance(one, str) else one.text for one in body.documents]


def cohere_call(body: CohereEmbedBody, request_id: str, model: ServedModel) -> EmbedCall:
    if (body.texts is None) is (body.inputs is None):
        raise BadRequest("texts: exactly one of texts and inputs", "texts")
    field = "texts" if body.inputs is None else "inputs"
    check_num_inputs(len(body.given), field=field)
    if body.max_tokens is not None and body.max_tokens < 1:
        raise InvalidArgument("max_tokens", body.max_tokens, "at least 1")
    cuts, most = body.truncate != "NONE" or body.max_tokens is not None, model.max_model_len
    return EmbedCall(
        request_id=request_id,
        model=body.model or "",
        priority=_priority(body.priority),
        truncate_prompt_tokens=min(body.max_tokens or most, most) if cuts else None,
        truncate_start=body.truncate == "START",
        inputs=[
            PromptText(text, True, f"{field}[{i}]") for i, text in enumerate(cohere_texts(body))
        ],
        dimensions=body.output_dimension,
        prompt_text=_cohere_prompt(body.input_type, model),
        dtypes=[cohere_form(name).dtype for name in cohere_forms(body)],
        dtype_field="embedding_types",
    )


def cohere_forms(body: CohereEmbedBody) -> list[str]:
    return list(dict.fromkeys(body.embedding_types or ("float",)))


def cohere_form(name: str) -> VectorForm:
    """Returns one of the forms of Cohere's API."""
    if name in ("float", "base64"):
        return VectorForm(is_base64=name == "base64")
    return VectorForm(cast(EmbedDtype, name))


def cohere_texts(body: CohereEmbedBody) -> list[str]:
    return [
        one if isinstance(one, str) else "".join(part.text for part in one.content)
        for one in body.given
    ]


def _cohere_prompt(input_type: str | None, model: ServedModel) -> str | None:
    """Returns the model's prompt for a kind of input; None is its default."""
    if input_type is None:
        return None
    prompts = model.tokenizer.pooling_texts.prompts
    if input_type in prompts:
        return prompts[input_type]
    if input_type in _RETRIEVAL:
        return retrieval_prompt(model, _RETRIEVAL[input_type])
    if input_type not in _TASKS:
        known = ", ".join(sorted({*prompts, *_RETRIEVAL, *_TASKS}))
        given = input_type[:MAX_VALUE_CHARS]
        raise BadRequest(f"Unsupported input_type; allowed: {known}; not {given!r}", "input_type")
    return None


def _common(body: PoolingBody, request_id: str) -> dict[str, Any]:
    activates = body.normalize if body.use_activation is None else body.use_activation
    return {
        "request_id": request_id,
        "model": body.model or "",
        "priority": _priority(body.priority),
        "cache_salt": body.cache_salt or "",
        "truncate_prompt_tokens": body.truncate_prompt_tokens,
        "truncate_start": body.truncation_side == "left",
        "use_activation": activates is not False,
    }


def _priority(priority: int | None) -> int:
    check_priority(priority or 0)
    return priority or 0


def _inputs(body: InputBody) -> list[PromptText | PromptTokens]:
    given = body.input
    if isinstance(given, str):
        return [_input(given, "input", body)]
    if not given:
        raise BadRequest("input: it is empty", "input")
    if isinstance(given[0], int):
        return [_input(given, "input", body)]
    check_num_inputs(len(given), field="input")
    return [_input(one, f"input[{i}]", body) for i, one in enumerate(given)]


def _input(given: Any, field: str, body: InputBody) -> PromptText | PromptTokens:
    if isinstance(given, str):
        return PromptText(given, body.add_special_tokens is not False, field)
    if not given:
        raise BadRequest(f"{field}: it is empty", field)
    return PromptTokens(given, field)


def _given(body: ScoreBody, names: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the one of several fields that is set, and its texts."""
    found = [name for name in names if getattr(body, name) is not None]
    if len(found) != 1:
        allowed = ", ".join(names)
        raise BadRequest(f"{names[0]}: exactly one of {allowed} must be set", names[0])
    (name,) = found
    value = getattr(body, name)
    return name, [value] if isinstance(value, str) else list(value)
