"""Of `Client` and `ClientV2`: embeddings as floats and by type, a ranking, `BadRequestError`."""

import cohere
from demo_pooling import (
    ENCODER_HTTP,
    MODEL,
    QUERY,
    RANKING,
    RERANKER_HTTP,
    SCORES,
    TEXTS,
    TOO_LONG,
    VECTORS,
    assert_close,
)

encoder, reranker = (url.removesuffix("/v1") for url in (ENCODER_HTTP, RERANKER_HTTP))
DOCUMENT = {"model": MODEL, "input_type": "search_document"}


def assert_ranked(answer: object) -> None:
    assert [one.index for one in answer.results] == RANKING[:2]
    found = [one.relevance_score for one in answer.results]
    assert_close(found, [SCORES[i] for i in RANKING[:2]])


def assert_embedded(vectors: list[list[float]]) -> None:
    assert len(vectors) == len(VECTORS)
    for vector, expected in zip(vectors, VECTORS, strict=True):
        assert_close(vector, expected)


for kind in (cohere.Client, cohere.ClientV2):
    ask = kind(api_key="none", base_url=reranker)
    assert_ranked(ask.rerank(model=MODEL, query=QUERY, documents=TEXTS, top_n=2))
    ask = kind(api_key="none", base_url=encoder)
    typed = ask.embed(texts=TEXTS, embedding_types=["float"], **DOCUMENT)
    assert_embedded(typed.embeddings.float_)
    try:
        ask.embed(texts=[TOO_LONG], embedding_types=["float"], truncate="NONE", **DOCUMENT)
    except cohere.BadRequestError as error:
        assert "tokens" in str(error.body)
    else:
        raise AssertionError("a text of 1,000 tokens is taken")

assert_embedded(
    cohere.Client(api_key="none", base_url=encoder).embed(texts=TEXTS, **DOCUMENT).embeddings
)
