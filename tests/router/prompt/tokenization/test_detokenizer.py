from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from signalbox_router.prompt.tokenization.detokenizer import (
    MAX_PENDING_TOKENS,
    Detokenizer,
    WindowDetokenizer,
)
from tests.router.fakes import EOS, POOL, bytewise_ids, ids_of, make_backend, make_tokenizer, token

TOKENIZER = make_tokenizer()
ANY_TOKENS = st.lists(st.integers(0, make_backend().get_vocab_size() - 1), max_size=60)
TEXTS = st.text(max_size=40)


def make_detokenizer(*, skip_special_tokens: bool = True) -> Detokenizer:
    return TOKENIZER.vocabulary.make_detokenizer([], skip_special_tokens=skip_special_tokens)


def make_byte_fallback() -> Any:
    """Returns a decoder like Llama 2's: words with a leading space, and single bytes."""
    words = ["<unk>", "▁Hello", "▁world", "lo", ","]
    vocab = {word: i for i, word in enumerate(words)}
    vocab |= {f"<0x{byte:02X}>": len(words) + byte for byte in range(256)}
    backend = Tokenizer(models.BPE(vocab, [], byte_fallback=True, unk_token="<unk>"))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return backend


def read_all(detokenizer: Detokenizer, token_ids: list[int]) -> list[str]:
    return [*(detokenizer.push([token_id]) for token_id in token_ids), detokenizer.flush()]


@given(ANY_TOKENS, st.booleans())
def test_deltas_of_any_tokens_add_up_to_the_whole_decode(ids: list[int], skip: bool) -> None:
    deltas = read_all(make_detokenizer(skip_special_tokens=skip), ids)
    assert "".join(deltas) == make_backend().decode(ids, skip_special_tokens=skip)


@given(TEXTS, st.booleans())
def test_valid_text_comes_back_without_replacement_characters(text: str, bytewise: bool) -> None:
    ids = bytewise_ids(text) if bytewise else ids_of(text)
    deltas = read_all(make_detokenizer(), ids)
    assert "".join(deltas) == text
    assert sum(delta.count("\ufffd") for delta in deltas) == text.count("\ufffd")


@given(ANY_TOKENS, st.data())
def test_runs_of_any_length_give_the_same_text(ids: list[int], data: st.DataObject) -> None:
    detokenizer, text, start = make_detokenizer(), "", 0
    while start < len(ids):
        end = start + data.draw(st.integers(1, 5))
        text += detokenizer.push(ids[start:end])
        start = end
    assert text + detokenizer.flush() == "".join(read_all(make_detokenizer(), ids))


def test_an_incomplete_character_is_flushed_as_a_replacement_character() -> None:
    assert read_all(make_detokenizer(), bytewise_ids("é")[:1]) == ["", "\ufffd"]


def test_ids_beyond_the_tokenizer_have_no_text() -> None:
    backend = make_backend()
    files = {"tokenizer.json": backend.to_str().encode()}
    padded = type(TOKENIZER)(files, vocab_size=backend.get_vocab_size() + 8, pool=POOL)
    detokenizer = padded.vocabulary.make_detokenizer([], skip_special_tokens=True)
    assert detokenizer.push([backend.get_vocab_size() + 7]) == ""


def test_special_tokens_are_left_out_unless_asked_for() -> None:
    ids = [*ids_of("Paris"), token(EOS)]
    assert make_detokenizer().push(ids) == "Paris"
    assert make_detokenizer(skip_special_tokens=False).push(ids) == "Paris</s>"


@given(st.lists(st.sampled_from(["▁Hello", "▁world", "lo", ",", "é", "東", "😀"]), max_size=20))
def test_window_gives_the_whole_decode_with_byte_fallback(pieces: list[str]) -> None:
    backend = make_byte_fallback()
    ids = [i for piece in pieces for i in _byte_fallback_ids(backend, piece)]
    deltas = read_all(WindowDetokenizer(backend.decode), ids)
    assert "".join(deltas) == backend.decode(ids)
    assert not any("\ufffd" in delta for delta in deltas)


def _byte_fallback_ids(backend: Any, piece: str) -> list[int]:
    whole = backend.token_to_id(piece)
    if whole is not None:
        return [whole]
    return [backend.token_to_id(f"<0x{byte:02X}>") for byte in piece.encode()]


def test_window_keeps_the_leading_space_after_a_prompt() -> None:
    backend = make_byte_fallback()
    hello, world = backend.token_to_id("▁Hello"), backend.token_to_id("▁world")
    detokenizer = WindowDetokenizer(backend.decode, context=[hello])
    assert detokenizer.push([world]) == " world"


def test_window_does_not_grow_with_garbage() -> None:
    backend = make_byte_fallback()
    sizes = []

    def decode(ids: list[int]) -> str:
        sizes.append(len(ids))
        return str(backend.decode(ids))

    detokenizer = WindowDetokenizer(decode)
    for _ in range(1000):
        detokenizer.push([backend.token_to_id("<0xFF>")])
    assert max(sizes) <= 2 * MAX_PENDING_TOKENS
