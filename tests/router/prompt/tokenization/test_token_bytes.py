"""Tokens out of their context: what a decoder makes of whole texts is right."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalbox_router.prompt.tokenization.detokenizer import MARK
from signalbox_router.prompt.tokenization.vocabulary import Vocabulary
from tests.router.tokenizer_kinds import KINDS, backend_of

WORDS = st.sampled_from(
    ["The", " cat", "mat,", " ", "\n", "Paris", "<s>", "<|call|>", "é", "東京", "😀"]
)
TEXTS = st.lists(WORDS, max_size=12).map("".join) | st.text(max_size=20)


@functools.cache
def vocabulary_of(kind: str) -> Vocabulary:
    return Vocabulary(backend_of(kind), vocab_size=backend_of(kind).get_vocab_size())


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
def test_bytes_of_a_texts_tokens_are_the_texts(kind: str, text: str) -> None:
    backend = backend_of(kind)
    ids = backend.encode(text).ids
    joined = b"".join(map(vocabulary_of(kind).token_bytes, ids)).decode()
    decoded = backend.decode(ids, skip_special_tokens=False)
    assert joined in (decoded, " " + decoded, decoded + " ")


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS | st.sampled_from(["  two", "   three", "<s>  The"]), skip=st.booleans())
def test_text_of_a_stream_is_that_of_the_whole(kind: str, text: str, skip: bool) -> None:
    backend = backend_of(kind)
    ids = backend.encode(text).ids
    detokenizer = vocabulary_of(kind).make_detokenizer((), skip_special_tokens=skip)
    streamed = detokenizer.push(ids) + detokenizer.flush()
    assert streamed == backend.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
def test_a_mark_stands_before_each_token_that_is_kept(kind: str, text: str) -> None:
    vocabulary, ids = vocabulary_of(kind), backend_of(kind).encode(text).ids
    markers = vocabulary.tokens_of(("<s>", "<|call|>"))
    kept = frozenset(markers.values())
    detokenizer = vocabulary.make_detokenizer((), skip_special_tokens=True, kept_token_ids=kept)
    streamed = detokenizer.push(ids) + detokenizer.flush()
    shown = [one for one in ids if one in kept or one not in vocabulary.special_tokens]
    assert streamed.replace(MARK, "") == backend_of(kind).decode(shown, skip_special_tokens=False)
    marked = streamed.split(MARK)[1:]
    assert len(marked) == sum(one in kept for one in ids)
    assert all(one.startswith((*markers,)) for one in marked)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_one_text_are_few(kind: str) -> None:
    """A token differs from others by its text, but for bytes that are whole characters."""
    backend, vocabulary = backend_of(kind), vocabulary_of(kind)
    texts: dict[bytes, list[str]] = {}
    for token, token_id in backend.get_vocab().items():
        texts.setdefault(vocabulary.token_bytes(token_id), []).append(token)
    for tokens in texts.values():
        assert len([one for one in tokens if not one.startswith("<0x")]) <= 1


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("Llama 2", {"▁the": b" the", "▁": b" ", "<0xE2>": b"\xe2", "<s>": b"<s>", "he": b"he"}),
        ("Unigram", {"▁": b" ", "<s>": b"<s>"}),
        ("WordPiece", {"cat": b" cat", "##t": b"t", ",": b","}),
        ("ends of words", {"cat</w>": b"cat ", "it": b"it"}),
        ("byte-level", {"Ġ": b" ", "Ã": b"\xc3"}),
    ],
)
def test_token_has_its_spaces_and_its_byte(kind: str, expected: dict[str, bytes]) -> None:
    backend, vocabulary = backend_of(kind), vocabulary_of(kind)
    found = {token: vocabulary.token_bytes(backend.token_to_id(token)) for token in expected}
    assert found == expected
