"""Log probabilities of a completion, for each kind of tokenizer."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalbox_contract.logprobs import TokenLogprobs
from signalbox_router.apis.openai.logprobs import CompletionLogprobs, Tokens, chat_logprobs
from signalbox_router.prompt.tokenization.tokenizer import Tokenizer
from signalbox_router.requests.request_output import Delta
from tests.router.fakes import POOL
from tests.router.tokenizer_kinds import KINDS, backend_of

NUM_UNUSED = 2
"""Ids without tokens: models pad their vocabularies."""


@functools.cache
def tokenizer_of(kind: str) -> Tokenizer:
    backend = backend_of(kind)
    files = {"tokenizer.json": backend.to_str().encode()}
    return Tokenizer(files, vocab_size=backend.get_vocab_size() + NUM_UNUSED, pool=POOL)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_each_alternative_that_was_asked_for_comes(kind: str, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(kind)
    ids = st.integers(0, backend_of(kind).get_vocab_size() + NUM_UNUSED - 1)
    token_id = data.draw(ids)
    top_ids = data.draw(st.lists(ids, min_size=1, max_size=20, unique=True))
    values = [-0.5 * (1 + rank) for rank in range(len(top_ids))]
    by_id = dict(zip(top_ids, values, strict=True))
    own = by_id.setdefault(token_id, -50.0)
    ranked = {token_id: own} | by_id
    delta = Delta(
        index=0, text="x", token_ids=[token_id], logprobs=[TokenLogprobs(own, 1, top_ids, values)]
    )
    detokenizer = tokenizer.vocabulary.make_detokenizer((), skip_special_tokens=False)
    body = CompletionLogprobs(Tokens(tokenizer), detokenizer).body((), delta)
    (top,) = body["top_logprobs"]
    assert list(top.values()) == list(ranked.values())
    assert top[body["tokens"][0]] == own
    (entry,) = chat_logprobs(Tokens(tokenizer), delta, adds_sampled=False)["content"]
    assert bytes(entry["bytes"]) == tokenizer.vocabulary.token_bytes(token_id)
    assert len(entry["top_logprobs"]) == len(top_ids)
