"""Vectors of documents and of a query as sentence-transformers has them, `BadRequestError`."""

import openai
from demo_pooling import ENCODER_HTTP, MODEL, QUERY, TEXTS, TOO_LONG, VECTORS, assert_close
from langchain_openai import OpenAIEmbeddings

# Otherwise it sends token ids of OpenAI's own tokenizer.
embeddings = OpenAIEmbeddings(
    model=MODEL,
    base_url=ENCODER_HTTP,
    api_key="none",
    max_retries=0,
    check_embedding_ctx_length=False,
)

for vector, expected in zip(embeddings.embed_documents(TEXTS), VECTORS, strict=True):
    assert_close(vector, expected)
assert_close(embeddings.embed_query(TEXTS[0]), VECTORS[0])
assert len(embeddings.embed_query(QUERY)) == len(VECTORS[0])

try:
    embeddings.embed_query(TOO_LONG)
except openai.BadRequestError as error:
    assert "tokens" in error.message
else:
    raise AssertionError("a text of 1,000 tokens is taken")
