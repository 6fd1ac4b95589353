"""Vectors of documents and of a query as sentence-transformers has them, and a typed error."""

import openai
from demo_pooling import ENCODER_HTTP, MODEL, TEXTS, TOO_LONG, VECTORS, assert_close
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

embedding = OpenAILikeEmbedding(
    model_name=MODEL, api_base=ENCODER_HTTP, api_key="none", embed_batch_size=3, max_retries=0
)

vectors = embedding.get_text_embedding_batch(TEXTS)
for vector, expected in zip(vectors, VECTORS, strict=True):
    assert_close(vector, expected)
assert_close(embedding.get_query_embedding(TEXTS[0]), VECTORS[0])

try:
    embedding.get_text_embedding(TOO_LONG)
except openai.BadRequestError as error:
    assert "tokens" in error.message
else:
    raise AssertionError("a text of 1,000 tokens is taken")
