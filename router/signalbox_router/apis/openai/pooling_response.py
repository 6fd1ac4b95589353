"""Writes answers with vectors and scores, one vector in each turn of the event loop."""

import asyncio
import base64
import time
from collections.abc import Iterable, Mapping
from typing import Any

from signalbox_contract.pooling import Vector
from signalbox_contract.updates import Usage
from signalbox_router.apis.openai.requests.pooling_codec import (
    VectorForm,
    cohere_form,
    cohere_forms,
    cohere_texts,
    documents_of,
)
from signalbox_router.apis.openai.requests.pooling_types import CohereEmbedBody, RerankBody
from signalbox_router.apis.openai.response_fields import to_json
from signalbox_router.generation.pooler import Scores, Vectors
from signalbox_router.generation.pooling.embed_dtypes import converted, packed


def head(response_id: str, model: str) -> dict[str, Any]:
    return {"id": response_id, "object": "list", "created": int(time.time()), "model": model}


async def embeddings(
    head: dict[str, Any], answer: Vectors, *, form: VectorForm, name: str = "embedding"
) -> bytes:
    """Returns the answer of /v1/embeddings; with the name `data`, that of /pooling."""
    kind = "pooling" if name == "data" else "embedding"
    items = []
    for i, vector in enumerate(answer.vectors):
        item = to_json({"index": i, "object": kind})[:-1]
        items.append(b'%b,"%b":%b}' % (item, name.encode(), await _json_of(vector, form)))
    rest = to_json(head | usage(answer.usage))[:-1]
    return b'%b,"data":[%b]}' % (rest, b",".join(items))


async def classes(head: dict[str, Any], answer: Vectors) -> bytes:
    """Returns the answer of /classify."""
    items = (
        {
            "index": i,
            "label": answer.label_of(vector),
            "probs": vector.tolist(),
            "num_classes": len(vector),
        }
        for i, vector in enumerate(answer.vectors)
    )
    return await _with_list(head | usage(answer.usage), "data", items)


def scores(head: dict[str, Any], answer: Scores) -> bytes:
    """Returns the answer of /v1/score."""
    data = [
        {"index": i, "object": "score", "score": score} for i, score in enumerate(answer.scores)
    ]
    return to_json({**head, **usage(answer.usage), "data": data})


def ranking(
    response_id: str, model: str, body: RerankBody, answer: Scores, *, version: str
) -> bytes:
    """Returns the answer of /rerank: the best documents first, equal ones in their order.

    Args:
        version: of Cohere's API, which the answer names.
    """
    documents = documents_of(body)
    order = sorted(range(len(documents)), key=lambda i: -answer.scores[i])
    results: list[dict[str, Any]] = []
    for i in order[: body.top_n or None]:
        result: dict[str, Any] = {"index": i, "relevance_score": answer.scores[i]}
        if body.return_documents is not False:
            result["document"] = {"text": documents[i]}
        results.append(result)
    return to_json(
        {
            "id": response_id,
            "model": model,
            "results": results,
            "meta": _meta(answer.usage, version=version, search_units=1),
            **usage(answer.usage),
        }
    )


async def cohere_embeddings(
    response_id: str, body: CohereEmbedBody, answer: Vectors, *, version: str
) -> bytes:
    """Returns the answer of /v1/embed and /v2/embed: a list of vectors for each of their forms.

    Args:
        version: of Cohere's API; the first answers a body without forms with one list of floats.
    """
    is_list = version == "1" and not body.embedding_types
    parts = []
    for name in cohere_forms(body):
        form = cohere_form(name)
        values = await _items(_written(vector, form) for vector in answer.vectors)
        parts.append(b"[%b]" % values if is_list else b'"%b":[%b]' % (name.encode(), values))
    rest = {
        "id": response_id,
        "texts": cohere_texts(body),
        "meta": _meta(answer.usage, version=version),
        "response_type": "embeddings_floats" if is_list else "embeddings_by_type",
    }
    embeddings = parts[0] if is_list else b"{%b}" % b",".join(parts)
    return b'%b,"embeddings":%b}' % (to_json(rest)[:-1], embeddings)


async def _json_of(vector: Vector, form: VectorForm) -> bytes:
    """Returns the JSON of a vector, or of a list of the vectors of tokens."""
    if vector.ndim > 1 and not form.is_base64:
        return b"[%b]" % await _items(_written(one, form) for one in vector)
    await asyncio.sleep(0)
    return to_json(_written(vector, form))


def _written(vector: Vector, form: VectorForm) -> object:
    if not form.is_base64:
        return converted(vector, form.dtype).tolist()
    content = packed(vector, form.dtype, is_big_endian=form.is_big_endian)
    return base64.b64encode(content).decode()


def usage(used: Usage) -> dict[str, Any]:
    counts = {
        "prompt_tokens": used.prompt_tokens,
        "total_tokens": used.prompt_tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": used.cached_tokens},
    }
    return {"usage": counts}


def _meta(used: Usage, *, version: str, search_units: int | None = None) -> dict[str, Any]:
    units = (
        {"input_tokens": used.prompt_tokens, "image_tokens": 0}
        if search_units is None
        else {"search_units": search_units}
    )
    return {
        "api_version": {"version": version},
        "billed_units": units,
        "tokens": {"input_tokens": used.prompt_tokens},
    }


async def _with_list(rest: Mapping[str, Any], name: str, items: Iterable[object]) -> bytes:
    """Returns an object's JSON with a list as its last field."""
    return b'%b,"%b":[%b]}' % (to_json(rest)[:-1], name.encode(), await _items(items))


async def _items(items: Iterable[object]) -> bytes:
    """Returns the items of a JSON list without its brackets."""
    written: list[bytes] = []
    for item in items:
        written.append(to_json(item))
        await asyncio.sleep(0)
    return b",".join(written)
