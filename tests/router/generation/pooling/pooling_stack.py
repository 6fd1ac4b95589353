"""A router between a client and a scheduler whose vectors say what it was asked."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import tokenizers
from tokenizers import processors

from signalbox_contract.columns import pack_float32
from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2
from tests.router.fakes import BOS, EOS, make_backend, make_files, request_finished, token
from tests.router.stack import Stack, make_stack

EMBEDS = common_pb2.PoolingModel(
    task="embed", num_outputs=4, activation="normalize", dimensions=[2]
)
LATE = common_pb2.PoolingModel(
    task="token_embed",
    num_outputs=2,
    num_token_outputs=2,
    activation="normalize",
    reads_all_tokens=True,
    is_bidirectional=True,
)
SCORES = common_pb2.PoolingModel(
    task="classify", num_outputs=1, activation="sigmoid", reads_all_tokens=True
)
CLASSIFIES = common_pb2.PoolingModel(task="classify", num_outputs=3, activation="softmax")
Vectors = Callable[[scheduler_pb2.Request], Iterable[float]]


SETTINGS = "config_sentence_transformers.json"


def make_pooling_files(**contents: dict[str, Any]) -> dict[str, bytes]:
    """Returns a tokenizer that joins texts and pairs as BERT's does, and files of a model."""
    backend = tokenizers.Tokenizer.from_str(make_backend().to_str())
    backend.post_processor = processors.BertProcessing((EOS, token(EOS)), (BOS, token(BOS)))
    files = make_files() | {"tokenizer.json": backend.to_str().encode()}
    return files | {name: json.dumps(content).encode() for name, content in contents.items()}


def ids(request: scheduler_pb2.Request) -> list[int]:
    return list(request.prompt_token_ids)


def pooled(handle: int, vector: Iterable[float]) -> scheduler_pb2.RequestUpdates:
    stop = scheduler_pb2.FinishedSequence(handle=handle, reason=scheduler_pb2.FINISH_REASON_STOP)
    usage = scheduler_pb2.Usage(prompt_tokens=7, completion_tokens=0, cached_tokens=3)
    return scheduler_pb2.RequestUpdates(
        pooled=[scheduler_pb2.PooledOutput(handle=handle, values=pack_float32(vector))],
        finished_sequences=[stop],
        finished_requests=[request_finished(handle, usage=usage)],
    )


def pooling(vector_of: Vectors) -> Callable[[Any], Iterable[scheduler_pb2.RequestUpdates]]:
    """Returns a script that answers each request at once."""
    return lambda request: [pooled(request.handle, vector_of(request))]


def counts(request: scheduler_pb2.Request) -> list[float]:
    """Returns a vector of the prompt's length, and of how it is pooled."""
    how = request.pooling
    return [len(ids(request)), how.num_first_segment_tokens, how.num_skipped_tokens, 1]


def of_tokens(request: scheduler_pb2.Request) -> list[float]:
    """Returns a vector of two elements for each token."""
    assert request.pooling.is_per_token
    return [one for _ in ids(request) for one in (3.0, -4.0)]


def make_pooling_stack(
    model: common_pb2.PoolingModel = EMBEDS,
    *,
    vector_of: Vectors | None = counts,
    texts: dict[str, Any] | None = None,
    **fields: Any,
) -> Any:
    script = (lambda request: ()) if vector_of is None else pooling(vector_of)
    return make_stack(script, files=make_pooling_files(**texts or {}), pooling=model, **fields)


def make_inputs(*inputs: str | list[int]) -> list[pb.PoolingInput]:
    return [
        pb.PoolingInput(text=one)
        if isinstance(one, str)
        else pb.PoolingInput(token_ids=pb.TokenIds(ids=one))
        for one in inputs
    ]


async def embed(stack: Stack, *inputs: str | list[int], **fields: Any) -> list[list[float]]:
    request = pb.EmbedRequest(inputs=make_inputs(*inputs), **fields)
    answer = await stack.client.Embed(request)
    return [list(one.values) for one in answer.embeddings]
