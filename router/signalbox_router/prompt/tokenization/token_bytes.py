"""The bytes of each token of a vocabulary.

Byte-level BPE (GPT-2) writes its vocabulary in an alphabet of printable characters, each of which
stands for a byte. So a token has bytes whatever its neighbours are, and detokenising is a look-up.
Other decoders look at the neighbours, if only to drop the space that begins a text; there the bytes
of a token are those that it has within a text.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tokenizers import Regex, decoders

from signalbox_contract.model import MAX_VOCABULARY

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
"""A byte of a character that a SentencePiece vocabulary lacks."""


class BytePieces:
    """Tables of bytes by token id, with special tokens and without."""

    def __init__(
        self,
        vocab: Mapping[str, int],
        *,
        vocab_size: int,
        special_ids: Collection[int],
        respell: Callable[[str], str],
    ) -> None:
        """Ids without a token have no bytes: models pad their vocabularies.

        Args:
            respell: makes of a token what the decoder takes the bytes of.
        """
        num_ids = max(vocab_size, max(vocab.values()) + 1)
        if num_ids > MAX_VOCABULARY:
            raise ValueError(f"the tokenizer has the token id {num_ids - 1}, which is too large")
        self.of_all = [b""] * num_ids
        for token, token_id in vocab.items():
            self.of_all[token_id] = _piece(respell(token))
        self._special_ids = frozenset(special_ids)
        self._by_kept: dict[frozenset[int], list[bytes]] = {}
        self.without_special()  # now, so that the first request does not pay for it

    def without_special(self, kept_ids: frozenset[int] = frozenset()) -> list[bytes]:
        """Returns a table in which special tokens have no bytes, except some that are kept."""
        kept_ids &= self._special_ids
        if kept_ids not in self._by_kept:  # one for each tool call format
            left_out = self._special_ids - kept_ids
            pieces = [b"" if i in left_out else piece for i, piece in enumerate(self.of_all)]
            self._by_kept[kept_ids] = pieces
        return self._by_kept[kept_ids]


class PiecesInText:
    """Bytes of tokens by what a decoder makes of them between two others."""

    def __init__(self, decode: Callable[[list[str]], str]) -> None:
        """`decode` returns the text of tokens, given as the vocabulary spells them."""
        self._decode = decode
        self._before, self._after = "x", decode(["x", "y"])[1:]
        self._has_byte_tokens = decode(["<0x41>"]) == "A"
        self._known: dict[str, bytes] = {}

    def bytes_of(self, token: str) -> bytes:
        if token not in self._known:
            self._known[token] = self._compute(token)
        return self._known[token]

    def _compute(self, token: str) -> bytes:
        if self._has_byte_tokens and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(byte[1])
        text = self._decode(["x", token, "y"])
        if not (text.startswith(self._before) and text.endswith(self._after)):
            text = self._before + self._decode([token]) + self._after
        return text[len(self._before) : len(text) - len(self._after)].encode()


def before_byte_level(decoder: Any) -> Callable[[str], str] | None:
    """Returns what a byte-level decoder first makes of a token; None for other decoders."""
    state = {} if decoder is None else json.loads(decoder.__getstate__())
    *first, last = state.get("decoders") or [state]
    if last.get("type") != "ByteLevel" or any(step["type"] != "Replace" for step in first):
        return None
    if not first:
        return str
    steps = [decoders.Replace(_pattern(step["pattern"]), step["content"]) for step in first]
    replace = decoders.Sequence(steps)
    return lambda token: str(replace.decode([token]))


def _pattern(state: Mapping[str, str]) -> Any:
    return state["String"] if "String" in state else Regex(state["Regex"])


def _piece(token: str) -> bytes:
    """Returns a token's bytes; one that is not in the byte alphabet stands for itself."""
    try:
        return bytes([_BYTE_OF_CHAR[char] for char in token])
    except KeyError:
        return token.encode()


def _byte_alphabet() -> dict[str, int]:
    """Returns the byte of each of GPT-2's characters: itself if printable, else from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_ins = {chr(0x100 + i): byte for i, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | stand_ins


_BYTE_OF_CHAR = _byte_alphabet()
