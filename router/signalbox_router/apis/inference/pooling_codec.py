"""Converts messages of Embed, Score and Classify."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.pooling import Vector
from signalbox_contract.updates import Usage
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.apis.inference.generate_codec import value_or
from signalbox_router.generation.pooler import Scores, Vectors
from signalbox_router.generation.pooling.calls import (
    ClassifyCall,
    EmbedCall,
    ScoreCall,
    check_num_inputs,
)
from signalbox_router.generation.pooling.embed_dtypes import EMBED_DTYPES, EmbedDtype, packed
from signalbox_router.params.token_validation import as_list
from signalbox_router.requests.api_request import PromptText, PromptTokens

_DTYPES: Mapping[int, EmbedDtype] = {
    pb.EMBED_DTYPE_UNSPECIFIED: "float32",
    **{pb.EmbedDtype.Value(f"EMBED_DTYPE_{one.upper()}"): one for one in EMBED_DTYPES},
}


def embed_call(request: pb.EmbedRequest) -> EmbedCall:
    prompt = request.WhichOneof("prompt")
    return EmbedCall(
        **_common(request),
        inputs=_inputs(request.inputs),
        dimensions=request.dimensions if request.HasField("dimensions") else None,
        prompt_name=request.prompt_name if prompt == "prompt_name" else None,
        prompt_text=request.prompt_text if prompt == "prompt_text" else None,
        task=_task(request),
        dtypes=[_dtype(request)],
    )


def score_call(request: pb.ScoreRequest) -> ScoreCall:
    check_num_inputs(len(request.documents), field="documents")
    return ScoreCall(
        **_common(request),
        queries=list(request.queries),
        documents=list(request.documents),
        instruction=request.instruction if request.HasField("instruction") else None,
    )


def classify_call(request: pb.ClassifyRequest) -> ClassifyCall:
    return ClassifyCall(**_common(request), inputs=_inputs(request.inputs))


def embed_response(request: pb.EmbedRequest, answer: Vectors) -> pb.EmbedResponse:
    return pb.EmbedResponse(
        request_id=request.request_id,
        embeddings=[_embedding(vector, _dtype(request)) for vector in answer.vectors],
        usage=_usage(answer.usage),
    )


def score_response(request: pb.ScoreRequest, answer: Scores) -> pb.ScoreResponse:
    return pb.ScoreResponse(
        request_id=request.request_id, scores=answer.scores, usage=_usage(answer.usage)
    )


def classify_response(request: pb.ClassifyRequest, answer: Vectors) -> pb.ClassifyResponse:
    return pb.ClassifyResponse(
        request_id=request.request_id,
        results=[
            pb.Classification(probs=vector.tolist(), label=answer.label_of(vector) or "")
            for vector in answer.vectors
        ],
        usage=_usage(answer.usage),
    )


def _task(request: pb.EmbedRequest) -> Literal["embed", "token_embed"]:
    if request.task in (pb.POOLING_TASK_UNSPECIFIED, pb.POOLING_TASK_EMBED):
        return "embed"
    if request.task == pb.POOLING_TASK_TOKEN_EMBED:
        return "token_embed"
    allowed = "POOLING_TASK_EMBED or POOLING_TASK_TOKEN_EMBED"
    raise InvalidArgument("task", request.task, allowed)


def _dtype(request: pb.EmbedRequest) -> EmbedDtype:
    if request.embed_dtype not in _DTYPES:
        names = ", ".join(pb.EmbedDtype.Name(one) for one in _DTYPES)
        raise InvalidArgument("embed_dtype", request.embed_dtype, names)
    return _DTYPES[request.embed_dtype]


def _embedding(vector: Vector, dtype: EmbedDtype) -> pb.Embedding:
    num_vectors = len(vector) if vector.ndim > 1 else 0
    if dtype == "float32":
        return pb.Embedding(values=vector.ravel(), num_vectors=num_vectors)
    return pb.Embedding(data=packed(vector, dtype), num_vectors=num_vectors)


def _common(request: pb.EmbedRequest | pb.ScoreRequest | pb.ClassifyRequest) -> dict[str, Any]:
    params = request.pooling_params
    is_cut = params.HasField("truncate_prompt_tokens")
    return {
        "request_id": request.request_id,
        "model": request.model,
        "priority": request.priority,
        "cache_salt": request.cache_salt,
        "truncate_prompt_tokens": params.truncate_prompt_tokens if is_cut else None,
        "truncate_start": params.truncate_start,
        "use_activation": value_or(params, "use_activation", True),
    }


def _inputs(inputs: Sequence[pb.PoolingInput]) -> list[PromptText | PromptTokens]:
    check_num_inputs(len(inputs))
    return [_input(position, one) for position, one in enumerate(inputs)]


def _input(position: int, one: pb.PoolingInput) -> PromptText | PromptTokens:
    field = f"inputs[{position}]"
    match one.WhichOneof("input"):
        case "text":
            return PromptText(one.text, True, f"{field}.text")
        case "token_ids":
            return PromptTokens(as_list(one.token_ids.ids), f"{field}.token_ids.ids")
    raise InvalidArgument(field, None, "exactly one of text and token_ids")


def _usage(usage: Usage) -> pb.Usage:
    return pb.Usage(**usage._asdict())
