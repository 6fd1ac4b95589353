"""The tokens of a model's vocabulary: their ids, spellings, bytes and texts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from signalbox_router.prompt.tokenization.detokenizer import (
    BytesDetokenizer,
    Detokenizer,
    MarkingDetokenizer,
    WindowDetokenizer,
)
from signalbox_router.prompt.tokenization.token_bytes import (
    BytePieces,
    PiecesInText,
    before_byte_level,
)

_NUM_CONTEXT_TOKENS = 4
"""Last tokens of the prompt, which decide the leading space of the text."""


class Vocabulary:
    """The tokens of one `tokenizers.Tokenizer`."""

    def __init__(self, backend: Any, *, vocab_size: int) -> None:
        self._backend = backend
        vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self._special_ids = {token_id for token_id, token in added.items() if token.special}
        self.special_tokens = {one: added[one].content for one in self._special_ids}
        """Spellings of the special tokens by id."""
        self.max_token_id = max(vocab.values())
        self.max_token_bytes = max(len(token.encode()) for token in vocab)
        self._pieces = self._make_pieces(vocab, vocab_size)
        """None for a decoder that is not byte-level."""
        # Without a decoder, `tokenizers` puts spaces between tokens.
        decode = " ".join if backend.decoder is None else backend.decoder.decode
        self._pieces_in_text = PiecesInText(decode)

    def _make_pieces(self, vocab: Mapping[str, int], vocab_size: int) -> BytePieces | None:
        respell = before_byte_level(self._backend.decoder)
        if respell is None:
            return None
        return BytePieces(
            vocab, vocab_size=vocab_size, special_ids=self._special_ids, respell=respell
        )

    def token_id(self, token: str) -> int | None:
        """Returns the id of the token with this spelling, or None."""
        token_id: int | None = self._backend.token_to_id(token)
        return token_id

    def tokens_of(self, texts: Iterable[str]) -> dict[str, int]:
        """Returns those texts that are one token, with their ids."""
        ids = ((text, self.token_id(text)) for text in texts)
        return {text: token_id for text, token_id in ids if token_id is not None}

    def entry(self, token_id: int) -> str:
        """Returns a token as the vocabulary spells it, such as "Ġthe"; "" for an unused id."""
        return self._backend.id_to_token(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes of one token within a text, which may be an incomplete character.

        Joined, those of a text's tokens are the text's, with the space that decoders of
        SentencePiece's kind drop at its beginning.
        """
        if self._pieces is not None:
            return self._pieces.of_all[token_id]
        token = self._backend.id_to_token(token_id)
        return b"" if token is None else self._pieces_in_text.bytes_of(token)

    def token_text(self, token_id: int) -> str:
        """Returns the text of one token; replacement characters for an incomplete character."""
        return self.token_bytes(token_id).decode(errors="replace")

    def decode_with_offsets(self, token_ids: Sequence[int]) -> tuple[str, list[int]]:
        """Returns the text, including special tokens, and the place in it where each token
        begins."""
        detokenizer = self.make_detokenizer((), skip_special_tokens=False)
        text, offsets = "", []
        for token_id in token_ids:
            offsets.append(len(text))
            text += detokenizer.push((token_id,))
        return text + detokenizer.flush(), offsets

    def make_detokenizer(
        self,
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool,
        kept_token_ids: frozenset[int] = frozenset(),
    ) -> Detokenizer:
        """Returns a detokenizer for a sequence that continues the prompt.

        Args:
            kept_token_ids: markers for the readers of the text: not skipped, and with a MARK.
        """
        detokenizer = self._plain_detokenizer(prompt_token_ids, skip_special_tokens, kept_token_ids)
        return MarkingDetokenizer(detokenizer, kept_token_ids) if kept_token_ids else detokenizer

    def _plain_detokenizer(
        self,
        prompt_token_ids: Sequence[int],
        skip_special_tokens: bool,
        kept_token_ids: frozenset[int],
    ) -> Detokenizer:
        if self._pieces is None:
            decode = self._make_decode(skip_special_tokens, kept_token_ids)
            return WindowDetokenizer(decode, context=prompt_token_ids[-_NUM_CONTEXT_TOKENS:])
        if not skip_special_tokens:
            return BytesDetokenizer(self._pieces.of_all)
        return BytesDetokenizer(self._pieces.without_special(kept_token_ids))

    def _make_decode(
        self, skip_special_tokens: bool, kept_token_ids: frozenset[int]
    ) -> Callable[[list[int]], str]:
        decode = partial(self._backend.decode, skip_special_tokens=skip_special_tokens)
        if not (skip_special_tokens and kept_token_ids & self._special_ids):
            return decode
        skipped = self._special_ids - kept_token_ids
        return lambda token_ids: str(
            self._backend.decode(
                [token_id for token_id in token_ids if token_id not in skipped],
                skip_special_tokens=False,
            )
        )
